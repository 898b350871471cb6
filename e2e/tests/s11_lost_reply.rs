//! Scenario 11: a reply is lost on its way to the controller, then everything crashes.

use belay_fake_backend::ctl::Hold;
use belay_proto::{checkpoint::Standing, episode::Expect};

use crate::{
    checkpointing::standing,
    world::{BOUND, World, good},
};

/// Seen red: with the finished left out of the environment's capture, the checkpoint has no episode.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_attempt_gets_the_result_without_a_model_call() {
    the_result_is_replied_without_a_model_call(World::start().await).await;
}

/// The story, wherever the Runs are sent.
pub async fn the_result_is_replied_without_a_model_call(mut world: World) {
    world.ctl.hold(Hold::AfterCallsPerRollout(3)).await.unwrap();
    let caller = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    caller.abort();
    world.ctl.release().await.unwrap();
    world
        .until("it has finished", |all| {
            all.iter().any(|s| s.counts.get("results") == Some(&1))
        })
        .await;
    let (_, published, partition) = world.checkpoint().await;
    assert_eq!(published.episodes, 1);
    assert_eq!(standing(&partition, "r"), Standing::SavedFinished);
    world.crash().await;
    world.up_again().await;
    world.restore().await;

    let result = good(world.run("r", 1, Expect::Restored)).await;
    assert!(result.restored);
    assert_eq!(
        world.calls("r").await,
        [(0, 0), (0, 1), (0, 2), (0, 3)],
        "none after the crash"
    );
    assert_eq!(world.effects("r").await.len(), 3);
    world.acknowledge_and_see_nothing_left("r", 1).await;
}
