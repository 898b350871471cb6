//! Scenarios 16 and 17: a retire in the middle of a rollout, and its mark after a crash.

use belay_core::refusal::Reason;
use belay_fake_backend::ctl::{Hold, RecordState};
use belay_proto::{
    checkpoint::{OpenRequest, Phase},
    episode::Expect,
};

use crate::world::{BOUND, World, good, refused};

/// Seen red: with the agent's loops left running, the retire names what is unfinished.
#[tokio::test(flavor = "multi_thread")]
async fn s16_everything_of_it_stops_and_a_duplicate_is_refused_until_it_is_forgotten() {
    let world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let running = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    world.retire("r", 0).await;
    assert_eq!(refused(running).await.reason, Reason::StaleAttempt);
    world.see_nothing_left().await;
    let statuses = world.statuses().await;
    assert!(
        statuses.iter().all(|status| status.marks == 1),
        "one mark each: {statuses:?}"
    );

    world.ctl.release().await.unwrap();
    let late = refused(world.run("r", 0, Expect::Either)).await;
    assert_eq!(
        (late.reason, late.get("next_attempt")),
        (Reason::StaleAttempt, Some("1"))
    );
    let records = world.ctl.calls_of("r").await.unwrap();
    assert_eq!(
        world.calls("r").await,
        [(0, 0), (0, 1)],
        "the model is not called again"
    );
    assert_eq!(records[1].state, RecordState::Cancelled);

    assert_eq!(world.forget("r").await, 1);
    let statuses = world.statuses().await;
    assert!(statuses.iter().all(|status| status.marks == 0), "{statuses:?}");
    good(world.run("r", 0, Expect::Fresh)).await;
    world.acknowledge_and_see_nothing_left("r", 0).await;
}

async fn the_mark_holds(world: &World) {
    world.until_all_are(Phase::Idle).await;
    let late = refused(world.run("r", 0, Expect::Either)).await;
    assert_eq!(late.reason, Reason::StaleAttempt);
    let statuses = world.statuses().await;
    assert!(
        statuses.iter().all(|status| status.marks == 1),
        "on every server: {statuses:?}"
    );
    assert_eq!(world.forget("r").await, 1);
    good(world.run("r", 0, Expect::Fresh)).await;
}

/// Its rollout is in a checkpoint, retired after it, and everything was killed and is there again.
async fn retired_then_crashed() -> World {
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let running = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    world.checkpoint().await;
    world.retire("r", 0).await;
    assert_eq!(refused(running).await.reason, Reason::StaleAttempt);
    world.ctl.release().await.unwrap();
    world.crash().await;
    world.up_again().await;
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn s17_after_a_crash_with_a_restore() {
    let world = retired_then_crashed().await;
    assert_eq!(world.restore().await, [], "what is over is not restored");
    the_mark_holds(&world).await;
}

/// Seen red: with Join sent without marks, the late Run starts.
#[tokio::test(flavor = "multi_thread")]
async fn s17_after_a_crash_without_a_restore() {
    let world = retired_then_crashed().await;
    let mut coordinator = world.mesh.coordinator().unwrap();
    coordinator.open(OpenRequest {}).await.unwrap();
    the_mark_holds(&world).await;
}
