//! Checkpoint and restore: what waits, what is saved, and what a fresh server has of it.

use belay_core::{parts::CheckpointMode, refusal::Reason};
use belay_proto::checkpoint::{self as ck, Decision};
use belay_resources::environments::{Counter, Weather};

use super::*;
use crate::{
    control::{RESTORE, RUN},
    held::Held,
};

#[tokio::test]
async fn a_closed_mesh_makes_calls_wait_and_refuses_none() {
    let root = tempfile::tempdir().unwrap();
    let held = Held::new();
    let server = Server::open(&root, held.clone()).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    let running = server.begin_add(&me, (0, 1), 2);
    held.until("the call runs", |seen| seen.calls == 1).await;

    let preparing = server.control.prepare(Duration::from_millis(50)).await;
    assert_eq!(preparing.phase(), ck::Phase::Preparing);
    assert_eq!(preparing.blockers[0].step, "tool increment_counter");
    assert_eq!(preparing.blockers[0].episode, Some(me.episode.to_wire()));
    held.release();
    done("the call that was in flight", running).await.unwrap();
    server.control.prepared().await;

    let waiting = server.begin_add(&me, (0, 2), 5);
    let kept = server.begin_add(&me, (0, 1), 2);
    server
        .control
        .until("both wait", |status| status.at_door == 2)
        .await;
    let commit = server.control.commit(&[&me, &life("elsewhere", 0, 9)]).await;
    assert_eq!(commit.parts.len(), 1);
    assert_eq!((commit.parts[0].revision, commit.at_door), (1, 2));
    assert!(!waiting.is_finished());
    server.control.resume(RUN, Decision::Keep).await;
    assert!(done("the kept reply", kept).await.unwrap().kept);
    assert_eq!(done("the call at the door", waiting).await.unwrap().revision, 2);
    assert_eq!(held.seen().calls, 2);
}

/// Seeds, adds 2 as (0, 1) and checkpoints; then adds 7, which is not in the checkpoint.
async fn saved<E: Environment>(root: &TempDir, environment: E, me: &Life) -> ck::Shard {
    let server = Server::open(root, environment).await;
    server.seed(me).await.expect("a reply");
    server.add(me, (0, 1), 2).await.expect("a reply");
    server.control.prepared().await;
    server.control.commit(&[me]).await;
    server.control.resume(RUN, Decision::Keep).await;
    let shard = server.control.durable().await;
    server.add(me, (0, 2), 7).await.expect("a reply");
    shard
}

#[tokio::test]
async fn a_fresh_server_goes_on_from_the_number_and_the_kept_replies() {
    let root = tempfile::tempdir().unwrap();
    let (me, next) = (life("r", 0, 1), life("r", 1, 2));
    let shard = saved(&root, Counter, &me).await;

    let server = Server::start(&root, Counter, |_| ()).await;
    let restored = server.control.restore(shard, &me, &next).await.unwrap();
    assert_eq!(restored.staged, 1);
    let early = server.begin_add(&next, (0, 1), 2);
    server
        .control
        .until("it waits", |status| status.at_door == 1)
        .await;
    server.control.resume(RESTORE, Decision::Keep).await;

    let again = done("the call at the door", early).await.unwrap();
    assert_eq!(
        (again.kept, again.revision),
        (true, 1),
        "applied before the checkpoint"
    );
    refused(server.add(&next, (0, 1), 3).await, Reason::OperationMismatch);
    assert_eq!(server.count(&next, (0, 2)).await, r#"{"count": 5}"#);
    server.add(&next, (1, 1), 1).await.unwrap();
    assert_eq!(server.verify(&next, "{}").await.unwrap().reward, 1.0);
    let stale = refused(server.add(&me, (0, 2), 7).await, Reason::StaleAttempt);
    assert_eq!(stale.get("next_attempt"), Some("1"));
    refused(
        server.add(&life("r", 1, 1), (1, 2), 7).await,
        Reason::StaleExecution,
    );
}

#[tokio::test]
async fn control_a_fresh_server_without_a_restore_knows_nothing() {
    let root = tempfile::tempdir().unwrap();
    let me = life("r", 0, 1);
    saved(&root, Counter, &me).await;
    let server = Server::counter(&root).await;
    refused(server.add(&me, (0, 2), 7).await, Reason::EpisodeUnknown);
    refused(server.verify(&me, "{}").await, Reason::EpisodeUnknown);
}

#[tokio::test]
async fn control_a_session_that_is_seeded_anew_gets_another_reward() {
    let root = tempfile::tempdir().unwrap();
    let (me, next) = (life("r", 0, 1), life("r", 1, 2));
    let shard = saved(&root, Counter, &me).await;
    let server = Server::start(&root, Counter, |config| config.restore_seeds_anew = true).await;
    server.control.restore(shard, &me, &next).await.unwrap();
    server.control.resume(RESTORE, Decision::Keep).await;
    server.add(&next, (1, 1), 1).await.unwrap();
    assert_eq!(server.verify(&next, "{}").await.unwrap().reward, 0.0);
}

#[tokio::test]
async fn a_restore_beside_the_living_replaces_the_lower_attempt() {
    let root = tempfile::tempdir().unwrap();
    let (me, next) = (life("r", 0, 1), life("r", 1, 2));
    let held = Held::new();
    held.release();
    let server = Server::open(&root, held.clone()).await;
    let other = life("other", 0, 3);
    server.seed(&me).await.unwrap();
    server.seed(&other).await.unwrap();
    server.add(&me, (0, 1), 2).await.unwrap();
    server.control.prepared().await;
    server.control.commit(&[&me]).await;
    server.control.resume(RUN, Decision::Keep).await;
    let shard = server.control.durable().await;
    server.control.settle().await;
    server.add(&me, (0, 2), 7).await.unwrap();

    server.control.restore(shard, &me, &next).await.unwrap();
    server.add(&me, (0, 3), 7).await.unwrap();
    server.control.resume(RESTORE, Decision::Keep).await;
    refused(server.add(&me, (0, 4), 7).await, Reason::StaleAttempt);
    assert_eq!(server.count(&next, (0, 2)).await, r#"{"count": 5}"#);
    assert_eq!(server.count(&other, (0, 1)).await, r#"{"count": 3}"#);
    assert_eq!(server.counts().await, (2, 0));
}

/// What Settle drops is not held beside the next attempt, and is refused.
#[tokio::test]
async fn what_nobody_claimed_is_let_go_at_settle() {
    let root = tempfile::tempdir().unwrap();
    let (left, next) = (life("left", 0, 1), life("left", 1, 2));
    let server = Server::counter(&root).await;
    server.seed(&left).await.unwrap();
    server.control.prepared().await;
    server.control.commit(&[]).await;
    server.control.resume(RUN, Decision::Keep).await;
    server.control.durable().await;
    server.control.settle_dropping(&[&left]).await;
    assert_eq!(server.counts().await, (0, 0));
    refused(server.add(&left, (0, 1), 1).await, Reason::StaleAttempt);
    server.seed(&next).await.unwrap();
}

#[tokio::test]
async fn a_restore_that_is_abandoned_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (me, next) = (life("r", 0, 1), life("r", 1, 2));
    let shard = saved(&root, Counter, &me).await;
    let server = Server::start(&root, Counter, |_| ()).await;
    server.control.restore(shard, &me, &next).await.unwrap();
    server.control.resume(RESTORE, Decision::Abandon).await;
    server.control.join(true).await;
    refused(server.add(&next, (0, 1), 2).await, Reason::EpisodeUnknown);
    assert_eq!(server.counts().await, (0, 0));
}

#[tokio::test]
async fn another_environments_record_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let (me, next) = (life("r", 0, 1), life("r", 1, 2));
    let shard = saved(&root, Counter, &me).await;
    let server = Server::start(&root, Weather, |_| ()).await;
    let refusal = refused(
        server.control.restore(shard, &me, &next).await,
        Reason::InvalidCheckpoint,
    );
    assert!(refusal.message.contains("weather"), "{refusal}");
}

#[tokio::test]
async fn a_stateless_server_saves_the_kept_replies() {
    let root = tempfile::tempdir().unwrap();
    let (me, next) = (life("r", 0, 1), life("r", 1, 2));
    let weather = r#"{"city": "\ud800"}"#;
    let shard = {
        let server = Server::open(&root, Weather).await;
        assert_eq!(
            server.seed(&me).await.unwrap().mode(),
            pb::CheckpointMode::Stateless
        );
        server.call(&me, (4, 1), "get_weather", weather).await.unwrap();
        server.control.prepared().await;
        server.control.commit(&[&me]).await;
        server.control.resume(RUN, Decision::Keep).await;
        server.control.durable().await
    };
    let server = Server::start(&root, Weather, |_| ()).await;
    server.control.restore(shard, &me, &next).await.unwrap();
    server.control.resume(RESTORE, Decision::Keep).await;
    let kept = server.call(&next, (4, 1), "get_weather", weather).await.unwrap();
    assert!(kept.kept);
    assert_eq!(
        &kept.output[..],
        br#"{"city": "\ud800", "weather_description": "The weather in \ud800 is cold."}"#
    );
    refused(
        server.call(&next, (3, 1), "get_weather", weather).await,
        Reason::OperationPast,
    );
}

#[tokio::test]
async fn a_restart_only_server_lists_its_sessions_saves_none_and_holds_nothing_up() {
    let root = tempfile::tempdir().unwrap();
    let held = Held::new();
    let server = Server::start(&root, held.clone(), |config| {
        config.mode = Some(CheckpointMode::RestartOnly);
    })
    .await;
    server.control.join(true).await;
    let me = life("r", 0, 1);
    assert_eq!(
        server.seed(&me).await.unwrap().mode(),
        pb::CheckpointMode::RestartOnly
    );
    let call = server.begin_add(&me, (0, 1), 2);
    held.until("the call runs", |seen| seen.calls == 1).await;

    let prepared = server.control.prepared().await;
    assert_eq!(prepared.restarts.len(), 1);
    assert_eq!(prepared.restarts[0].episode, Some(me.episode.to_wire()));
    assert!(
        prepared.restarts[0].reason.contains("restart_only"),
        "{prepared:?}"
    );
    assert_eq!(server.control.commit(&[]).await.parts, []);
    held.release();
    assert_eq!(done("the call", call).await.unwrap().revision, 1);
    server.control.resume(RUN, Decision::Keep).await;
    assert_eq!(server.count(&me, (0, 2)).await, r#"{"count": 5}"#);
}
