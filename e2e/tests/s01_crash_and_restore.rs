//! Scenario 1: a typed episode, a checkpoint while its second model call is held, a crash, a restore, and attempt 1.

use belay_core::refusal::Reason;
use belay_fake_backend::ctl::Hold;
use belay_proto::{checkpoint::Standing, episode::Expect};

use crate::world::{BOUND, World};

/// Seen red: an agent that stages a restored session without its conversation asks for its first turn again, and the attempt ends.
#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_from_its_last_boundary() {
    goes_on_from_its_last_boundary(World::start().await).await;
}

/// The story, wherever the Runs are sent.
pub async fn goes_on_from_its_last_boundary(mut world: World) {
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();

    let (_, published, partition) = world.checkpoint().await;
    assert_eq!((published.episodes, published.restarts), (1, 0));
    assert_eq!(partition.entries.len(), 1);
    assert_eq!(partition.entries[0].standing(), Standing::SavedRunning);

    world.crash().await;
    first.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    let plan = world.restore().await;
    assert_eq!(
        plan.iter().map(|planned| planned.attempt).collect::<Vec<_>>(),
        [1]
    );

    let late = world
        .run("r", 0, Expect::Either)
        .await
        .unwrap()
        .expect_err("attempt 0 is over");
    assert_eq!(
        (late.reason, late.get("next_attempt")),
        (Reason::StaleAttempt, Some("1"))
    );

    world.ctl.release().await.unwrap();
    let result = world.run("r", 1, Expect::Restored).await.unwrap().unwrap();
    assert_eq!(result.reward, 1.0);
    assert!(result.restored);
    assert_eq!((result.model_calls, result.tool_calls), (4, 3));
    assert_eq!(world.calls("r").await, [(0, 0), (0, 1), (1, 1), (1, 2), (1, 3)]);
    assert_eq!(world.effects("r").await, [(0, (0, 1)), (1, (1, 1)), (1, (2, 1))]);
    world.acknowledge_and_see_nothing_left("r", 1).await;
}
