//! Restores: into fresh servers, beside the living, in doubt, aborted.

use std::time::Duration;

use belay_core::refusal::Reason;
use belay_mesh::status::from_status;
use belay_proto::checkpoint as pb;

use super::{all, newest, support::*, until};

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
