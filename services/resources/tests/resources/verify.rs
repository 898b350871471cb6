//! Verify: replayed, or waited for and run once.

use belay_core::{parts::VerifyMode, refusal::Reason};
use belay_proto::checkpoint as ck;

use super::*;
use crate::held::Held;

#[tokio::test]
async fn the_reward_is_the_sessions() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::counter(&root).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    assert_eq!(server.verify(&me, "{}").await.unwrap().reward, 0.0);
    server.add(&me, (0, 1), 3).await.unwrap();
    let verdict = server.verify(&me, "{}").await.unwrap();
    assert_eq!(verdict.reward, 1.0);
    assert_eq!(&verdict.details[..], br#"{"count": 6, "expected_count": 6}"#);
    refused(
        server.verify(&life("r", 0, 2), "{}").await,
        Reason::StaleExecution,
    );
}

#[tokio::test]
async fn a_replayable_verify_holds_up_no_checkpoint_and_is_served_while_closed() {
    let root = tempfile::tempdir().unwrap();
    let held = Held::new();
    let server = Server::start(&root, held.clone(), |config| {
        config.verify = Some(VerifyMode::Replay)
    })
    .await;
    server.control.join(true).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    let verify = |life: Life| {
        let (client, request) = (
            server.client.clone(),
            pb::VerifyRequest {
                r#ref: life.wire(),
                response: "{}".into(),
            },
        );
        tokio::spawn(async move { answer(client.clone().verify(request)).await })
    };
    let before = verify(me.clone());
    held.until("it runs", |seen| seen.verifies == 1).await;
    server.control.prepared().await;
    let after = verify(me.clone());
    held.until("the other runs", |seen| seen.verifies == 2).await;
    let commit = server.control.commit(&[&me]).await;
    assert_eq!(commit.parts.len(), 1);
    held.release();
    done("before", before).await.unwrap();
    done("after", after).await.unwrap();
}

#[tokio::test]
async fn a_verify_that_is_waited_for_blocks_by_name_and_runs_once() {
    let root = tempfile::tempdir().unwrap();
    let held = Held::new();
    let server = Server::open(&root, held.clone()).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    let (client, request) = (
        server.client.clone(),
        pb::VerifyRequest {
            r#ref: me.wire(),
            response: "{}".into(),
        },
    );
    let gone = tokio::spawn(async move { client.clone().verify(request).await });
    held.until("it runs", |seen| seen.verifies == 1).await;
    gone.abort();
    let preparing = server.control.prepare(Duration::from_millis(50)).await;
    assert_eq!(preparing.phase(), ck::Phase::Preparing);
    assert_eq!(preparing.blockers[0].step, "verify");
    held.release();
    server.control.prepared().await;
    server.control.resume(control::RUN, ck::Decision::Abandon).await;

    assert_eq!(server.verify(&me, "{}").await.unwrap().reward, 0.0);
    refused(server.verify(&me, "{ }").await, Reason::OperationMismatch);
    assert_eq!(held.seen().verifies, 1, "the verdict was kept");
    server.close(&me).await.unwrap();
    refused(server.verify(&me, "{}").await, Reason::EpisodeUnknown);
}
