//! Scenario 12: a second crash, after a checkpoint that was taken before the replacement had started.

use belay_fake_backend::ctl::Hold;
use belay_proto::{checkpoint::Standing, episode::Expect};

use crate::{
    checkpointing::standing,
    world::{BOUND, World, good},
};

/// Seen red: with unclaimed restored episodes left out of the environment's capture, the second checkpoint is empty.
#[tokio::test(flavor = "multi_thread")]
async fn before_the_replacement() {
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    let (first_id, published, _) = world.checkpoint().await;
    assert_eq!(published.episodes, 1);
    world.crash().await;
    first.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    world.restore().await;
    let (second_id, published, partition) = world.checkpoint().await;
    assert!(second_id > first_id);
    assert_eq!(published.episodes, 1);
    assert_eq!(standing(&partition, "r"), Standing::SavedRunning);
    world.crash().await;
    world.up_again().await;
    let plan = world.restore().await;
    assert_eq!(
        plan.iter().map(|planned| planned.attempt).collect::<Vec<_>>(),
        [2]
    );

    world.ctl.release().await.unwrap();
    let result = good(world.run("r", 2, Expect::Restored)).await;
    assert!(result.restored);
    assert!(world.finished_calls("r", 1).await.is_empty(), "it never ran");
    assert_eq!(
        world.finished_calls("r", 2).await,
        [1, 2, 3],
        "from the same boundary"
    );
    assert_eq!(world.effects("r").await, [(0, (0, 1)), (2, (1, 1)), (2, (2, 1))]);
    world.acknowledge_and_see_nothing_left("r", 2).await;
}
