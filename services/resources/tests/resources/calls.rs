//! Seed, CallTool and Close: each twice, out of order, and by somebody else.

use belay_core::refusal::Reason;
use belay_proto::episode as pb;
use belay_resources::environments::Counter;

use super::*;
use crate::held::Held;

#[tokio::test]
async fn nothing_is_served_before_a_coordinator_has_joined_it() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(&root, Counter, |_| ()).await;
    let refusal = refused(server.seed(&life("r", 0, 1)).await, Reason::NotJoined);
    assert!(refusal.retry_after.is_some());
}

#[tokio::test]
async fn each_call_can_be_made_twice() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::counter(&root).await;
    let me = life("r", 0, 1);

    let seeded = server.seed(&me).await.unwrap();
    assert_eq!(seeded.mode(), pb::CheckpointMode::Exported);
    assert_eq!(seeded.verify(), pb::VerifyMode::Replay);
    assert_eq!(seeded.instance, Some(super::me().to_wire()));
    let added = server.add(&me, (0, 1), 2).await.unwrap();
    assert_eq!((added.revision, added.kept, added.is_error), (1, false, false));
    assert_eq!(server.seed(&me).await.unwrap(), seeded);
    let again = server.add(&me, (0, 1), 2).await.unwrap();
    assert_eq!(again, pb::CallToolResponse { kept: true, ..added });
    assert_eq!(server.count(&me, (0, 2)).await, r#"{"count": 5}"#);

    server.close(&me).await.unwrap();
    server.close(&me).await.unwrap();
    refused(server.add(&me, (1, 1), 2).await, Reason::EpisodeUnknown);
    assert_eq!(server.counts().await, (0, 0));
}

#[tokio::test]
async fn a_tools_own_failure_is_a_reply_that_is_kept() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::counter(&root).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    let wrong = server
        .call(&me, (0, 1), "increment_counter", "{\"count\": ")
        .await
        .unwrap();
    assert!(wrong.is_error && wrong.revision == 0, "{wrong:?}");
    let again = server
        .call(&me, (0, 1), "increment_counter", "{\"count\": ")
        .await
        .unwrap();
    assert!(again.kept && again.output == wrong.output);
    let unknown = server.call(&me, (0, 2), "no\u{0}such", "").await.unwrap();
    assert!(unknown.is_error);
    assert_eq!(server.count(&me, (0, 3)).await, r#"{"count": 3}"#);
}

#[tokio::test]
async fn what_does_not_belong_is_refused_by_reason_and_applies_nothing() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::counter(&root).await;
    let (me, stranger) = (life("r", 0, 1), life("r", 0, 2));
    refused(server.add(&me, (0, 1), 1).await, Reason::EpisodeUnknown);
    refused(server.verify(&me, "{}").await, Reason::EpisodeUnknown);
    server.seed(&me).await.unwrap();
    refused(server.seed(&stranger).await, Reason::StaleExecution);
    refused(server.add(&stranger, (0, 1), 1).await, Reason::StaleExecution);
    refused(server.close(&stranger).await, Reason::StaleExecution);
    refused(server.add(&me, (0, 0), 1).await, Reason::InvalidRequest);
    server.add(&me, (0, 1), 1).await.unwrap();
    refused(server.add(&me, (0, 1), 2).await, Reason::OperationMismatch);
    server.add(&me, (2, 1), 1).await.unwrap();
    let past = refused(server.add(&me, (0, 1), 1).await, Reason::OperationPast);
    assert_eq!(past.get("rollout_id"), Some("r"));
    assert_eq!(server.count(&me, (2, 2)).await, r#"{"count": 5}"#);
}

#[tokio::test]
async fn a_task_that_does_not_fit_is_refused_by_field() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::counter(&root).await;
    let request = pb::SeedRequest {
        r#ref: life("r", 0, 1).wire(),
        task: r#"{"responses_create_params": {}, "initial_count": 1}"#.into(),
    };
    let refusal = refused(
        answer(server.client.clone().seed(request)).await,
        Reason::InvalidRequest,
    );
    assert_eq!(refusal.get("field"), Some("task"));
    assert!(refusal.message.contains("expected_count"), "{refusal}");
    assert_eq!(server.counts().await, (0, 0));
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_nothing_and_a_reissue_joins() {
    let root = tempfile::tempdir().unwrap();
    let held = Held::new();
    let server = Server::open(&root, held.clone()).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();

    let gone = server.begin_add(&me, (0, 1), 2);
    held.until("the call runs", |seen| seen.calls == 1).await;
    gone.abort();
    let _ = gone.await;
    let joined = server.begin_add(&me, (0, 1), 2);
    refused(server.add(&me, (0, 1), 9).await, Reason::OperationMismatch);
    held.release();
    let reply = done("the re-issue", joined).await.unwrap();
    assert_eq!((reply.revision, reply.kept), (1, true));
    assert_eq!(server.count(&me, (0, 2)).await, r#"{"count": 5}"#);
    let keys = held.seen().keys;
    assert_eq!(keys.len(), 2, "one application each: {keys:?}");
    assert!(
        keys[0].starts_with("r/0/1/") && keys[0].len() == "r/0/1/".len() + 64,
        "{keys:?}"
    );
}

#[tokio::test]
async fn an_environment_that_fails_in_a_call_leaves_the_session_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let held = Held::new();
    held.release();
    let server = Server::open(&root, held.clone()).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    held.fail_next();
    refused(server.add(&me, (0, 1), 2).await, Reason::Internal);
    assert_eq!(server.counts().await, (1, 0));
    assert_eq!(server.add(&me, (0, 1), 2).await.unwrap().revision, 1);
    server.control.prepared().await;
}

#[tokio::test]
async fn a_retire_stops_a_rollout_once_its_call_has_ended() {
    let root = tempfile::tempdir().unwrap();
    let held = Held::new();
    let server = Server::open(&root, held.clone()).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    let call = server.begin_add(&me, (0, 1), 2);
    held.until("the call runs", |seen| seen.calls == 1).await;

    let unfinished = server
        .control
        .retire(&me, Duration::from_millis(50))
        .await
        .unfinished;
    assert_eq!(unfinished.len(), 1, "{unfinished:?}");
    let stale = refused(server.add(&me, (0, 1), 2).await, Reason::StaleAttempt);
    assert_eq!(stale.get("next_attempt"), Some("1"));
    refused(server.control.forget(&me).await, Reason::RetireIncomplete);
    // The next attempt does not wait for the old one's tool.
    server.seed(&life("r", 1, 2)).await.unwrap();

    held.release();
    refused(done("the call", call).await, Reason::EpisodeUnknown);
    assert_eq!(server.control.retire(&me, PATIENCE).await.unfinished, []);
    assert_eq!(server.counts().await, (1, 0));
    refused(server.seed(&me).await, Reason::StaleAttempt);
    refused(server.control.forget(&me).await, Reason::RolloutLive);
    server.close(&life("r", 1, 2)).await.unwrap();
    assert_eq!(server.control.forget(&me).await, Ok(1));
    server.seed(&me).await.unwrap();
}
