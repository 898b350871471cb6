//! Whole episodes that the agent owns: Run, Acknowledge, GetTrajectory, and what checkpoint, restore and retire make of them.

use std::time::Duration;

use belay_core::{
    ids::{Episode, RolloutId},
    parts::CheckpointMode,
    refusal::{Reason, Refusal},
};
use belay_mesh::{status::IntoRefusal as _, wire::ToWire as _};
use belay_proto::{checkpoint as ck, episode as pb};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::{
    Fakes, Server,
    control::{PATIENCE, RESTORE, RUN, planned},
    done, episode,
    loops::TWO_CALLS,
    me, seed,
};

const TASK: &str = r#"{"responses_create_params":{ "input": "go" },"n":1e400}"#;
/// Every call of an episode whose model calls two tools and then answers.
const ALL: [&str; 7] = [
    "Seed",
    "Generate (0, 0)",
    "CallTool (0, 1)",
    "CallTool (0, 2)",
    "Generate (1, 0)",
    "Verify",
    "Close",
];
const PLACES: [&str; 3] = ["agent/default/0", "resources/counter/0", "policy-model/default/0"];

fn dir() -> TempDir {
    TempDir::new().expect("a directory")
}

fn request(attempt: u32) -> pb::RunRequest {
    pb::RunRequest {
        episode: Some(episode(attempt).to_wire()),
        environment: "counter".into(),
        task: TASK.into(),
        ..Default::default()
    }
}

fn send(server: &Server, request: pb::RunRequest) -> JoinHandle<Result<pb::RunResponse, Refusal>> {
    let mut runs = server.runs.clone();
    tokio::spawn(async move {
        match runs.run(request).await {
            Ok(reply) => Ok(reply.into_inner()),
            Err(status) => Err(status.into_refusal()),
        }
    })
}

async fn acknowledge(server: &Server, attempt: u32) -> u32 {
    let episodes = vec![episode(attempt).to_wire()];
    let mut runs = server.runs.clone();
    let reply = runs.acknowledge(pb::AcknowledgeRequest { episodes }).await;
    reply.expect("it is legal").into_inner().freed
}

async fn counts(server: &Server) -> u64 {
    server.control.status().await.counts.values().sum()
}

#[tokio::test]
async fn an_episode_runs_from_its_seed_to_its_result_and_replies_until_it_is_acknowledged() {
    let (root, fakes) = (dir(), Fakes::start(&[TWO_CALLS]).await);
    let server = Server::open(&root, &fakes).await;
    let result = done("run", send(&server, request(0))).await.expect("it finishes");
    assert_eq!(fakes.calls(), ALL);
    assert_eq!((result.reward, result.restored), (0.75, false));
    assert_eq!((result.model_calls, result.tool_calls), (2, 2));
    assert_eq!(result.usage.expect("usage").input_tokens, 20);
    assert_eq!(result.verification, r#"{"why": 1e400}"#);
    let response: Value = serde_json::from_slice(&result.response).expect("JSON");
    assert_eq!(response["status"], "completed");
    assert_eq!(
        server.control.status().await.counts["sessions"],
        0,
        "its session is closed"
    );
    assert_eq!(
        done("again", send(&server, request(0))).await,
        Ok(result),
        "replied again"
    );
    assert_eq!(fakes.calls(), ALL, "nothing is run twice");

    let rows = pb::GetTrajectoryRequest {
        episode: Some(episode(0).to_wire()),
    };
    let mut rows = server
        .runs
        .clone()
        .get_trajectory(rows)
        .await
        .expect("rows")
        .into_inner();
    assert!(rows.message().await.expect("a row").is_some());
    assert!(rows.message().await.expect("an end").is_none());
    assert_eq!(acknowledge(&server, 0).await, 1);
    assert_eq!(
        fakes.calls().last().map(String::as_str),
        Some("EndEpisodes"),
        "its ledger ends"
    );
    let late = done("late", send(&server, request(0)))
        .await
        .expect_err("acknowledged");
    assert_eq!(late.reason, Reason::StaleAttempt);
    server.control.forget("r").await.expect("it is over");
    assert_eq!(counts(&server).await, 0);
}

#[tokio::test]
async fn a_second_run_joins_and_one_with_another_task_is_refused() {
    let (root, fakes) = (dir(), Fakes::start(&[TWO_CALLS]).await);
    let server = Server::open(&root, &fakes).await;
    fakes.hold("Generate");
    let first = send(&server, request(0));
    fakes.until_called("Generate").await;
    let second = send(&server, request(0));
    let other = pb::RunRequest {
        task: r#"{"responses_create_params":{}}"#.into(),
        ..request(0)
    };
    let mismatch = done("another task", send(&server, other))
        .await
        .expect_err("refused");
    assert_eq!(mismatch.reason, Reason::TaskMismatch);
    first.abort();
    assert_eq!(server.control.status().await.roots, 1, "it outlives its caller");
    fakes.release("Generate");
    let result = done("the second", second).await.expect("it finishes");
    assert_eq!(done("a third", send(&server, request(0))).await, Ok(result));
    assert_eq!(fakes.calls(), ALL);
}

#[tokio::test]
async fn a_run_for_another_agent_or_beside_a_session_of_the_rollout_does_not_start() {
    let (root, fakes) = (dir(), Fakes::start(&[]).await);
    let server = Server::open(&root, &fakes).await;
    let foreign = pb::RunRequest {
        agent: "careful".into(),
        ..request(0)
    };
    let refusal = done("another agent", send(&server, foreign))
        .await
        .expect_err("refused");
    assert_eq!(
        (refusal.reason, refusal.get("field")),
        (Reason::InvalidRequest, Some("agent"))
    );
    assert!(refusal.message.contains("default"), "{}", refusal.message);
    server.seed(seed(0, 1)).await.expect("an environment's session");
    for attempt in [0, 1] {
        let refusal = done("beside it", send(&server, request(attempt)))
            .await
            .expect_err("refused");
        assert_eq!(
            (refusal.reason, refusal.get("next_attempt")),
            (Reason::AttemptLive, Some("0"))
        );
    }
    assert_eq!(fakes.calls(), Vec::<String>::new());
    server.close(0, 1).await.expect("closed");
    done("alone", send(&server, request(1)))
        .await
        .expect("it finishes");
}

/// Where a checkpoint is taken: the call that is held, the step before which it stands, and what is called after the restore.
struct Cut {
    held: &'static str,
    until: &'static str,
    boundary: &'static str,
    after: &'static [&'static str],
}

const CUTS: [Cut; 4] = [
    Cut {
        held: "Seed",
        until: "Seed",
        boundary: "seed",
        after: &ALL,
    },
    Cut {
        held: "Generate",
        until: "Generate (0, 0)",
        boundary: "invoke_agent, model call (0, 0)",
        after: ALL.split_at(1).1,
    },
    Cut {
        held: "Generate",
        until: "Generate (1, 0)",
        boundary: "invoke_agent, model call (1, 0)",
        after: ALL.split_at(4).1,
    },
    Cut {
        held: "Verify",
        until: "Verify",
        boundary: "verify",
        after: ALL.split_at(5).1,
    },
];

/// Runs an episode until a call is held there, checkpoints it, and forgets the process.
async fn checkpointed(root: &TempDir, cut: &Cut) -> ck::Shard {
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::open(root, &fakes).await;
    fakes.hold("CallTool");
    if cut.until != "Generate (1, 0)" {
        fakes.hold(cut.held);
        fakes.release("CallTool");
    }
    let _running = send(&server, request(0));
    if cut.until == "Generate (1, 0)" {
        fakes.until_called("CallTool").await;
        fakes.hold(cut.held);
        fakes.release("CallTool");
    }
    fakes.until_called(cut.until).await;
    let prepared = server.control.prepare(PATIENCE).await;
    assert_eq!(
        prepared.phase(),
        ck::Phase::Prepared,
        "{}: it holds up nothing",
        cut.boundary
    );
    assert_eq!(prepared.roots.len(), 1, "it is a root, once");
    let commit = server.control.commit(&[episode(0)]).await;
    assert_eq!(commit.partition.len(), 1);
    assert_eq!(commit.partition[0].standing(), ck::Standing::SavedRunning);
    assert_eq!(commit.parts.len(), 1, "its session and the episode are one part");
    let part = &commit.parts[0];
    assert_eq!((part.boundary.as_str(), part.root), (cut.boundary, true));
    assert_eq!(part.task_digest.len(), 32);
    server.control.keep(RUN).await;
    server.control.durable(&me()).await
}

#[tokio::test]
async fn it_goes_on_from_each_boundary_after_a_restore_and_makes_no_step_again() {
    for cut in &CUTS {
        let root = dir();
        let shard = checkpointed(&root, cut).await;
        let fakes = Fakes::start(&[TWO_CALLS]).await;
        let server = Server::start(&root).await;
        server.join(&fakes, false).await;
        let plan = vec![planned(&episode(0), 1, 77, &PLACES)];
        assert_eq!(server.control.restore(shard, plan).await.staged, 1);
        server.control.keep(RESTORE).await;
        let status = server.control.status().await;
        assert_eq!(
            (status.unclaimed_restored, fakes.calls().len()),
            (1, 0),
            "nothing runs by itself"
        );
        let fresh = pb::RunRequest {
            expect: pb::Expect::Fresh.into(),
            ..request(1)
        };
        let refused = done("a fresh one", send(&server, fresh))
            .await
            .expect_err("refused");
        assert_eq!(refused.reason, Reason::AttemptLive, "{}", cut.boundary);
        let restored = pb::RunRequest {
            expect: pb::Expect::Restored.into(),
            ..request(1)
        };
        let result = done(cut.boundary, send(&server, restored))
            .await
            .expect("it goes on");
        assert_eq!((result.reward, result.restored), (0.75, true));
        assert_eq!((result.model_calls, result.tool_calls), (2, 2));
        assert_eq!(
            result.usage.expect("usage").input_tokens,
            20,
            "summed over both lives"
        );
        assert_eq!(fakes.calls(), cut.after, "{}", cut.boundary);
        let execution = uuid::Uuid::from_u128(77).to_string();
        assert!(
            fakes.log().iter().all(|line| line.ends_with(&execution)),
            "one life: {:?}",
            fakes.log()
        );
        assert_eq!(acknowledge(&server, 1).await, 1);
    }
}

#[tokio::test]
async fn a_finished_result_is_in_the_checkpoint_and_replies_to_the_next_attempt() {
    let (root, fakes) = (dir(), Fakes::start(&[TWO_CALLS]).await);
    let server = Server::open(&root, &fakes).await;
    let first = done("run", send(&server, request(0))).await.expect("it finishes");
    server.control.prepare(PATIENCE).await;
    let commit = server.control.commit(&[episode(0)]).await;
    assert_eq!(commit.partition[0].standing(), ck::Standing::SavedFinished);
    assert!(commit.parts[0].finished);
    server.control.keep(RUN).await;
    let shard = server.control.durable(&me()).await;

    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::start(&root).await;
    server.join(&fakes, false).await;
    let plan = vec![planned(&episode(0), 1, 77, &PLACES)];
    server.control.restore(shard, plan).await;
    server.control.keep(RESTORE).await;
    let again = done("run", send(&server, request(1))).await.expect("it replies");
    assert_eq!((again.reward, &again.response), (first.reward, &first.response));
    assert!(
        !fakes.calls().iter().any(|call| call.starts_with("Generate")),
        "no model call: {:?}",
        fakes.calls()
    );
}

#[tokio::test]
async fn a_retired_attempt_stops_its_episode_and_its_session() {
    let (root, fakes) = (dir(), Fakes::start(&[TWO_CALLS]).await);
    let server = Server::open(&root, &fakes).await;
    fakes.hold("CallTool");
    let running = send(&server, request(0));
    fakes.until_called("CallTool").await;
    assert_eq!(server.control.retire("r", 0).await.unfinished, vec![]);
    let stale = done("the Run that waited", running).await.expect_err("retired");
    assert_eq!(stale.reason, Reason::StaleAttempt);
    let status = server.control.status().await;
    assert_eq!(
        (status.counts["sessions"], status.counts["loops"], status.roots),
        (0, 0, 0)
    );
    fakes.release("CallTool");
    done("the next attempt", send(&server, request(1)))
        .await
        .expect("it runs");
    acknowledge(&server, 1).await;
    server.control.forget("r").await.expect("it is over");
    assert_eq!(counts(&server).await, 0);
}

/// What Settle drops is gone as an episode and as a session, and counted once.
#[tokio::test]
async fn an_unclaimed_episode_that_a_commit_left_out_is_dropped_whole() {
    let root = dir();
    let shard = checkpointed(&root, &CUTS[2]).await;
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::start(&root).await;
    server.join(&fakes, false).await;
    server
        .control
        .restore(shard, vec![planned(&episode(0), 1, 77, &PLACES)])
        .await;
    server.control.keep(RESTORE).await;
    let settled = server
        .control
        .settle_dropping("00000001-00000003", &episode(1))
        .await;
    assert_eq!(settled.dropped, 1);
    let status = server.control.status().await;
    assert_eq!((status.counts["sessions"], status.unclaimed_restored), (0, 0));
    let late = done("a dropped life", send(&server, request(1)))
        .await
        .expect_err("it is over");
    assert_eq!(late.reason, Reason::StaleAttempt);
    done("the next attempt", send(&server, request(2)))
        .await
        .expect("it runs");
}

#[tokio::test]
async fn an_agent_that_cannot_save_its_sessions_makes_its_episodes_restarts() {
    let (root, fakes) = (dir(), Fakes::start(&[TWO_CALLS]).await);
    let server = Server::start_with(&root, |config| config.mode = CheckpointMode::RestartOnly).await;
    server.join(&fakes, true).await;
    fakes.hold("CallTool");
    let running = send(&server, request(0));
    fakes.until_called("CallTool").await;
    let other = Episode::new(RolloutId::new("native").expect("an id"), 0);
    let native = pb::SeedSessionRequest {
        r#ref: Some((&other, belay_core::ids::ExecutionId(uuid::Uuid::from_u128(5))).to_wire()),
        ..seed(0, 1)
    };
    let seeded = server.seed(native).await.expect("seeded");
    assert_eq!(seeded.mode(), pb::CheckpointMode::RestartOnly);
    let prepared = server.control.prepare(PATIENCE).await;
    assert_eq!(prepared.phase(), ck::Phase::Prepared, "it holds up nothing");
    let named: Vec<_> = prepared
        .restarts
        .iter()
        .map(|restart| {
            (
                restart.episode.as_ref().expect("which").rollout_id.as_str(),
                restart.instance.as_ref().expect("whose").name.as_str(),
            )
        })
        .collect();
    assert_eq!(named, [("r", "default"), ("native", "default")]);
    let commit = server.control.commit(&[]).await;
    assert_eq!(commit.partition[0].standing(), ck::Standing::Restart);
    assert_eq!(commit.parts, vec![]);
    fakes.release("CallTool");
    server.control.keep(RUN).await;
    done("run", running).await.expect("it runs on");
}

#[tokio::test]
async fn a_deadline_ends_the_episode_and_its_session() {
    let (root, fakes) = (dir(), Fakes::start(&[TWO_CALLS]).await);
    let server = Server::open(&root, &fakes).await;
    fakes.hold("Generate");
    let hurried = pb::RunRequest {
        deadline: Some(Duration::from_millis(100).try_into().expect("a duration")),
        ..request(0)
    };
    let late = done("run", send(&server, hurried))
        .await
        .expect_err("it is too slow");
    assert_eq!(late.reason, Reason::DeadlinePassed);
    server
        .control
        .until("its session is closed", |status| status.counts["sessions"] == 0)
        .await;
    fakes.until_called("Close").await;
}
