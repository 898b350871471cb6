//! Scenario 3: the counter's reward needs the restored session; and the control, in which it is not restored.

use belay_fake_backend::ctl::Hold;
use belay_mesh::config::MeshConfig;
use belay_proto::episode::{Expect, RunResponse};

use crate::world::{BOUND, World};

/// Seen red: this is the control's own defect, `faults.restore_seeds_anew`.
#[tokio::test(flavor = "multi_thread")]
async fn with_the_restore_the_reward_is_one() {
    let result = crash_after_the_first_increment(|_| {}).await;
    assert_eq!(result.reward, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_without_the_session_the_reply_is_ok_and_the_reward_zero() {
    let result = crash_after_the_first_increment(|config| config.faults.restore_seeds_anew = true).await;
    assert_eq!(result.reward, 0.0);
}

async fn crash_after_the_first_increment(change: impl FnOnce(&mut MeshConfig)) -> RunResponse {
    let mut world = World::start_with(change).await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    assert_eq!(
        world.effects("r").await,
        [(0, (0, 1))],
        "the first increment is applied"
    );
    world.checkpoint().await;
    world.crash().await;
    first.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    world.restore().await;
    world.ctl.release().await.unwrap();
    let result = world
        .run("r", 1, Expect::Restored)
        .await
        .unwrap()
        .expect("the status is OK");
    assert!(result.restored);
    assert_eq!(
        (result.model_calls, result.tool_calls),
        (4, 3),
        "the whole loop ran"
    );
    result
}
