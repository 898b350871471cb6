//! Scenario 9: a verifier in flight that may not run twice is waited for, and named.

use belay_core::parts::VerifyMode;
use belay_fake_backend::work::WorkKind;
use belay_proto::{checkpoint::CheckpointRequest, episode::Expect};

use crate::world::{BOUND, World, good};

/// Seen red: with `verify = "replay"` instead, the checkpoint waits for nobody.
#[tokio::test(flavor = "multi_thread")]
async fn the_checkpoint_waits_and_it_is_not_run_again_after_the_crash() {
    let mut world = World::start_asking(VerifyMode::Wait).await;
    world.ctl.hold_work(WorkKind::Verify, "").await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_work(WorkKind::Verify, 1, BOUND).await.unwrap();
    let mut checkpoint = world.begin_checkpoint(CheckpointRequest::default()).await;
    checkpoint.until_it_waits_for("r", "verify").await;
    world.ctl.release_work(WorkKind::Verify).await.unwrap();
    let (_, published, _) = checkpoint.published().await;
    assert_eq!((published.episodes, published.restarts), (1, 0));
    good(first).await;
    world.crash().await;
    world.up_again().await;
    world.restore().await;

    good(world.run("r", 1, Expect::Restored)).await;
    assert_eq!(world.verifies("r").await, 1, "its verdict is in the checkpoint");
    assert_eq!(world.calls("r").await, [(0, 0), (0, 1), (0, 2), (0, 3)]);
    world.acknowledge_and_see_nothing_left("r", 1).await;
}
