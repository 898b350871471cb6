//! Scenarios 14 and 15: saved and restart-only episodes side by side, with a crash and without.

use belay_core::{
    ids::{Instance, Kind},
    parts::CheckpointMode,
};
use belay_fake_backend::ctl::Hold;
use belay_mesh::config::ServerConfig;
use belay_proto::{checkpoint::Standing, episode::Expect};
use tokio::task::JoinHandle;

use crate::{
    checkpointing::standing,
    world::{BOUND, Ran, World, good},
};

/// Both in their second model call, and a checkpoint of it.
async fn checkpoint_of_both() -> (World, JoinHandle<Ran>, JoinHandle<Ran>) {
    let world = World::start_with(|config| {
        config.servers.push(ServerConfig {
            name: "fragile".into(),
            builtin: Some("counter".into()),
            mode: Some(CheckpointMode::RestartOnly),
            ..ServerConfig::new(Kind::Resources)
        });
    })
    .await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let saved = world.run("saved", 0, Expect::Fresh);
    let restart = world.run_on("fragile", "restart", 0, Expect::Fresh);
    world.ctl.wait_held(2, BOUND).await.unwrap();
    let (_, published, partition) = world.checkpoint().await;
    assert_eq!((published.episodes, published.restarts), (1, 1));
    assert_eq!(standing(&partition, "saved"), Standing::SavedRunning);
    assert_eq!(standing(&partition, "restart"), Standing::Restart);
    let named = partition.restarts[0].instance.as_ref().unwrap();
    assert_eq!(named.name, "fragile", "the server that cannot save is named");
    (world, saved, restart)
}

/// Seen red: with the server's `mode` ignored, both are saved.
#[tokio::test(flavor = "multi_thread")]
async fn s14_after_a_crash_the_saved_goes_on_and_the_restart_starts_over() {
    let (mut world, saved, restart) = checkpoint_of_both().await;
    world.crash().await;
    saved.await.unwrap().expect_err("its server was killed");
    restart.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    let plan = world.restore().await;
    assert_eq!(plan.len(), 1);
    world.ctl.release().await.unwrap();
    assert!(good(world.run("saved", 1, Expect::Restored)).await.restored);
    assert!(
        !good(world.run_on("fragile", "restart", 1, Expect::Fresh))
            .await
            .restored
    );
    assert_eq!(world.finished_calls("saved", 1).await, [1, 2, 3]);
    assert_eq!(world.finished_calls("restart", 1).await, [0, 1, 2, 3]);
    world.free("saved", 1).await;
    world.free("restart", 1).await;
    world.see_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s15_without_a_crash_both_run_on_and_finish() {
    let (world, saved, restart) = checkpoint_of_both().await;
    world.ctl.release().await.unwrap();
    good(saved).await;
    good(restart).await;
    for rollout in ["saved", "restart"] {
        assert_eq!(world.calls(rollout).await, [(0, 0), (0, 1), (0, 2), (0, 3)]);
        world.free(rollout, 0).await;
    }
    world.see_nothing_left().await;
}

/// An environment whose episodes have no boundaries to go on from, beside one whose have.
///
/// Seen red: with the environment's `mode` ignored, both are saved.
#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_declares_no_boundaries_makes_restarts() {
    let mut world = World::start_with(|config| {
        config.servers.push(ServerConfig {
            name: "plain".into(),
            mode: Some(CheckpointMode::RestartOnly),
            ..ServerConfig::new(Kind::Environment)
        });
    })
    .await;
    let with_boundaries = world.runs_at.clone();
    let plain: Instance = "environment/plain/0".parse().unwrap();
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let saved = world.run("saved", 0, Expect::Fresh);
    world.runs_at = plain.clone();
    let restart = world.run("restart", 0, Expect::Fresh);
    world.ctl.wait_held(2, BOUND).await.unwrap();
    let (_, published, partition) = world.checkpoint().await;
    assert_eq!((published.episodes, published.restarts), (1, 1));
    assert_eq!(standing(&partition, "saved"), Standing::SavedRunning);
    assert_eq!(standing(&partition, "restart"), Standing::Restart);
    assert!(
        partition.restarts[0].reason.contains("no boundaries"),
        "{:?}",
        partition.restarts
    );
    world.crash().await;
    saved.await.unwrap().expect_err("its server was killed");
    restart.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    assert_eq!(world.restore().await.len(), 1);
    world.ctl.release().await.unwrap();
    assert!(!good(world.run("restart", 1, Expect::Fresh)).await.restored);
    world.free("restart", 1).await;
    world.runs_at = with_boundaries;
    assert!(good(world.run("saved", 1, Expect::Restored)).await.restored);
    world.free("saved", 1).await;
    assert_eq!(world.finished_calls("restart", 1).await, [0, 1, 2, 3]);
    assert_eq!(world.finished_calls("saved", 1).await, [1, 2, 3]);
    world.see_nothing_left().await;
}
