//! Prepare, Commit, Resume and Restore, with episodes in flight.

use std::time::Duration;

use belay_core::refusal::Reason;
use belay_proto::{checkpoint as ck, episode as pb};
use tempfile::TempDir;

use super::{
    Fakes, Server,
    control::{PATIENCE, RESTORE, RUN, planned},
    done, episode, me, run,
};

const PLACES: [&str; 4] = [
    "environment/default/0",
    "agent/default/0",
    "resources/counter/0",
    "policy-model/default/0",
];

fn dir() -> TempDir {
    TempDir::new().expect("a directory")
}

fn standing(commit: &ck::CommitResponse) -> Vec<(String, ck::Standing)> {
    let name = |e: &ck::PartitionEntry| {
        let episode = e.episode.as_ref().expect("an episode");
        format!("{}#{}", episode.rollout_id, episode.attempt)
    };
    commit.partition.iter().map(|e| (name(e), e.standing())).collect()
}

#[tokio::test]
async fn an_agent_at_work_is_cut_at_the_boundary_before_it_and_goes_on_afterwards() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::open(&root, &fakes).await;
    fakes.hold("Invoke");
    let a = server.run(run("a", 0));
    fakes.until_called("Invoke").await;

    let prepared = server.control.prepare(PATIENCE).await;
    assert_eq!(
        prepared.phase(),
        ck::Phase::Prepared,
        "a replay step holds up nothing"
    );
    assert_eq!(prepared.roots.len(), 1);
    let at_door = server.run(run("b", 0));
    server
        .control
        .until("b waits at the door", |s| s.at_door == 1)
        .await;
    // What the step brings waits until the mesh is open.
    fakes.release("Invoke");
    let commit = server.control.commit(&[episode("a", 0)]).await;
    assert_eq!(
        standing(&commit),
        [("a#0".to_owned(), ck::Standing::SavedRunning)]
    );
    assert_eq!(commit.at_door, 1);
    let part = &commit.parts[0];
    assert_eq!(part.boundary, "invoke_agent");
    assert!(part.root && !part.finished);
    let needs: Vec<_> = part.needs.iter().map(|n| n.need()).collect();
    assert_eq!(needs, [ck::Need::Whole, ck::Need::Whole, ck::Need::IfBegun]);
    assert_eq!(part.task_digest.len(), 32);
    server.control.keep(RUN).await;
    done("a", a).await.expect("it goes on");
    done("b", at_door).await.expect("it is admitted");
    server.control.durable(&me()).await;
    let invoked = fakes.log().iter().filter(|l| l.starts_with("Invoke a#0")).count();
    assert_eq!(invoked, 1, "the step is not made twice");
}

#[tokio::test]
async fn a_verifier_that_is_waited_for_blocks_by_name_and_one_that_replays_does_not() {
    for verify in [pb::VerifyMode::Wait, pb::VerifyMode::Replay] {
        let (root, fakes) = (dir(), Fakes::start().await);
        fakes.seed_says(pb::CheckpointMode::Exported, verify);
        let server = Server::open(&root, &fakes).await;
        fakes.hold("Verify");
        let a = server.run(run("a", 0));
        fakes.until_called("Verify").await;
        let prepared = server.control.prepare(Duration::from_millis(200)).await;
        if verify == pb::VerifyMode::Replay {
            assert_eq!(prepared.phase(), ck::Phase::Prepared);
        } else {
            assert_eq!(prepared.phase(), ck::Phase::Preparing);
            assert_eq!(prepared.blockers[0].step, "verify");
            assert_eq!(
                prepared.blockers[0].episode.as_ref().expect("which").rollout_id,
                "a"
            );
            fakes.release("Verify");
            let prepared = server.control.prepare(PATIENCE).await;
            assert_eq!(
                prepared.phase(),
                ck::Phase::Prepared,
                "it parks at its next boundary"
            );
        }
        let commit = server.control.commit(&[episode("a", 0)]).await;
        let expected = match verify {
            pb::VerifyMode::Replay => "verify",
            _ => "close_resources",
        };
        assert_eq!(commit.parts[0].boundary, expected);
        fakes.release("Verify");
        server.control.keep(RUN).await;
        done("a", a).await.expect("it goes on");
        assert_eq!(fakes.calls().iter().filter(|c| *c == "Verify").count(), 1);
    }
}

#[tokio::test]
async fn no_reply_leaves_between_capture_and_resume() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::open(&root, &fakes).await;
    done("a", server.run(run("a", 0))).await.expect("it finishes");
    server.control.prepare(PATIENCE).await;
    done("a, prepared", server.run(run("a", 0)))
        .await
        .expect("before the capture it may leave");
    let commit = server.control.commit(&[episode("a", 0)]).await;
    assert_eq!(
        standing(&commit),
        [("a#0".to_owned(), ck::Standing::SavedFinished)]
    );
    assert!(commit.parts[0].finished);
    let waiting = server.run(run("a", 0));
    // The server answers others meanwhile, so it has had the time to answer this one.
    for _ in 0..20 {
        server.control.status().await;
    }
    assert!(
        !waiting.is_finished(),
        "captured as not acknowledged: its reply may not leave"
    );
    server.control.keep(RUN).await;
    done("a, open", waiting).await.expect("it leaves");
}

#[tokio::test]
async fn an_episode_beside_a_server_that_cannot_save_is_a_restart_and_runs_on() {
    let (root, fakes) = (dir(), Fakes::start().await);
    fakes.seed_says(pb::CheckpointMode::RestartOnly, pb::VerifyMode::Wait);
    let server = Server::open(&root, &fakes).await;
    fakes.hold("Verify");
    let a = server.run(run("a", 0));
    fakes.until_called("Verify").await;
    let prepared = server.control.prepare(PATIENCE).await;
    assert_eq!(prepared.phase(), ck::Phase::Prepared, "it holds up nothing");
    assert_eq!(prepared.restarts.len(), 1);
    let commit = server.control.commit(&[]).await;
    assert_eq!(standing(&commit), [("a#0".to_owned(), ck::Standing::Restart)]);
    assert_eq!(commit.parts, vec![]);
    fakes.release("Verify");
    server.control.keep(RUN).await;
    done("a", a).await.expect("it finishes");
}

/// Two episodes in a checkpoint: `a` with its agent at work, `f` finished; `n` began after the cut.
async fn checkpointed(root: &TempDir) -> ck::Shard {
    let fakes = Fakes::start().await;
    let server = Server::open(root, &fakes).await;
    done("f", server.run(run("f", 0))).await.expect("it finishes");
    fakes.hold("Invoke");
    let _a = server.run(run("a", 0));
    fakes.until_called_times("Invoke", 2).await;
    server.control.prepare(PATIENCE).await;
    server.control.commit(&[episode("a", 0), episode("f", 0)]).await;
    server.control.keep(RUN).await;
    server.control.durable(&me()).await
}

#[tokio::test]
async fn a_restored_episode_goes_on_from_its_boundary_when_its_run_comes() {
    let root = dir();
    let shard = checkpointed(&root).await;
    let fakes = Fakes::start().await;
    let server = Server::start(&root, |_| ()).await;
    server.join(&fakes, false).await;
    let plan = vec![
        planned(&episode("a", 0), 1, 77, &PLACES),
        planned(&episode("f", 0), 1, 78, &PLACES),
    ];
    assert_eq!(server.control.restore(shard, plan).await.staged, 2);
    let expect_restored = |id| pb::RunRequest {
        expect: pb::Expect::Restored.into(),
        ..run(id, 1)
    };
    let early = server.run(expect_restored("a"));
    server
        .control
        .until("it waits for the decision", |s| s.at_door == 1)
        .await;
    fakes.hold("Invoke");
    assert_eq!(server.control.keep(RESTORE).await.activated, 2);

    let stale = done("a late attempt 0", server.run(run("a", 0)))
        .await
        .expect_err("it is over");
    assert_eq!(
        (stale.reason, stale.get("next_attempt")),
        (Reason::StaleAttempt, Some("1"))
    );
    fakes.until_called("Invoke").await;
    let joined = server.run(run("a", 1));
    fakes.release("Invoke");
    let result = done("a", early).await.expect("it goes on");
    assert_eq!(done("a, joined", joined).await.as_ref(), Ok(&result));
    assert!(result.restored);
    let execution = uuid::Uuid::from_u128(77).to_string();
    assert_eq!(result.execution, execution);
    let steps = ["Invoke", "CloseSession", "Verify", "Close"].map(|call| format!("{call} a#1 {execution}"));
    assert_eq!(fakes.log(), steps, "finished steps are not made again");

    server
        .control
        .until("f is not claimed", |s| s.unclaimed_restored == 1)
        .await;
    let other = pb::RunRequest {
        task: r#"{"responses_create_params":{}}"#.into(),
        ..expect_restored("f")
    };
    let mismatch = done("f, another task", server.run(other))
        .await
        .expect_err("another task");
    assert_eq!(mismatch.reason, Reason::TaskMismatch);
    assert_eq!(
        server.control.status().await.unclaimed_restored,
        1,
        "it is where it was"
    );
    let finished = done("f", server.run(expect_restored("f")))
        .await
        .expect("its result is there");
    assert_eq!((finished.reward, finished.restored), (0.75, true));
    assert_eq!(fakes.log(), steps, "nothing is run for it");
    assert_eq!(server.control.status().await.unclaimed_restored, 0);
}

#[tokio::test]
async fn what_was_restored_waits_until_it_is_claimed_or_a_settle_drops_it() {
    let root = dir();
    let shard = checkpointed(&root).await;
    let fakes = Fakes::start().await;
    let server = Server::start(&root, |_| ()).await;
    server.join(&fakes, false).await;
    let plan = vec![planned(&episode("a", 0), 1, 77, &PLACES)];
    assert_eq!(
        server.control.restore(shard, plan).await.staged,
        1,
        "only what is in the plan"
    );
    server.control.keep(RESTORE).await;
    let status = server.control.status().await;
    assert_eq!((status.roots, status.unclaimed_restored), (1, 1));
    assert_eq!(fakes.calls(), Vec::<String>::new(), "nothing runs by itself");

    let settled = server
        .control
        .settle_dropping("00000001-00000003", &episode("a", 1))
        .await;
    assert_eq!(settled.dropped, 1);
    assert_eq!(server.control.status().await.unclaimed_restored, 0);
    let late = done("a dropped attempt", server.run(run("a", 1))).await;
    assert_eq!(late.expect_err("it is over").reason, Reason::StaleAttempt);
}
