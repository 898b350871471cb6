//! Scenario 33: a controller attaches its own state; results arrive before, during and after the cut, then everything crashes.

use belay_fake_backend::ctl::Hold;
use belay_proto::{
    checkpoint::{CheckpointRequest, GetControllerStateRequest, PublishRequest, Standing},
    episode::Expect,
};

use crate::{
    checkpointing::standing,
    world::{BOUND, World, good},
};

/// Seen red: with Publish that forgets the state it was given, the state does not come back.
#[tokio::test(flavor = "multi_thread")]
async fn state_results_and_checkpoint_agree() {
    let mut world = World::start().await;
    // `before` is done and acknowledged; `unread` is done, and its result is not in the controller's state.
    good(world.run("before", 0, Expect::Fresh)).await;
    world.free("before", 0).await;
    good(world.run("unread", 0, Expect::Fresh)).await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let after = world.run("after", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();

    let request = CheckpointRequest {
        hold: true,
        ..Default::default()
    };
    let mut checkpoint = world.begin_checkpoint(request).await;
    let checkpoint_id = checkpoint.held().await;
    let mut coordinator = world.mesh.coordinator().unwrap();
    let publish = PublishRequest {
        checkpoint_id,
        controller_state: "done: before".into(),
    };
    coordinator.publish(publish).await.unwrap();
    let (id, published, partition) = checkpoint.published().await;
    assert_eq!(published.episodes, 2);
    assert_eq!(standing(&partition, "before"), Standing::Acknowledged);
    assert_eq!(standing(&partition, "unread"), Standing::SavedFinished);
    assert_eq!(standing(&partition, "after"), Standing::SavedRunning);
    // After the cut: these results are lost with the crash, as far as the controller's state goes.
    world.free("unread", 0).await;
    world.ctl.release().await.unwrap();
    good(after).await;

    world.crash().await;
    world.up_again().await;
    let mut coordinator = world.mesh.coordinator().unwrap();
    let request = GetControllerStateRequest::default();
    let state = coordinator
        .get_controller_state(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (state.checkpoint_id, &state.controller_state[..]),
        (id, &b"done: before"[..])
    );
    let plan = world.restore().await;
    let mut planned: Vec<_> = plan
        .iter()
        .map(|p| p.saved.as_ref().unwrap().rollout_id.as_str())
        .collect();
    planned.sort_unstable();
    assert_eq!(
        planned,
        ["after", "unread"],
        "each rollout is in the state or in the checkpoint"
    );
    good(world.run("after", 1, Expect::Restored)).await;
    good(world.run("unread", 1, Expect::Restored)).await;
    assert_eq!(
        world.calls("unread").await,
        [(0, 0), (0, 1), (0, 2), (0, 3)],
        "not redone"
    );
    world.free("after", 1).await;
    world.free("unread", 1).await;
    world.see_nothing_left().await;
}
