//! Scenario 31: a server was lost before the checkpoint, and the other parts of its episodes live on.

use belay_core::ids::Instance;
use belay_fake_backend::ctl::Hold;
use belay_proto::{
    checkpoint::{Phase, Standing},
    episode::Expect,
};

use crate::{
    checkpointing::standing,
    world::{BOUND, World, good},
};

/// Seen red: with roots published without their parts (a closure that finds all whole), the checkpoint holds both.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_whole_is_a_restart_that_names_what_is_missing() {
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let lost = world.run("lost", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    let counter: Instance = "resources/counter/0".parse().unwrap();
    world.mesh.kill_server(&counter).await.unwrap();
    world.mesh.start_server(&counter).await.unwrap();
    world.until_all_are(Phase::Idle).await;
    let whole = world.run("whole", 0, Expect::Fresh);
    world.ctl.wait_held(2, BOUND).await.unwrap();

    let (_, published, partition) = world.checkpoint().await;
    assert_eq!((published.episodes, published.restarts), (1, 1));
    assert_eq!(standing(&partition, "lost"), Standing::Restart);
    assert_eq!(standing(&partition, "whole"), Standing::SavedRunning);
    let restart = &partition.restarts[0];
    assert_eq!(restart.instance.as_ref().unwrap().name, "counter");
    assert!(
        restart.reason.contains("session is not there"),
        "{}",
        restart.reason
    );
    world.crash().await;
    lost.await.unwrap().expect_err("its server was killed");
    whole.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    assert_eq!(world.restore().await.len(), 1);
    world.ctl.release().await.unwrap();
    good(world.run("whole", 1, Expect::Restored)).await;
    good(world.run("lost", 1, Expect::Fresh)).await;
    world.free("whole", 1).await;
    world.free("lost", 1).await;
    world.see_nothing_left().await;
}
