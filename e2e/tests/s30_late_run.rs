//! Scenario 30: after a crash a late Run of the dead attempt, and a start-over, race with the restore.

use belay_core::refusal::Reason;
use belay_fake_backend::ctl::Hold;
use belay_proto::episode::Expect;

use crate::world::{BOUND, World, good, refused};

/// Seen red: with a mesh that opens by itself where there is a checkpoint, it does not wait for the restore.
#[tokio::test(flavor = "multi_thread")]
async fn the_mesh_opens_by_the_restore_only() {
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    world.checkpoint().await;
    world.crash().await;
    first.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    let late = world.run("r", 0, Expect::Either);
    let start_over = world.run("r", 0, Expect::Fresh);
    world.restore().await;
    for run in [late, start_over, world.run("r", 0, Expect::Either)] {
        let refusal = refused(run).await;
        assert!(
            matches!(refusal.reason, Reason::StaleAttempt | Reason::NotJoined),
            "{refusal}"
        );
    }
    let refusal = refused(world.run("r", 2, Expect::Fresh)).await;
    assert_eq!(
        (refusal.reason, refusal.get("next_attempt")),
        (Reason::AttemptLive, Some("1"))
    );

    world.ctl.release().await.unwrap();
    good(world.run("r", 1, Expect::Restored)).await;
    assert_eq!(
        world.calls("r").await[..2],
        [(0, 0), (0, 1)],
        "nothing more of the dead attempt"
    );
    assert_eq!(world.finished_calls("r", 1).await, [1, 2, 3]);
    assert_eq!(world.effects("r").await, [(0, (0, 1)), (1, (1, 1)), (1, (2, 1))]);
    world.acknowledge_and_see_nothing_left("r", 1).await;
}
