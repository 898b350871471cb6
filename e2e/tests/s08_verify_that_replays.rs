//! Scenario 8: a verifier in flight that may run twice does not hold a checkpoint up.

use belay_core::parts::VerifyMode;
use belay_fake_backend::work::WorkKind;
use belay_proto::episode::Expect;

use crate::world::{BOUND, World, good};

/// Seen red: with `verify = "wait"` instead, the checkpoint is not published while the verifier is held.
#[tokio::test(flavor = "multi_thread")]
async fn the_checkpoint_does_not_wait_and_it_runs_again_after_the_crash() {
    let mut world = World::start_asking(VerifyMode::Replay).await;
    world.ctl.hold_work(WorkKind::Verify, "").await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_work(WorkKind::Verify, 1, BOUND).await.unwrap();
    let (_, published, _) = world.checkpoint().await;
    assert_eq!((published.episodes, published.restarts), (1, 0));
    world.crash().await;
    first.await.unwrap().expect_err("its server was killed");
    world.ctl.release_work(WorkKind::Verify).await.unwrap();
    world.up_again().await;
    world.restore().await;

    let result = good(world.run("r", 1, Expect::Restored)).await;
    assert!(result.restored);
    assert_eq!(
        world.verifies("r").await,
        2,
        "once before the crash, once after it"
    );
    assert_eq!(world.calls("r").await, [(0, 0), (0, 1), (0, 2), (0, 3)]);
    world.acknowledge_and_see_nothing_left("r", 1).await;
}
