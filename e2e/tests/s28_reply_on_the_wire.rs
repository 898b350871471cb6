//! Scenario 28: a model reply is on its way to the agent when the mesh closes, then everything crashes.

use belay_fake_backend::{ctl::Hold, work::WorkKind};
use belay_proto::{checkpoint::CheckpointRequest, episode::Expect};

use crate::world::{BOUND, World, good};

/// `slow` keeps its agent from being PREPARED; by then the policy model is closed, and the call of `r` ends there.
///
/// Seen red: with kept replies left out of the policy model's record, the restored attempt ends (OPERATION_PAST).
#[tokio::test(flavor = "multi_thread")]
async fn the_restored_agent_gets_that_reply_and_nothing_is_sampled_again() {
    let mut world = World::start_with(|config| config.faults.work_asks = Some("engine".into())).await;
    world.ctl.hold_work(WorkKind::Tool, "slow/0/1/").await.unwrap();
    let slow = world.run("slow", 0, Expect::Fresh);
    world.ctl.wait_work(WorkKind::Tool, 1, BOUND).await.unwrap();
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();

    let mut checkpoint = world.begin_checkpoint(CheckpointRequest::default()).await;
    checkpoint.until_it_waits_for("slow", "increment_counter").await;
    world.ctl.release().await.unwrap();
    world
        .until("the reply is held", |all| {
            all.iter().any(|s| s.counts.get("held_replies") == Some(&1))
        })
        .await;
    assert_eq!(world.finished_calls("r", 0).await, [0, 1]);
    world.ctl.release_work(WorkKind::Tool).await.unwrap();
    let (_, published, _) = checkpoint.published().await;
    assert_eq!((published.episodes, published.restarts), (2, 0));
    world.crash().await;
    // Whether they came to their end between the checkpoint and the crash makes no difference to what is restored.
    drop((slow, first));
    world.up_again().await;
    assert_eq!(world.restore().await.len(), 2);

    good(world.run("r", 1, Expect::Restored)).await;
    good(world.run("slow", 1, Expect::Restored)).await;
    assert_eq!(
        world.finished_calls("r", 1).await,
        [2, 3],
        "the second call is not made again"
    );
    let rows = world.trajectory("r", 1).await;
    let lineage: Vec<_> = rows
        .iter()
        .map(|row| (row.episode.as_ref().unwrap().attempt, row.operation.unwrap().turn))
        .collect();
    assert_eq!(lineage, [(0, 0), (0, 1), (1, 2), (1, 3)], "no row twice");
    for pair in rows.windows(2) {
        assert_eq!(pair[1].parent, pair[0].chain_hash, "the rows are a chain");
    }
    world.free("r", 1).await;
    world.free("slow", 1).await;
    world.see_nothing_left().await;
}
