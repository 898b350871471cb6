//! Scenario 18: a second Run of an attempt that runs, that is parked, and that is being restored.

use belay_fake_backend::ctl::Hold;
use belay_proto::{
    checkpoint::{CheckpointRequest, PublishRequest},
    episode::Expect,
};

use crate::world::{BOUND, World, good};

/// Seen red: with a second Run of a live attempt refused.
#[tokio::test(flavor = "multi_thread")]
async fn each_is_joined_to_one_execution() {
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    let of_running = world.run("r", 0, Expect::Either);
    let request = CheckpointRequest {
        hold: true,
        ..Default::default()
    };
    let mut checkpoint = world.begin_checkpoint(request).await;
    let checkpoint_id = checkpoint.held().await;
    let of_parked = world.run("r", 0, Expect::Either);
    let mut coordinator = world.mesh.coordinator().unwrap();
    let publish = PublishRequest {
        checkpoint_id,
        ..Default::default()
    };
    coordinator.publish(publish).await.unwrap();
    checkpoint.published().await;
    world.ctl.release().await.unwrap();
    let result = good(first).await;
    assert_eq!(good(of_running).await, result);
    assert_eq!(good(of_parked).await, result);
    assert_eq!(world.calls("r").await, [(0, 0), (0, 1), (0, 2), (0, 3)]);

    world.crash().await;
    world.up_again().await;
    let early = [
        world.run("r", 1, Expect::Restored),
        world.run("r", 1, Expect::Either),
    ];
    world.restore().await;
    let late = good(world.run("r", 1, Expect::Restored)).await;
    let mut joined = 0;
    for run in early {
        match run.await.unwrap() {
            Ok(result) => {
                assert_eq!(result, late);
                joined += 1;
            }
            Err(refusal) => assert_eq!(refusal.reason, belay_core::refusal::Reason::NotJoined),
        }
    }
    assert!(joined <= 2);
    assert_eq!(world.finished_calls("r", 1).await, [1, 2, 3], "one execution");
    assert_eq!(
        world.effects("r").await.len(),
        3 + 2,
        "those after the checkpoint, once in each history"
    );
    world.acknowledge_and_see_nothing_left("r", 1).await;
}
