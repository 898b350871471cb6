//! The coordinator itself: how a mesh opens, and what its own death leaves.

use std::time::Duration;

use belay_mesh::status::from_status;
use belay_proto::checkpoint as pb;

use super::{all, is_tombstone, newest, support::*, until};

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
                mesh.servers[RES].toy.slow_disk.set(true);
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
        until("the tombstone", async || is_tombstone(&mesh, &id)).await;
        // A write that ends only now is too late: the capture is given up all the same.
        mesh.servers[RES].toy.slow_disk.set(false);
        mesh.all_in(pb::Phase::Idle).await;
        drop(permit);
        assert!(is_tombstone(&mesh, &id), "{stage}");
        assert_eq!(mesh.run_state(&id).await, pb::RunState::Abandoned, "{stage}");
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
