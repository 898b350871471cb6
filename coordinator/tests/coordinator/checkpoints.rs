//! A checkpoint, when all goes well and when it does not.

use belay_core::refusal::Reason;
use belay_mesh::status::from_status;
use belay_proto::checkpoint as pb;
use belay_store::testing::Op;

use super::{all, is_tombstone, millis, newest, seconds, support::*, until};

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
    let disk = mesh.servers[RES].toy.slow_disk.clone();
    disk.set(true);
    let stream = mesh.client().checkpoint(all()).await.unwrap().into_inner();
    until("the resources to open again", async || {
        mesh.status(RES)
            .await
            .is_some_and(|s| s.unsettled.is_some() && s.phase() == pb::Phase::Idle)
    })
    .await;
    mesh.kill(RES);
    disk.set(false);
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
