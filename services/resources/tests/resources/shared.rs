//! A soft limit leaves out a session that is in a call, unless sessions share state.

use belay_proto::checkpoint::{self as ck, Decision};
use tokio::task::JoinHandle;

use super::*;
use crate::{control::RUN, held::Held};

const SOFT: Option<Duration> = Some(Duration::from_millis(50));

type Call = JoinHandle<Result<pb::CallToolResponse, Refusal>>;

/// A server with a session that is in a call.
async fn in_a_call(root: &TempDir, held: &Held, shared: bool) -> (Server, Life, Call) {
    let server = Server::start(root, held.clone(), |config| config.shared = shared).await;
    server.control.join(true).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.expect("a reply");
    let call = server.begin_add(&me, (0, 1), 2);
    held.until("the call runs", |seen| seen.calls == 1).await;
    (server, me, call)
}

async fn waits(held: Held, shared: bool) {
    let root = tempfile::tempdir().expect("a directory");
    let (server, me, call) = in_a_call(&root, &held, shared).await;

    let preparing = server
        .control
        .prepare_softly(Duration::from_millis(500), SOFT)
        .await;
    assert_eq!(preparing.phase(), ck::Phase::Preparing, "{preparing:?}");
    assert_eq!(preparing.blockers[0].step, "tool increment_counter");
    assert_eq!(preparing.blockers[0].episode, Some(me.episode.to_wire()));
    held.release();
    done("the call", call).await.expect("a reply");

    let prepared = server.control.prepare_softly(PATIENCE, SOFT).await;
    assert_eq!(prepared.phase(), ck::Phase::Prepared, "{prepared:?}");
    assert_eq!(prepared.restarts, []);
    let commit = server.control.commit(&[&me]).await;
    assert_eq!(commit.parts[0].revision, 1, "the call is in the checkpoint");
}

#[tokio::test]
async fn a_soft_limit_waits_for_a_server_that_is_told_to_share() {
    waits(Held::new(), true).await;
}

#[tokio::test]
async fn a_soft_limit_waits_for_an_environment_that_shares() {
    waits(Held::sharing(), false).await;
}

#[tokio::test]
async fn control_a_soft_limit_leaves_out_a_session_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    let held = Held::new();
    let (server, me, call) = in_a_call(&root, &held, false).await;

    let prepared = server.control.prepare_softly(PATIENCE, SOFT).await;
    assert_eq!(prepared.phase(), ck::Phase::Prepared, "{prepared:?}");
    assert_eq!(prepared.restarts.len(), 1);
    assert_eq!(prepared.restarts[0].episode, Some(me.episode.to_wire()));
    assert!(
        prepared.restarts[0].reason.contains("tool increment_counter"),
        "{prepared:?}"
    );
    server.control.resume(RUN, Decision::Abandon).await;
    held.release();
    done("the call", call).await.unwrap();
}
