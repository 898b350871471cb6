//! Prepare, Commit, Resume and Restore, with loops in flight.

use std::time::Duration;

use belay_core::refusal::Reason;
use belay_proto::{checkpoint as ck, episode as pb};
use tempfile::TempDir;

use super::{
    Fakes, Server,
    control::{PATIENCE, RESTORE, RUN, planned},
    done, episode,
    fakes::chain,
    loops::TWO_CALLS,
    me, seed,
};

const PLACES: [&str; 3] = ["agent/default/0", "resources/counter/0", "policy-model/default/0"];

fn dir() -> TempDir {
    TempDir::new().expect("a directory")
}

fn needs(part: &ck::CapturedPart) -> [ck::Need; 2] {
    [part.needs[0].need(), part.needs[1].need()]
}

#[tokio::test]
async fn waiting_for_the_model_counts_as_parked_and_its_reply_is_applied_after_resume() {
    let root = dir();
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::open(&root, &fakes).await;
    server.seed(seed(0, 1)).await.expect("seeded");
    fakes.hold("Generate");
    let running = server.invoke(0, 1);
    fakes.until_called("Generate").await;
    let prepared = server.control.prepare(PATIENCE).await;
    assert_eq!(prepared.phase(), ck::Phase::Prepared);
    assert_eq!(prepared.roots, vec![], "its root is the environment's");
    // The reply is on its way while the mesh is closed.
    fakes.release("Generate");
    let commit = server.control.commit(&[episode(0), episode(7)]).await;
    assert_eq!(commit.parts.len(), 1);
    let part = &commit.parts[0];
    assert_eq!(part.boundary, "model call (0, 0)");
    assert_eq!(part.cursor.as_ref().expect("a cursor").chain_hash.len(), 0);
    assert_eq!(needs(part), [ck::Need::Whole, ck::Need::IfBegun]);
    assert_eq!(fakes.calls(), ["Generate (0, 0)"], "closed: no tool is called");
    server.control.keep(RUN).await;
    let reply = done("invoke", running).await.expect("it goes on");
    assert_eq!((reply.model_calls, reply.tool_calls), (2, 2));
    assert_eq!(fakes.calls().len(), 4, "each call is made once");
    server.control.durable(&me()).await;
}

#[tokio::test]
async fn a_slow_tool_blocks_and_is_named_and_the_loop_parks_behind_it() {
    let root = dir();
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::open(&root, &fakes).await;
    server.seed(seed(0, 1)).await.expect("seeded");
    fakes.hold("CallTool");
    let running = server.invoke(0, 1);
    fakes.until_called("CallTool").await;
    let waits = server.control.prepare(Duration::from_millis(200)).await;
    assert_eq!(waits.phase(), ck::Phase::Preparing);
    assert_eq!(waits.blocker_count, 1);
    assert_eq!(waits.blockers[0].step, "tool add");
    assert_eq!(waits.blockers[0].episode.as_ref().expect("which").rollout_id, "r");
    fakes.release("CallTool");
    let prepared = server.control.prepare(PATIENCE).await;
    assert_eq!(prepared.phase(), ck::Phase::Prepared);
    let commit = server.control.commit(&[episode(0)]).await;
    let part = &commit.parts[0];
    assert_eq!(part.boundary, "tool get (0, 2)", "a boundary after each tool");
    let cursor = part.cursor.as_ref().expect("a cursor");
    assert_eq!((cursor.revision, cursor.chain_hash.to_vec()), (1, chain(0)));
    assert_eq!(needs(part), [ck::Need::Whole, ck::Need::Whole]);
    assert_eq!(fakes.calls().len(), 2, "the second tool waits");
    server.control.keep(RUN).await;
    done("invoke", running).await.expect("it goes on");
    assert_eq!(fakes.calls().len(), 4);
}

/// A checkpoint of a session that waits for its second model call; the request of that call.
async fn checkpointed(root: &TempDir) -> (ck::Shard, bytes::Bytes) {
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::open(root, &fakes).await;
    server.seed(seed(0, 1)).await.expect("seeded");
    fakes.hold("CallTool");
    let _running = server.invoke(0, 1);
    fakes.until_called("CallTool").await;
    fakes.hold("Generate");
    fakes.release("CallTool");
    fakes.until_called("Generate (1, 0)").await;
    server.control.prepare(PATIENCE).await;
    let commit = server.control.commit(&[episode(0)]).await;
    assert_eq!(commit.parts[0].boundary, "model call (1, 0)");
    server.control.keep(RUN).await;
    (server.control.durable(&me()).await, fakes.request(1))
}

#[tokio::test]
async fn a_restored_session_goes_on_from_its_boundary_with_the_same_request() {
    let root = dir();
    let (shard, request) = checkpointed(&root).await;
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::start(&root).await;
    server.join(&fakes, false).await;
    let plan = vec![planned(&episode(0), 1, 77, &PLACES)];
    assert_eq!(server.control.restore(shard, plan).await.staged, 1);
    server.control.keep(RESTORE).await;
    assert_eq!(fakes.calls(), Vec::<String>::new(), "nothing runs by itself");

    let late = done("a dead life", server.invoke(0, 1))
        .await
        .expect_err("it is over");
    assert_eq!(late.reason, Reason::StaleAttempt);
    let other = done("another life", server.invoke(1, 78))
        .await
        .expect_err("not this one");
    assert_eq!(other.reason, Reason::StaleExecution);
    let reply = done("invoke", server.invoke(1, 77)).await.expect("it goes on");
    let execution = uuid::Uuid::from_u128(77);
    assert_eq!(
        fakes.log(),
        [format!("Generate (1, 0) r#1 {execution}")],
        "no step is made again"
    );
    assert_eq!(fakes.request(1), request, "byte for byte");
    assert_eq!((reply.model_calls, reply.tool_calls), (2, 2));
    assert_eq!(
        reply.usage.expect("usage").input_tokens,
        20,
        "summed over both lives"
    );
}

/// What Settle drops is not held beside the next attempt, and is refused.
#[tokio::test]
async fn what_nobody_claimed_is_let_go_at_settle() {
    let root = dir();
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::open(&root, &fakes).await;
    server.seed(seed(0, 1)).await.expect("seeded");
    server.control.prepare(PATIENCE).await;
    server.control.commit(&[]).await;
    server.control.keep(RUN).await;
    server.control.durable(&me()).await;
    let settled = server.control.settle_dropping(RUN, &episode(0)).await;
    assert_eq!(settled.dropped, 1);
    assert_eq!(server.control.status().await.counts["sessions"], 0);
    let late = done("a dropped life", server.invoke(0, 1)).await;
    assert_eq!(late.expect_err("it is over").reason, Reason::StaleAttempt);
    server.seed(seed(1, 2)).await.expect("the next attempt");
}

#[tokio::test]
async fn a_session_beside_a_server_that_cannot_save_is_a_restart() {
    let root = dir();
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::open(&root, &fakes).await;
    let restart_only = pb::SeedSessionRequest {
        resources_mode: pb::CheckpointMode::RestartOnly.into(),
        ..seed(0, 1)
    };
    server.seed(restart_only).await.expect("seeded");
    fakes.hold("CallTool");
    let running = server.invoke(0, 1);
    fakes.until_called("CallTool").await;
    let prepared = server.control.prepare(PATIENCE).await;
    assert_eq!(prepared.phase(), ck::Phase::Prepared, "its tool holds up nothing");
    assert_eq!(
        prepared.restarts[0].instance.as_ref().expect("which").name,
        "counter"
    );
    server.control.commit(&[]).await;
    fakes.release("CallTool");
    server.control.keep(RUN).await;
    done("invoke", running).await.expect("it finishes");
}
