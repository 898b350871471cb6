//! Scenario 10: an episode finishes while the checkpoint waits for another.

use belay_core::parts::VerifyMode;
use belay_fake_backend::work::WorkKind;
use belay_proto::{
    checkpoint::{CheckpointRequest, Standing},
    episode::Expect,
};
use tokio::task::JoinHandle;

use crate::{
    checkpointing::standing,
    world::{BOUND, Ran, World, good},
};

/// `quick` is verified and `slow` is in a tool when Prepare comes; `quick` finishes first, `slow` parks after its tool.
async fn checkpoint_with_one_that_finishes() -> (World, JoinHandle<Ran>, JoinHandle<Ran>) {
    let world = World::start_asking(VerifyMode::Wait).await;
    world.ctl.hold_work(WorkKind::Verify, "quick").await.unwrap();
    world.ctl.hold_work(WorkKind::Tool, "slow/0/1/").await.unwrap();
    let quick = world.run("quick", 0, Expect::Fresh);
    let slow = world.run("slow", 0, Expect::Fresh);
    world.ctl.wait_work(WorkKind::Verify, 1, BOUND).await.unwrap();
    world.ctl.wait_work(WorkKind::Tool, 1, BOUND).await.unwrap();
    let mut checkpoint = world.begin_checkpoint(CheckpointRequest::default()).await;
    checkpoint.until_it_waits_for("quick", "verify").await;
    world.ctl.release_work(WorkKind::Verify).await.unwrap();
    checkpoint.until_it_waits_for("slow", "increment_counter").await;
    world.ctl.release_work(WorkKind::Tool).await.unwrap();
    let (_, published, partition) = checkpoint.published().await;
    assert_eq!((published.episodes, published.restarts), (2, 0));
    // Its verdict is there; whether it also got to close its session before the resources server closed is a matter of luck.
    let quick_stands = standing(&partition, "quick");
    assert!(
        matches!(quick_stands, Standing::SavedFinished | Standing::SavedRunning),
        "{quick_stands:?}"
    );
    assert_eq!(standing(&partition, "slow"), Standing::SavedRunning);
    (world, quick, slow)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_crash() {
    let (world, quick, slow) = checkpoint_with_one_that_finishes().await;
    good(quick).await;
    good(slow).await;
    for rollout in ["quick", "slow"] {
        assert_eq!(world.verifies(rollout).await, 1);
        assert_eq!(world.calls(rollout).await, [(0, 0), (0, 1), (0, 2), (0, 3)]);
        world.free(rollout, 0).await;
    }
    world.see_nothing_left().await;
}

/// Seen red: with the verdict left out of the environment's record, `quick` is verified again.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_crash() {
    let (mut world, quick, slow) = checkpoint_with_one_that_finishes().await;
    world.crash().await;
    // Their replies may have left before the crash: then the same results are replied again.
    drop((quick, slow));
    world.up_again().await;
    let plan = world.restore().await;
    assert_eq!(plan.len(), 2);
    good(world.run("quick", 1, Expect::Restored)).await;
    good(world.run("slow", 1, Expect::Restored)).await;
    assert_eq!(world.verifies("quick").await, 1, "it is not redone");
    assert_eq!(world.calls("quick").await, [(0, 0), (0, 1), (0, 2), (0, 3)]);
    for rollout in ["quick", "slow"] {
        world.free(rollout, 1).await;
    }
    world.see_nothing_left().await;
}
