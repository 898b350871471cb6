//! Scenario 13: the same checkpoint restored again, after its replacement made calls and crashed.

use std::collections::BTreeSet;

use belay_fake_backend::ctl::Hold;
use belay_proto::episode::Expect;

use crate::world::{BOUND, World};

/// Seen red: with attempts handed out as "checkpointed + 1" in the plan, the second restore hands out attempt 1 again.
#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_from_the_checkpoint_and_no_call_of_the_dead_run_is_in_its_lineage() {
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    let (_, published, _) = world.checkpoint().await;
    assert_eq!(published.episodes, 1);
    world.crash().await;
    first.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    world.restore().await;

    // The replacement makes its second call and its tool call, is held in its third, and is killed.
    world.ctl.release().await.unwrap();
    world.ctl.hold(Hold::AfterCallsPerRollout(3)).await.unwrap();
    let replacement = world.run("r", 1, Expect::Restored);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    assert_eq!(world.finished_calls("r", 1).await, [1]);
    assert_eq!(world.effects("r").await, [(0, (0, 1)), (1, (1, 1))]);
    world.crash().await;
    replacement.await.unwrap().expect_err("its server was killed");
    world.up_again().await;

    let plan = world.restore().await;
    assert_eq!(
        plan.iter().map(|planned| planned.attempt).collect::<Vec<_>>(),
        [2]
    );
    world.ctl.release().await.unwrap();
    let result = world.run("r", 2, Expect::Restored).await.unwrap().unwrap();
    assert_eq!(
        result.reward, 1.0,
        "the increment of the dead run is not in the session"
    );
    assert_eq!((result.model_calls, result.tool_calls), (4, 3));
    assert_eq!(world.finished_calls("r", 2).await, [1, 2, 3]);

    let rows = world.trajectory("r", 2).await;
    let turns: Vec<_> = rows.iter().map(|row| row.operation.unwrap().turn).collect();
    assert_eq!(turns, [0, 1, 2, 3], "each call once");
    let attempts: Vec<_> = rows
        .iter()
        .map(|row| row.episode.as_ref().unwrap().attempt)
        .collect();
    assert_eq!(attempts, [0, 2, 2, 2], "none of attempt 1");
    assert!(rows[0].parent.is_empty());
    for pair in rows.windows(2) {
        assert_eq!(pair[1].parent, pair[0].chain_hash, "the rows are a chain");
    }
    for row in &rows {
        assert_eq!(row.masked_because, "");
        assert!(!row.token_ids.is_empty());
        assert_eq!(row.token_ids.len(), row.logprobs.len());
        assert_eq!(
            row.token_ids.len() as u32,
            row.weights.iter().map(|span| span.tokens).sum::<u32>()
        );
    }
    let executions: BTreeSet<_> = rows[1..].iter().map(|row| &row.execution).collect();
    assert_eq!(executions.len(), 1);
    world.acknowledge_and_see_nothing_left("r", 2).await;
}
