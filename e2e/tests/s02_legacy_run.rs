//! Scenario 2: whole episodes that are sent to the agent, which owns them from the seed to the result.

use belay_core::refusal::Reason;
use belay_fake_backend::ctl::Hold;
use belay_proto::{checkpoint::Standing, episode::Expect};

use crate::{
    checkpointing::standing,
    s01_crash_and_restore::goes_on_from_its_last_boundary,
    s11_lost_reply::the_result_is_replied_without_a_model_call,
    world::{BOUND, World, good, refused},
};

async fn at_the_agent() -> World {
    let mut world = World::start().await;
    world.runs_at = "agent/default/0".parse().unwrap();
    world
}

/// Seen red: with the session left out of the record of an episode that the agent owns, the restored one has none.
#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_from_its_last_boundary_as_scenario_1() {
    goes_on_from_its_last_boundary(at_the_agent().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_replied_to_the_next_attempt_as_scenario_11() {
    the_result_is_replied_without_a_model_call(at_the_agent().await).await;
}

/// One checkpoint of an episode of the environment's and one of the agent's: each goes on where it was sent.
#[tokio::test(flavor = "multi_thread")]
async fn both_forms_are_in_one_checkpoint() {
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let environment = world.runs_at.clone();
    let native = world.run("native", 0, Expect::Fresh);
    let agent = "agent/default/0".parse().unwrap();
    world.runs_at = agent;
    let whole = world.run("whole", 0, Expect::Fresh);
    world.ctl.wait_held(2, BOUND).await.unwrap();
    // The agent has the session of `native` already: a Run of it there is a second owner.
    let second = refused(world.run("native", 0, Expect::Either)).await;
    assert_eq!(second.reason, Reason::AttemptLive);
    let (_, published, partition) = world.checkpoint().await;
    assert_eq!((published.episodes, published.restarts), (2, 0));
    for rollout in ["native", "whole"] {
        assert_eq!(standing(&partition, rollout), Standing::SavedRunning);
    }
    world.crash().await;
    native.await.unwrap().expect_err("its server was killed");
    whole.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    assert_eq!(world.restore().await.len(), 2);
    world.ctl.release().await.unwrap();
    assert!(good(world.run("whole", 1, Expect::Restored)).await.restored);
    world.free("whole", 1).await;
    world.runs_at = environment;
    assert!(good(world.run("native", 1, Expect::Restored)).await.restored);
    world.free("native", 1).await;
    for rollout in ["native", "whole"] {
        assert_eq!(world.finished_calls(rollout, 1).await, [1, 2, 3]);
        assert_eq!(world.effects(rollout).await.len(), 3);
    }
    world.see_nothing_left().await;
}
