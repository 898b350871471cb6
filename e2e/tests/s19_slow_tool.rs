//! Scenario 19: a tool that is slower than the checkpoint, and slower than the lease.

use belay_fake_backend::work::WorkKind;
use belay_proto::{
    checkpoint::{CheckpointRequest, Phase, Standing},
    episode::Expect,
};
use tokio::task::JoinHandle;

use crate::{
    checkpointing::{Ended, standing},
    world::{BOUND, Ran, World, good},
};

async fn in_its_first_tool() -> (World, JoinHandle<Ran>) {
    let world = World::start_with(|config| config.faults.work_asks = Some("engine".into())).await;
    world.ctl.hold_work(WorkKind::Tool, "r/0/1/").await.unwrap();
    let running = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_work(WorkKind::Tool, 1, BOUND).await.unwrap();
    (world, running)
}

async fn its_reply_arrives_and_its_effect_is_one(world: &World, running: JoinHandle<Ran>) {
    world.until_all_are(Phase::Idle).await;
    world.ctl.release_work(WorkKind::Tool).await.unwrap();
    good(running).await;
    assert_eq!(world.effects("r").await, [(0, (0, 1)), (0, (1, 1)), (0, (2, 1))]);
    world.acknowledge_and_see_nothing_left("r", 0).await;
}

/// Seen red: with permits that count for nothing, the checkpoint is published.
#[tokio::test(flavor = "multi_thread")]
async fn the_checkpoint_names_it_and_ends_at_its_timeout() {
    let (world, running) = in_its_first_tool().await;
    let request = CheckpointRequest {
        timeout: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        ..Default::default()
    };
    let mut checkpoint = world.begin_checkpoint(request).await;
    let blocker = checkpoint.until_it_waits_for("r", "increment_counter").await;
    assert!(blocker.instance.is_some());
    match checkpoint.ended().await {
        Ended::Abandoned(abandoned) => {
            assert_eq!(abandoned.stage, "prepare");
            assert_eq!(abandoned.blockers[0].episode.as_ref().unwrap().rollout_id, "r");
        }
        published => panic!("{published:?}"),
    }
    its_reply_arrives_and_its_effect_is_one(&world, running).await;
}

/// The coordinator is killed while it waits: the leases end, and every server opens by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_lapses_opens_again() {
    let (mut world, running) = in_its_first_tool().await;
    let request = CheckpointRequest {
        grace: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..Default::default()
    };
    let mut checkpoint = world.begin_checkpoint(request).await;
    checkpoint.until_it_waits_for("r", "increment_counter").await;
    world.mesh.kill_coordinator().await.unwrap();
    world.mesh.start_coordinator().await.unwrap();
    its_reply_arrives_and_its_effect_is_one(&world, running).await;
}

/// With a soft limit it is not waited for any longer: a restart of this checkpoint, which runs on.
#[tokio::test(flavor = "multi_thread")]
async fn a_soft_limit_makes_it_a_restart_of_this_checkpoint() {
    let (world, running) = in_its_first_tool().await;
    let request = CheckpointRequest {
        soft_limit: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..Default::default()
    };
    let mut checkpoint = world.begin_checkpoint(request).await;
    checkpoint.until_it_waits_for("r", "increment_counter").await;
    let (_, published, partition) = checkpoint.published().await;
    assert_eq!((published.episodes, published.restarts), (0, 1));
    assert_eq!(standing(&partition, "r"), Standing::Restart);
    its_reply_arrives_and_its_effect_is_one(&world, running).await;
}
