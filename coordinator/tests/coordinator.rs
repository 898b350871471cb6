//! The coordinator against real participants with toy owners: checkpoints, restores, crashes of everybody at every stage.

#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use belay_core::refusal::Reason;
use belay_mesh::status::from_status;
use belay_proto::checkpoint as pb;
use belay_store::{Decided, testing::Op};

use support::*;

fn all() -> pb::CheckpointRequest {
    pb::CheckpointRequest::default()
}

fn newest() -> pb::CoordinatorRestoreRequest {
    pb::CoordinatorRestoreRequest::default()
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn millis(millis: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: 0,
        nanos: millis * 1_000_000,
    })
}

/// The condition comes to hold.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} does not come");
}

fn is_tombstone(mesh: &Mesh, id: &str) -> bool {
    matches!(
        mesh.store().decided(id.parse().unwrap()).unwrap(),
        Some(Decided::Tombstone { .. })
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_restores_into_fresh_servers_again_and_again() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.seed("b");
    let story = mesh.checkpoint(all()).await;
    assert_eq!(
        story.stages,
        [
            "prepare", "prepare", "prepare", "prepare", "commit", "commit", "commit", "closure", "resume",
            "resume", "resume", "resume", "resume", "await", "publish", "publish", "settle"
        ]
    );
    assert_eq!(story.partition.len(), 2);
    assert!(
        story
            .partition
            .iter()
            .all(|e| e.standing() == pb::Standing::SavedRunning)
    );
    let (id, published) = story.published();
    assert_eq!((published.episodes, published.restarts), (2, 0));
    assert!(published.stall.is_some() && published.path.ends_with(&id));
    assert_eq!(mesh.run_state(&id).await, pb::RunState::Published);
    mesh.all_in(pb::Phase::Idle).await;
    assert_eq!(
        mesh.held(ENV),
        [episode("a", 0), episode("b", 0)],
        "the living go on"
    );

    for attempt in 1..=3 {
        mesh.restart_all().await;
        until("the mesh to wait for a restore", async || {
            mesh.coordinator_status().await.waits_for_restore
        })
        .await;
        mesh.all_in(pb::Phase::Joining).await;
        let story = mesh.restore(newest()).await.restored();
        assert_eq!(mesh.run_state(&story.id).await, pb::RunState::Restored);
        assert!(story.plan.iter().all(|e| e.attempt == attempt));
        for name in ALL {
            assert_eq!(
                mesh.held(name),
                [episode("a", attempt), episode("b", attempt)],
                "{name}"
            );
        }
        mesh.all_in(pb::Phase::Idle).await;
        let status = mesh.status(ENV).await.unwrap();
        assert_eq!(status.marks, 2, "what the restore superseded is refused");
    }
    assert!(!mesh.coordinator_status().await.waits_for_restore);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_and_fewer_replicas_take_over_what_was_saved() {
    const SECOND: &str = "resources/counter/1";
    let mut mesh = Mesh::new(&[ENV, AGENT, RES, POLICY, SECOND]).await;
    mesh.start_coordinator().await;
    mesh.all_in(pb::Phase::Idle).await;
    for n in 0..12 {
        mesh.seed(&format!("r{n}"));
    }
    mesh.checkpoint(all()).await.published();
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    mesh.restore(newest()).await.restored();
    let (first, second) = (mesh.held(RES).len(), mesh.held(SECOND).len());
    assert_eq!(first + second, 12);
    assert!(first > 0 && second > 0, "{first} and {second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocker_is_named_and_the_mesh_opens_again() {
    let mut mesh = Mesh::open().await;
    let episode = mesh.seed("slow");
    let permit = mesh.servers[RES].gate.enter(&episode, "verify").await.unwrap();
    let story = mesh
        .checkpoint(pb::CheckpointRequest {
            timeout: seconds(3),
            ..all()
        })
        .await;
    assert!(
        story.waiting.iter().any(|w| w.blocker_count == 1),
        "blockers are told as they age: {story:#?}"
    );
    let (id, abandoned) = story.abandoned();
    assert_eq!(
        (abandoned.reason.as_str(), abandoned.stage.as_str()),
        ("DEADLINE_PASSED", "prepare")
    );
    for name in [RES, "slow", "verify"] {
        assert!(abandoned.message.contains(name), "{}", abandoned.message);
    }
    assert_eq!(abandoned.blockers[0].step, "verify");
    mesh.all_in(pb::Phase::Idle).await;
    assert_eq!(mesh.run_state(&id).await, pb::RunState::Abandoned);
    drop(permit);
    mesh.checkpoint(all()).await.published();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_lost_a_part_is_a_restart_that_names_it() {
    let mut mesh = Mesh::open().await;
    mesh.seed("whole");
    let torn = mesh.seed("torn");
    mesh.servers[AGENT].toy.parts().remove(&torn);
    let story = mesh.checkpoint(all()).await;
    assert_eq!(story.restarts.len(), 1);
    assert_eq!(story.restarts[0].episode.as_ref().unwrap().rollout_id, "torn");
    assert!(
        story.restarts[0].reason.contains("session"),
        "{}",
        story.restarts[0].reason
    );
    let (_, published) = story.published();
    assert_eq!((published.episodes, published.restarts), (1, 1));
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    let story = mesh.restore(newest()).await.restored();
    assert_eq!(story.plan.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_participant_killed_before_its_capture_is_durable_abandons_the_checkpoint() {
    let mut mesh = Mesh::open().await;
    let episode = mesh.seed("a");
    // Before any KEEP: no tombstone is needed.
    let permit = mesh.servers[RES].gate.enter(&episode, "tool").await.unwrap();
    let stream = mesh.client().checkpoint(all()).await.unwrap().into_inner();
    until("prepare to reach the resources", async || {
        mesh.status(RES)
            .await
            .is_some_and(|s| s.phase() == pb::Phase::Preparing)
    })
    .await;
    mesh.kill(RES);
    drop(permit);
    let (id, abandoned) = CheckpointStory::read(stream).await.abandoned();
    assert_eq!(abandoned.reason, "PEER_UNREACHABLE");
    assert!(abandoned.message.contains(RES), "{}", abandoned.message);
    assert!(mesh.store().decided(id.parse().unwrap()).unwrap().is_none());
    mesh.restart(RES).await;
    mesh.all_in(pb::Phase::Idle).await;

    // After KEEP, while the record is being written: the tombstone comes first.
    let episode = mesh.seed("b");
    mesh.servers[RES]
        .toy
        .slow_disk
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let stream = mesh.client().checkpoint(all()).await.unwrap().into_inner();
    until("the resources to open again", async || {
        mesh.status(RES)
            .await
            .is_some_and(|s| s.unsettled.is_some() && s.phase() == pb::Phase::Idle)
    })
    .await;
    mesh.kill(RES);
    mesh.restart(RES).await;
    let (id, abandoned) = CheckpointStory::read(stream).await.abandoned();
    assert!(
        ["OTHER_INCARNATION", "PEER_UNREACHABLE"].contains(&abandoned.reason.as_str()),
        "{abandoned:?}"
    );
    assert!(is_tombstone(&mesh, &id));
    assert!(mesh.held(ENV).contains(&episode));
    mesh.all_in(pb::Phase::Idle).await;
    mesh.checkpoint(all()).await.published();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_fails_after_keep_leaves_a_tombstone_and_the_next_checkpoint_works() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.disk
        .fail_all(Op::SyncFile, rustix::io::Errno::NOSPC.raw_os_error());
    let (id, abandoned) = mesh.checkpoint(all()).await.abandoned();
    assert_eq!(
        (abandoned.reason.as_str(), abandoned.stage.as_str()),
        ("STORAGE_FULL", "await")
    );
    assert!(is_tombstone(&mesh, &id));
    assert_eq!(mesh.run_state(&id).await, pb::RunState::Abandoned);
    mesh.all_in(pb::Phase::Idle).await;
    mesh.disk.heal();
    let (next, _) = mesh.checkpoint(all()).await.published();
    assert_ne!(next, id);
    let left: Vec<_> = std::fs::read_dir(mesh.store().checkpoint_dir(id.parse().unwrap()))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["checkpoint.json"], "only the tombstone stays");
    assert!(is_tombstone(&mesh, &id));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tombstone_that_the_root_cannot_take_is_owed_and_linked_later() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.coordinator_disk
        .fail_all(Op::Link, rustix::io::Errno::ROFS.raw_os_error());
    let (id, abandoned) = mesh.checkpoint(all()).await.abandoned();
    assert_eq!(
        (abandoned.reason.as_str(), abandoned.stage.as_str()),
        ("STORAGE_READONLY", "publish")
    );
    mesh.all_in(pb::Phase::Idle).await;
    assert!(
        mesh.coordinator_status()
            .await
            .warnings
            .iter()
            .any(|w| w.contains("owed"))
    );
    assert_eq!(mesh.run_state(&id).await, pb::RunState::Abandoned);
    mesh.coordinator_disk.heal();
    until("the tombstone", async || is_tombstone(&mesh, &id)).await;
    mesh.checkpoint(all()).await.published();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unwritable_root_refuses_a_checkpoint_with_the_mesh_untouched() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.coordinator_disk
        .fail_all(Op::Create, rustix::io::Errno::ACCESS.raw_os_error());
    let status = mesh.client().checkpoint(all()).await.unwrap_err();
    let refusal = from_status(&status).unwrap();
    assert_eq!(refusal.reason, Reason::StorageDenied);
    assert!(
        refusal.message.contains(&mesh.root().display().to_string()),
        "{}",
        refusal.message
    );
    assert!(mesh.coordinator_status().await.open_run.is_empty());
    mesh.coordinator_disk.heal();
    mesh.checkpoint(all()).await.published();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_checkpoint_takes_the_controllers_state_or_is_aborted() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    let hold = pb::CheckpointRequest { hold: true, ..all() };
    let held = async |mesh: &Mesh| {
        let mut stream = mesh.client().checkpoint(hold.clone()).await.unwrap().into_inner();
        loop {
            let message = stream.message().await.unwrap().expect("it is held");
            if matches!(message.event, Some(pb::checkpoint_response::Event::Held(_))) {
                return (stream, message.checkpoint_id);
            }
        }
    };
    let (stream, checkpoint_id) = held(&mesh).await;
    assert_eq!(mesh.status(ENV).await.unwrap().phase(), pb::Phase::Committed);
    let busy = mesh.client().checkpoint(all()).await.unwrap_err();
    assert_eq!(from_status(&busy).unwrap().reason, Reason::CheckpointConflict);
    let request = pb::PublishRequest {
        checkpoint_id,
        controller_state: b"steps: 7".as_slice().into(),
    };
    let reply = mesh.client().publish(request).await.unwrap().into_inner();
    assert_eq!(reply.published.unwrap().episodes, 1);
    CheckpointStory::read(stream).await.published();
    let state = mesh
        .client()
        .get_controller_state(pb::GetControllerStateRequest::default())
        .await
        .unwrap();
    assert_eq!(state.into_inner().controller_state, b"steps: 7".as_slice());

    let (stream, checkpoint_id) = held(&mesh).await;
    mesh.client()
        .abort(pb::AbortRequest { checkpoint_id })
        .await
        .unwrap();
    let (_, abandoned) = CheckpointStory::read(stream).await.abandoned();
    assert_eq!(abandoned.stage, "hold");
    mesh.all_in(pb::Phase::Idle).await;

    let (stream, id) = held(&mesh).await;
    drop(stream);
    mesh.all_in(pb::Phase::Idle).await;
    until("the run to end", async || {
        mesh.run_state(&id).await == pb::RunState::Abandoned
    })
    .await;

    let short = pb::CheckpointRequest {
        hold_timeout: millis(50),
        ..hold.clone()
    };
    let (_, abandoned) = mesh.checkpoint(short).await.abandoned();
    assert!(
        abandoned.message.contains("hold timeout"),
        "{}",
        abandoned.message
    );
    mesh.all_in(pb::Phase::Idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_attempt_is_refused_after_every_crash_until_it_is_forgotten() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.seed("b");
    mesh.checkpoint(all()).await.published();
    let status = mesh
        .client()
        .forget(pb::CoordinatorForgetRequest {
            rollout_ids: vec!["a".into()],
        })
        .await;
    assert_eq!(
        from_status(&status.unwrap_err()).unwrap().reason,
        Reason::RolloutLive
    );
    let retired = mesh.retire("a", 0).await;
    assert_eq!((retired.next[0].attempt, retired.unfinished.len()), (1, 0));
    for name in ALL {
        assert_eq!(mesh.held(name), [episode("b", 0)], "{name}");
    }
    mesh.restart_all().await;
    mesh.kill_coordinator();
    mesh.start_coordinator().await;
    mesh.all_in(pb::Phase::Joining).await;
    let story = mesh.restore(newest()).await.restored();
    assert_eq!(story.retired, ["a"]);
    assert_eq!(story.plan.len(), 1);
    for name in ALL {
        let refusal = mesh.servers[name]
            .gate
            .check_mark(&episode("a", 0))
            .expect_err("refused");
        assert_eq!(refusal.reason, Reason::StaleAttempt, "{name}");
        assert!(
            mesh.servers[name].gate.check_mark(&episode("a", 1)).is_ok(),
            "{name}"
        );
    }
    let forgotten = mesh
        .client()
        .forget(pb::CoordinatorForgetRequest {
            rollout_ids: vec!["a".into()],
        })
        .await
        .unwrap();
    assert_eq!(forgotten.into_inner().forgotten, 1);
    for name in ALL {
        assert!(
            mesh.servers[name].gate.check_mark(&episode("a", 0)).is_ok(),
            "{name}"
        );
    }
    // Forgotten is over: an old checkpoint does not bring it back.
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    let story = mesh.restore(newest()).await.restored();
    assert_eq!(story.retired, ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retire_that_a_server_missed_reaches_it_when_it_is_back() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.kill(RES);
    let retired = mesh.retire("a", 0).await;
    assert_eq!(retired.next[0].attempt, 1);
    assert_eq!(mesh.coordinator_status().await.unfinished_retires, 1);
    mesh.restart(RES).await;
    until("the retire to be complete", async || {
        mesh.coordinator_status().await.unfinished_retires == 0
    })
    .await;
    assert!(mesh.servers[RES].gate.check_mark(&episode("a", 0)).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mesh_without_a_checkpoint_opens_by_itself_and_one_with_opens_by_word() {
    let mut mesh = Mesh::open().await;
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Idle).await;
    mesh.seed("a");
    mesh.checkpoint(all()).await.published();
    // One that comes back alone is opened: the others live on.
    mesh.kill(AGENT);
    mesh.restart(AGENT).await;
    mesh.all_in(pb::Phase::Idle).await;
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    let refused = mesh.client().checkpoint(all()).await.unwrap_err();
    assert!(
        from_status(&refused).unwrap().message.contains("belay restore"),
        "{refused}"
    );
    let opened = mesh.client().open(pb::OpenRequest {}).await.unwrap().into_inner();
    assert_eq!(opened.opened, 4);
    mesh.all_in(pb::Phase::Idle).await;
    assert!(mesh.held(ENV).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_is_not_there_or_damaged_is_refused_by_name() {
    let mut mesh = Mesh::open().await;
    let refused = mesh.client().restore(newest()).await.unwrap_err();
    let refusal = from_status(&refused).unwrap();
    assert_eq!(refusal.reason, Reason::InvalidCheckpoint);
    assert!(
        refusal.message.contains("belay checkpoint"),
        "{}",
        refusal.message
    );
    mesh.seed("a");
    let (good, _) = mesh.checkpoint(all()).await.published();
    let (bad, _) = mesh.checkpoint(all()).await.published();
    let unknown = pb::CoordinatorRestoreRequest {
        checkpoint_id: "00000001-00000099".into(),
        ..newest()
    };
    let refusal = from_status(&mesh.client().restore(unknown).await.unwrap_err()).unwrap();
    assert!(
        refusal.message.contains("00000001-00000099") && refusal.message.contains(&bad),
        "{}",
        refusal.message
    );

    let manifest = mesh
        .store()
        .checkpoint_dir(bad.parse().unwrap())
        .join("agent/default/0/manifest.json");
    std::fs::write(&manifest, b"{}").unwrap();
    let refusal = from_status(&mesh.client().restore(newest()).await.unwrap_err()).unwrap();
    assert_eq!(refusal.reason, Reason::InvalidCheckpoint);
    assert!(
        refusal.message.contains("agent/default/0") && refusal.message.contains(&good),
        "{}",
        refusal.message
    );
    let previous = pb::CoordinatorRestoreRequest {
        previous: true,
        ..newest()
    };
    let story = mesh.restore(previous).await.restored();
    assert_eq!(story.restored.unwrap().source, good);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_killed_while_it_waits_leaves_an_open_mesh() {
    let mut mesh = Mesh::open().await;
    let blocked = mesh.seed("a");
    let hold = pb::CheckpointRequest { hold: true, ..all() };
    for stage in ["prepare", "hold", "await"] {
        let mut permit = None;
        let request = match stage {
            "prepare" => {
                permit = Some(mesh.servers[RES].gate.enter(&blocked, "tool").await.unwrap());
                all()
            }
            "hold" => hold.clone(),
            _ => {
                mesh.servers[RES]
                    .toy
                    .slow_disk
                    .store(true, std::sync::atomic::Ordering::Relaxed);
                all()
            }
        };
        let mut stream = mesh.client().checkpoint(request).await.unwrap().into_inner();
        let id = stream.message().await.unwrap().unwrap().checkpoint_id;
        until(stage, async || {
            let status = mesh.status(RES).await.unwrap();
            match stage {
                "prepare" => status.phase() == pb::Phase::Preparing,
                "hold" => status.phase() == pb::Phase::Committed,
                _ => status.phase() == pb::Phase::Idle && status.unsettled.is_some(),
            }
        })
        .await;
        mesh.kill_coordinator();
        mesh.start_coordinator().await;
        mesh.all_in(pb::Phase::Idle).await;
        drop(permit);
        assert!(is_tombstone(&mesh, &id), "{stage}");
        assert_eq!(mesh.run_state(&id).await, pb::RunState::Abandoned, "{stage}");
        mesh.servers[RES]
            .toy
            .slow_disk
            .store(false, std::sync::atomic::Ordering::Relaxed);
        mesh.checkpoint(all()).await.published();
    }
}

/// Killed at any moment of a checkpoint: the mesh opens, and the run is published whole or abandoned for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_killed_at_any_moment_of_a_checkpoint_recovers() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    let (mut published, mut abandoned) = (0, 0);
    for round in 0..12u64 {
        let mut stream = mesh.client().checkpoint(all()).await.unwrap().into_inner();
        // After so many messages of the stream: each ends at another stage.
        let mut id = String::new();
        for _ in 0..=(round * 3 / 2) {
            match stream.message().await {
                Ok(Some(message)) => id = message.checkpoint_id,
                _ => break,
            }
        }
        mesh.kill_coordinator();
        mesh.start_coordinator().await;
        mesh.all_in(pb::Phase::Idle).await;
        match mesh.run_state(&id).await {
            pb::RunState::Published => {
                published += 1;
                assert!(
                    mesh.store().verify(id.parse().unwrap()).unwrap().is_some(),
                    "{id} is whole"
                );
            }
            pb::RunState::Abandoned => {
                abandoned += 1;
                assert!(is_tombstone(&mesh, &id));
            }
            other => panic!("{id} is {other:?}"),
        }
    }
    println!("{published} published, {abandoned} abandoned");
    assert!(published > 0 && abandoned > 0);
    mesh.checkpoint(all()).await.published();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_is_abandoned_before_its_decision_and_completed_after_it() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.checkpoint(all()).await.published();

    // Killed while one server stages: nothing was live, and nothing stays staged.
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let stream = mesh.client().restore(newest()).await.unwrap().into_inner();
    until("the others to be staged", async || {
        mesh.status(RES).await.unwrap().phase() == pb::Phase::Restored
    })
    .await;
    mesh.kill_coordinator();
    drop(stream);
    mesh.start_coordinator().await;
    mesh.all_in(pb::Phase::Joining).await;
    assert!(mesh.held(RES).is_empty());
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(false, std::sync::atomic::Ordering::Relaxed);

    // Decided, and one server dies before it opens: the next coordinator stages it again, and completes.
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let stream = mesh.client().restore(newest()).await.unwrap().into_inner();
    until("the environment to be staged", async || {
        mesh.status(ENV).await.unwrap().phase() == pb::Phase::Restored
    })
    .await;
    mesh.kill(ENV);
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(false, std::sync::atomic::Ordering::Relaxed);
    until("the agent to open", async || {
        mesh.status(AGENT).await.unwrap().phase() == pb::Phase::Idle
    })
    .await;
    mesh.kill_coordinator();
    drop(stream);
    mesh.restart(ENV).await;
    mesh.start_coordinator().await;
    mesh.all_in(pb::Phase::Idle).await;
    // The first restore handed out attempt 1, the second 2.
    for name in ALL {
        assert_eq!(mesh.held(name), [episode("a", 2)], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_in_doubt_says_who_is_missing_and_goes_on() {
    let mut mesh = Mesh::new(&ALL).await;
    mesh.restore_timeout = Duration::from_millis(300);
    mesh.start_coordinator().await;
    mesh.all_in(pb::Phase::Idle).await;
    mesh.seed("a");
    mesh.checkpoint(all()).await.published();
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let stream = mesh.client().restore(newest()).await.unwrap().into_inner();
    let told = tokio::spawn(RestoreStory::read(stream));
    until("the environment to be staged", async || {
        mesh.status(ENV).await.unwrap().phase() == pb::Phase::Restored
    })
    .await;
    mesh.kill(ENV);
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(false, std::sync::atomic::Ordering::Relaxed);
    until("the doubt", async || {
        let run = mesh.coordinator_status().await.open_run;
        !run.is_empty() && mesh.run_state(&run).await == pb::RunState::InDoubt
    })
    .await;
    let run = mesh.coordinator_status().await.open_run;
    let late = mesh
        .client()
        .abort(pb::AbortRequest { checkpoint_id: run })
        .await
        .unwrap_err();
    assert_eq!(
        from_status(&late).unwrap().reason,
        Reason::InvalidPhase,
        "an agent has opened"
    );
    mesh.restart(ENV).await;
    let story = told.await.unwrap().restored();
    assert_eq!(story.in_doubt[0].instances[0].name, "default");
    mesh.all_in(pb::Phase::Idle).await;
    assert_eq!(mesh.held(ENV), [episode("a", 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_scope_leaves_the_others_out_and_drops_the_unclaimed() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.seed("b");
    mesh.checkpoint(all()).await.published();
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    mesh.restore(newest()).await.restored();
    let story = mesh
        .checkpoint(pb::CheckpointRequest {
            rollout_ids: vec!["a".into()],
            ..all()
        })
        .await;
    assert!(
        story
            .partition
            .iter()
            .any(|e| e.standing() == pb::Standing::LeftOut)
    );
    story.published();
    mesh.all_in(pb::Phase::Idle).await;
    for name in ALL {
        assert_eq!(mesh.held(name), [episode("a", 1)], "{name}");
        assert!(
            mesh.servers[name].gate.check_mark(&episode("b", 1)).is_err(),
            "{name}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_hears_of_a_newer_one_stops() {
    let mut mesh = Mesh::open().await;
    let mut status = mesh.status(ENV).await.unwrap();
    let address = format!("http://{}", mesh.servers[ENV].control);
    let mut client = pb::checkpoint_participant_client::CheckpointParticipantClient::connect(address)
        .await
        .unwrap();
    let fence = pb::Fence {
        coordinator_epoch: 1_000,
        incarnation: std::mem::take(&mut status.incarnation),
    };
    let join = pb::JoinRequest {
        fence: Some(fence),
        ..Default::default()
    };
    client.join(join).await.unwrap();
    let ended = &mut mesh.coordinator.as_mut().unwrap().ended;
    let error = tokio::time::timeout(Duration::from_secs(10), ended)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains("newer coordinator"), "{error}");
    // Started again on purpose, it is the newest.
    mesh.kill_coordinator();
    mesh.start_coordinator().await;
    assert!(mesh.coordinator_status().await.epoch > 1_000);
    mesh.all_in(pb::Phase::Idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_beside_the_living_touches_only_the_rollouts_of_its_plan() {
    let mut mesh = Mesh::open().await;
    for id in ["a", "b", "c"] {
        mesh.seed(id);
    }
    mesh.checkpoint(all()).await.published();
    let only = pb::CoordinatorRestoreRequest {
        rollout_ids: vec!["a".into(), "b".into()],
        leave_out: vec!["b".into()],
        ..newest()
    };
    let story = mesh.restore(only).await.restored();
    assert_eq!(story.plan.len(), 1);
    for name in ALL {
        assert_eq!(
            mesh.held(name),
            [episode("a", 1), episode("b", 0), episode("c", 0)],
            "{name}"
        );
    }
    mesh.all_in(pb::Phase::Idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_is_aborted_while_it_stages_and_can_be_made_again() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.checkpoint(all()).await.published();
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let mut stream = mesh.client().restore(newest()).await.unwrap().into_inner();
    let checkpoint_id = stream.message().await.unwrap().unwrap().run_id;
    until("the others to be staged", async || {
        mesh.status(RES).await.unwrap().phase() == pb::Phase::Restored
    })
    .await;
    mesh.client()
        .abort(pb::AbortRequest {
            checkpoint_id: checkpoint_id.clone(),
        })
        .await
        .unwrap();
    assert!(RestoreStory::read(stream).await.abandoned.is_some());
    assert_eq!(mesh.run_state(&checkpoint_id).await, pb::RunState::Abandoned);
    mesh.all_in(pb::Phase::Joining).await;
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(false, std::sync::atomic::Ordering::Relaxed);
    mesh.restore(newest()).await.restored();
    assert_eq!(mesh.held(AGENT), [episode("a", 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decided_restore_is_aborted_before_an_agent_opens_and_leaves_nothing_live() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.checkpoint(all()).await.published();
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    mesh.servers[POLICY]
        .toy
        .slow_stage
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let stream = mesh.client().restore(newest()).await.unwrap().into_inner();
    until("the agent to be staged", async || {
        mesh.status(AGENT).await.unwrap().phase() == pb::Phase::Restored
    })
    .await;
    // The resources open first; the agent, which is next, is gone.
    mesh.kill(AGENT);
    mesh.servers[POLICY]
        .toy
        .slow_stage
        .store(false, std::sync::atomic::Ordering::Relaxed);
    until("the resources to open", async || {
        mesh.status(RES).await.unwrap().phase() == pb::Phase::Idle
    })
    .await;
    assert_eq!(mesh.held(RES), [episode("a", 1)]);
    let checkpoint_id = mesh.coordinator_status().await.open_run;
    mesh.client()
        .abort(pb::AbortRequest { checkpoint_id })
        .await
        .unwrap();
    assert!(RestoreStory::read(stream).await.abandoned.is_some());
    assert!(mesh.held(RES).is_empty());
    mesh.restart(AGENT).await;
    until("everybody to be closed or idle", async || {
        mesh.status(ENV).await.unwrap().phase() == pb::Phase::Joining
            && mesh.status(AGENT).await.is_some_and(|s| s.coordinator_epoch > 0)
    })
    .await;
    // The checkpoint is as good as before.
    let story = mesh.restore(newest()).await.restored();
    assert_eq!(story.plan[0].attempt, 2);
    assert_eq!(mesh.held(RES), [episode("a", 2)]);
    assert_eq!(mesh.held(ENV), [episode("a", 2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_removed_instance_was_to_hold_is_planned_anew_on_the_others() {
    const SECOND: &str = "environment/default/1";
    let mut mesh = Mesh::new(&[ENV, AGENT, RES, POLICY, SECOND]).await;
    mesh.start_coordinator().await;
    mesh.all_in(pb::Phase::Idle).await;
    let rollouts: Vec<_> = (0..12).map(|n| mesh.seed(&format!("r{n:02}")).rollout).collect();
    mesh.checkpoint(all()).await.published();
    let alone = pb::RemoveInstanceRequest {
        instance: Some(belay_mesh::wire::ToWire::to_wire(&instance(AGENT))),
    };
    let refusal = from_status(&mesh.client().remove_instance(alone).await.unwrap_err()).unwrap();
    assert!(refusal.message.contains("only replica"), "{}", refusal.message);

    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let told = tokio::spawn(RestoreStory::read(
        mesh.client().restore(newest()).await.unwrap().into_inner(),
    ));
    until("the second environment to be staged", async || {
        mesh.status(SECOND).await.unwrap().phase() == pb::Phase::Restored
    })
    .await;
    mesh.kill(SECOND);
    mesh.servers[AGENT]
        .toy
        .slow_stage
        .store(false, std::sync::atomic::Ordering::Relaxed);
    until("the first environment to open", async || {
        mesh.status(ENV).await.unwrap().phase() == pb::Phase::Idle
    })
    .await;
    let first_time = mesh.held(ENV).len();
    assert!(
        first_time > 0 && first_time < 12,
        "{first_time} of 12 were placed on the first"
    );
    let gone = pb::RemoveInstanceRequest {
        instance: Some(belay_mesh::wire::ToWire::to_wire(&instance(SECOND))),
    };
    mesh.client().remove_instance(gone).await.unwrap();
    told.await.unwrap().restored();
    let held = mesh.held(ENV);
    assert_eq!(
        held.iter().map(|e| e.rollout.clone()).collect::<Vec<_>>(),
        rollouts
    );
    assert_eq!(held.iter().filter(|e| e.attempt == 2).count(), 12 - first_time);
    for name in [AGENT, RES, POLICY] {
        assert_eq!(mesh.held(name), held, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_journal_costs_no_epoch_and_no_mark_that_a_checkpoint_knows() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.seed("b");
    let (older, _) = mesh.checkpoint(all()).await.published();
    mesh.retire("a", 0).await;
    mesh.checkpoint(all()).await.published();
    let epoch = mesh.coordinator_status().await.epoch;
    mesh.kill_coordinator();
    std::fs::remove_dir_all(mesh.dir.path().join("state")).unwrap();
    mesh.restart_all().await;
    mesh.start_coordinator().await;
    let status = mesh.coordinator_status().await;
    assert!(
        status.epoch > epoch && status.waits_for_restore && status.checkpoints == 2,
        "{status:?}"
    );
    mesh.all_in(pb::Phase::Joining).await;
    let story = mesh
        .restore(pb::CoordinatorRestoreRequest {
            checkpoint_id: older,
            ..newest()
        })
        .await
        .restored();
    assert_eq!(story.retired, ["a"], "a retired rollout stays retired");
    assert!(mesh.servers[ENV].gate.check_mark(&episode("a", 0)).is_err());
    assert_eq!(mesh.held(ENV), [episode("b", 1)]);
}

/// Killed at any moment of a restore: nothing is live, or all of it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_killed_at_any_moment_of_a_restore_recovers() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.checkpoint(all()).await.published();
    let (mut restored, mut abandoned) = (0, 0);
    for round in 0..10u64 {
        mesh.restart_all().await;
        mesh.all_in(pb::Phase::Joining).await;
        let mut stream = mesh.client().restore(newest()).await.unwrap().into_inner();
        let mut id = String::new();
        for _ in 0..=round {
            match stream.message().await {
                Ok(Some(message)) => id = message.run_id,
                _ => break,
            }
        }
        mesh.kill_coordinator();
        mesh.start_coordinator().await;
        until("the run to end", async || {
            mesh.run_state(&id).await != pb::RunState::Running
        })
        .await;
        match mesh.run_state(&id).await {
            pb::RunState::Restored => {
                restored += 1;
                mesh.all_in(pb::Phase::Idle).await;
                let held = mesh.held(ENV);
                assert_eq!(held.len(), 1);
                for name in ALL {
                    assert_eq!(mesh.held(name), held, "{name}");
                }
            }
            pb::RunState::Abandoned => {
                abandoned += 1;
                mesh.all_in(pb::Phase::Joining).await;
                for name in ALL {
                    assert!(mesh.held(name).is_empty(), "{name}");
                }
            }
            other => panic!("{id} is {other:?}"),
        }
    }
    println!("{restored} restored, {abandoned} abandoned");
    assert!(restored > 0);
}
