//! Scenario 29: one server alone is killed while its callers retry.

use belay_core::{ids::Instance, refusal::Reason};
use belay_fake_backend::ctl::Hold;
use belay_proto::{checkpoint::Phase, episode::Expect};

use crate::world::{BOUND, World, good};

/// Never a wrong reward with status OK: an error by name, and the next attempt goes on from the checkpoint.
async fn killed_alone(instance: &str) {
    let instance: Instance = instance.parse().unwrap();
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(2)).await.unwrap();
    let running = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    let (_, published, _) = world.checkpoint().await;
    assert_eq!(published.episodes, 1);
    world.mesh.kill_server(&instance).await.unwrap();
    world.mesh.start_server(&instance).await.unwrap();
    world.until_all_are(Phase::Idle).await;
    world.ctl.release().await.unwrap();

    let refusal = running.await.unwrap().expect_err("a part of it is gone");
    let named = [
        Reason::EpisodeUnknown,
        Reason::StaleExecution,
        Reason::OperationPast,
        Reason::PeerUnreachable,
    ];
    assert!(named.contains(&refusal.reason), "{refusal}");
    let plan = world.restore().await;
    assert_eq!(
        plan.iter().map(|planned| planned.attempt).collect::<Vec<_>>(),
        [1]
    );
    let result = good(world.run("r", 1, Expect::Restored)).await;
    assert!(result.restored);
    assert_eq!(world.finished_calls("r", 1).await, [2, 3]);
    world.acknowledge_and_see_nothing_left("r", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn environment() {
    killed_alone("environment/default/0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent() {
    killed_alone("agent/default/0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resources() {
    killed_alone("resources/counter/0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn policy_model() {
    killed_alone("policy-model/default/0").await;
}
