//! Run, Acknowledge, GetTrajectory, Locate, Retire, Forget.

use belay_core::refusal::Reason;
use belay_mesh::{status::IntoRefusal as _, wire::ToWire as _};
use belay_proto::episode as pb;
use tempfile::TempDir;

use super::{Fakes, Server, TASK, done, episode, run};

const ALL: [&str; 6] = ["Seed", "SeedSession", "Invoke", "CloseSession", "Verify", "Close"];

fn dir() -> TempDir {
    TempDir::new().expect("a directory")
}

async fn acknowledge(server: &Server, id: &str) -> u32 {
    let request = pb::AcknowledgeRequest {
        episodes: vec![episode(id, 0).to_wire()],
    };
    let reply = server
        .client
        .clone()
        .acknowledge(request)
        .await
        .expect("it is legal");
    reply.into_inner().freed
}

#[tokio::test]
async fn an_episode_runs_its_steps_and_its_result_is_replied_until_it_is_acknowledged() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::open(&root, &fakes).await;
    let result = done("run", server.run(run("a", 0))).await.expect("it finishes");
    assert_eq!(fakes.calls(), ALL);
    assert_eq!(result.reward, 0.75);
    assert_eq!(result.verification, r#"{"why": 1e400}"#);
    assert_eq!(result.response, r#"{ "output": [] }"#);
    assert_eq!(
        (result.model_calls, result.tool_calls, result.restored),
        (2, 1, false)
    );
    assert_eq!(result.usage.expect("usage").input_tokens, 11);
    let again = done("run", server.run(run("a", 0)))
        .await
        .expect("it replies again");
    assert_eq!(again, result);
    assert_eq!(fakes.calls(), ALL, "nothing is run twice");

    let request = pb::GetTrajectoryRequest {
        episode: Some(episode("a", 0).to_wire()),
    };
    let mut rows = server
        .client
        .clone()
        .get_trajectory(request)
        .await
        .expect("rows")
        .into_inner();
    let mut turns = vec![];
    while let Some(row) = rows.message().await.expect("a row") {
        turns.push(row.row.expect("a row").operation.expect("an operation").turn);
    }
    assert_eq!(turns, [0, 1]);

    assert_eq!(
        server
            .control
            .forget("a")
            .await
            .expect_err("not acknowledged")
            .into_refusal()
            .reason,
        Reason::RolloutLive
    );
    assert_eq!(acknowledge(&server, "a").await, 1);
    assert_eq!(acknowledge(&server, "a").await, 0);
    assert!(
        fakes.calls().contains(&"EndEpisodes".to_owned()),
        "its ledger ends"
    );
    let stale = done("run", server.run(run("a", 0)))
        .await
        .expect_err("it is acknowledged");
    assert_eq!(stale.reason, Reason::StaleAttempt);
    server.control.forget("a").await.expect("it is over");
    assert_eq!(server.control.status().await.counts.values().sum::<u64>(), 0);
}

#[tokio::test]
async fn a_second_run_joins_and_a_caller_may_go_away() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::open(&root, &fakes).await;
    fakes.hold("Invoke");
    let first = server.run(run("a", 0));
    fakes.until_called("Invoke").await;
    let second = server.run(run("a", 0));
    let other_task = pb::RunRequest {
        task: r#"{"responses_create_params":{}}"#.into(),
        ..run("a", 0)
    };
    let mismatch = done("run", server.run(other_task))
        .await
        .expect_err("another task");
    assert_eq!(mismatch.reason, Reason::TaskMismatch);
    let live = done("run", server.run(run("a", 1)))
        .await
        .expect_err("two attempts");
    assert_eq!(
        (live.reason, live.get("next_attempt")),
        (Reason::AttemptLive, Some("0"))
    );
    first.abort();
    assert_eq!(server.control.status().await.roots, 1, "it outlives its caller");
    fakes.release("Invoke");
    let result = done("the second", second).await.expect("it finishes");
    assert_eq!(done("a third", server.run(run("a", 0))).await, Ok(result));
    assert_eq!(fakes.calls(), ALL);
}

#[tokio::test]
async fn what_cannot_run_starts_nothing() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::open(&root, &fakes).await;
    let cases = [
        (
            pb::RunRequest {
                environment: "chess".into(),
                ..run("a", 0)
            },
            "environment",
            "counter",
        ),
        (
            pb::RunRequest {
                environment: String::new(),
                ..run("a", 0)
            },
            "environment",
            "missing",
        ),
        (
            pb::RunRequest {
                agent: "bond".into(),
                ..run("a", 0)
            },
            "agent",
            "default",
        ),
        (
            pb::RunRequest {
                task: "[]".into(),
                ..run("a", 0)
            },
            "task",
            "object",
        ),
        (
            pb::RunRequest {
                task: "{}".into(),
                ..run("a", 0)
            },
            "task.responses_create_params",
            "missing",
        ),
        (
            pb::RunRequest {
                expect: 9,
                ..run("a", 0)
            },
            "expect",
            "none of",
        ),
        (
            pb::RunRequest {
                deadline: Some(prost_types::Duration {
                    seconds: -1,
                    nanos: 0,
                }),
                ..run("a", 0)
            },
            "deadline",
            "negative",
        ),
    ];
    for (request, field, says) in cases {
        let refusal = done("run", server.run(request)).await.expect_err(field);
        assert_eq!(
            (refusal.reason, refusal.get("field")),
            (Reason::InvalidRequest, Some(field))
        );
        assert!(refusal.message.contains(says), "{refusal}");
    }
    let bad_id = pb::RunRequest {
        episode: Some(pb::Episode {
            rollout_id: "a b".into(),
            attempt: 0,
        }),
        ..run("a", 0)
    };
    assert_eq!(
        done("run", server.run(bad_id)).await.expect_err("an id").reason,
        Reason::InvalidId
    );
    let restored = pb::RunRequest {
        expect: pb::Expect::Restored.into(),
        ..run("a", 1)
    };
    assert_eq!(
        done("run", server.run(restored)).await.expect_err("none").reason,
        Reason::NotRestored
    );
    assert_eq!(fakes.calls(), Vec::<String>::new());
    assert_eq!(server.control.status().await.roots, 0);
    assert!(TASK.contains("1e400"));
}

#[tokio::test]
async fn before_a_coordinator_has_come_nothing_is_served() {
    let root = dir();
    let server = Server::start(&root, |_| ()).await;
    let refusal = done("run", server.run(run("a", 0))).await.expect_err("joining");
    assert_eq!(refusal.reason, Reason::NotJoined);
    assert!(refusal.retry_after.is_some());
}

#[tokio::test]
async fn a_refusal_of_another_server_ends_the_attempt_by_name() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::open(&root, &fakes).await;
    fakes.refuse("Invoke", Reason::EpisodeUnknown);
    let failed = done("run", server.run(run("a", 0))).await.expect_err("it fails");
    assert_eq!(failed.reason, Reason::EpisodeUnknown);
    assert_eq!(failed.get("instance"), Some("agent/default/0"));
    assert_eq!(failed.get("step"), Some("invoke_agent"));
    assert_eq!(failed.get("rollout_id"), Some("a"));
    assert_eq!(done("again", server.run(run("a", 0))).await, Err(failed));
    let mut calls = fakes.calls().split_off(3);
    calls.sort();
    assert_eq!(
        calls,
        ["Close", "CloseSession"],
        "what it left is cleaned up, its ledger stays"
    );

    fakes.refuse("Invoke", Reason::StaleExecution);
    let next = done("the next attempt", server.run(run("a", 1))).await;
    assert_eq!(next.expect_err("it fails").reason, Reason::StaleExecution);
}

#[tokio::test]
async fn a_retired_attempt_is_stopped_and_refused_until_it_is_forgotten() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::open(&root, &fakes).await;
    // In a step that nothing counts, and in one that holds a permit.
    for (id, call) in [("a", "Invoke"), ("b", "Verify")] {
        fakes.hold(call);
        let running = server.run(run(id, 0));
        fakes.until_called(call).await;
        assert_eq!(server.control.retire(id, 0).await.unfinished, vec![]);
        let stale = done("the Run that waited", running)
            .await
            .expect_err("it is retired");
        assert_eq!(
            (stale.reason, stale.get("next_attempt")),
            (Reason::StaleAttempt, Some("1"))
        );
        let late = done("a late Run", server.run(run(id, 0)))
            .await
            .expect_err("it is retired");
        assert_eq!(late.reason, Reason::StaleAttempt);
        fakes.release(call);
        assert_eq!(server.control.status().await.roots, 0);
        server.control.forget(id).await.expect("it is over");
    }
    assert_eq!(server.control.status().await.counts.values().sum::<u64>(), 0);
    done("after forget", server.run(run("a", 0)))
        .await
        .expect("it starts over");
}

#[tokio::test]
async fn an_episode_that_runs_into_its_deadline_fails_and_frees_its_sessions() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::open(&root, &fakes).await;
    fakes.hold("Invoke");
    let short = pb::RunRequest {
        deadline: Some(prost_types::Duration {
            seconds: 0,
            nanos: 200_000_000,
        }),
        ..run("a", 0)
    };
    let late = done("run", server.run(short))
        .await
        .expect_err("it takes too long");
    assert_eq!(
        (late.reason, late.get("step")),
        (Reason::DeadlinePassed, Some("invoke_agent"))
    );
    fakes.until_called("CloseSession").await;
    fakes.until_called("Close ").await;
}

#[tokio::test]
async fn results_that_nobody_acknowledges_are_bounded_and_status_says_so() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::start(&root, |config| config.max_unacknowledged = 1).await;
    server.join(&fakes, true).await;
    done("a", server.run(run("a", 0))).await.expect("it finishes");
    let full = done("b", server.run(run("b", 0))).await.expect_err("full");
    assert_eq!(
        (full.reason, full.retry_after.is_some()),
        (Reason::AdmissionFull, true)
    );
    let warnings = server.control.status().await.warnings;
    assert!(warnings.iter().any(|w| w.contains("acknowledge")), "{warnings:?}");
    let with_batch = pb::RunRequest {
        acknowledge: vec![episode("a", 0).to_wire()],
        ..run("b", 0)
    };
    done("b", server.run(with_batch)).await.expect("there is room");
}

#[tokio::test]
async fn another_replica_is_told_what_is_held_here() {
    let (root, fakes) = (dir(), Fakes::start().await);
    let server = Server::open(&root, &fakes).await;
    done("a", server.run(run("a", 0))).await.expect("it finishes");
    for (id, held) in [("a", true), ("b", false)] {
        let request = pb::LocateRequest {
            rollout_id: id.into(),
        };
        let reply = server.client.clone().locate(request).await.expect("it answers");
        assert_eq!(reply.into_inner().held, held, "{id}");
    }
}
