//! An episode's deadline stands still from the capture to the restore (protocol 3.2 rule 6).

use std::time::Duration;

use belay_core::refusal::Reason;
use belay_fake_backend::ctl::Hold;
use belay_proto::episode::{Expect, RunRequest};
use tokio::time::Instant;

use crate::world::{BOUND, World, good, refused};

/// Long enough for the steps before the checkpoint and after the restore on a loaded machine; short enough to be waited out.
const DEADLINE: Duration = Duration::from_secs(8);

/// Seen red: with the clock of a restored episode running before it is claimed, the second one is over before it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn it_stands_still_between_a_crash_and_the_restore_and_runs_on_after_it() {
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let started = Instant::now();
    let runs = ["goes-on", "too-slow"].map(|rollout| {
        world.send(RunRequest {
            deadline: Some(DEADLINE.try_into().unwrap()),
            ..world.request("counter", rollout, 0, Expect::Fresh)
        })
    });
    world.ctl.wait_held(2, BOUND).await.unwrap();
    let (_, published, _) = world.checkpoint().await;
    assert_eq!(published.episodes, 2);
    world.crash().await;
    for run in runs {
        run.await.unwrap().expect_err("its server was killed");
    }
    // The time is what is under test: nothing is there to be waited for.
    tokio::time::sleep_until(started + DEADLINE).await;
    world.up_again().await;
    assert_eq!(world.restore().await.len(), 2);

    // The model holds its call: what is left of the deadline runs out.
    let late = refused(world.run("too-slow", 1, Expect::Restored)).await;
    assert_eq!(late.reason, Reason::DeadlinePassed);
    world.retire("too-slow", 1).await;

    // Nobody had claimed the other one meanwhile.
    world.ctl.release().await.unwrap();
    assert!(good(world.run("goes-on", 1, Expect::Restored)).await.restored);
    world.acknowledge_and_see_nothing_left("goes-on", 1).await;
}
