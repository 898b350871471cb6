//! Retire: what still runs is named, and stopped all the same.

use std::{sync::Arc, time::Duration};

use belay_core::refusal::Reason;
use tokio::sync::Notify;

use crate::rig::{Rig, SOON, episode, id, refused, until};

#[tokio::test]
async fn what_still_runs_at_the_timeout_is_named_and_a_second_call_joins_the_first() {
    let rig = Rig::holding(&["a"]).await;
    let slow = Arc::new(Notify::new());
    *rig.owner.slow_retire.lock().unwrap() = Some(slow.clone());
    let busy = rig.gate.enter(&episode("a"), "tool sleep").await.unwrap();
    let short = Duration::from_millis(5);
    for _ in 0..2 {
        let unfinished = rig.retire(1, &["a"], short).await.unwrap().unfinished;
        assert_eq!(unfinished.len(), 1);
        assert_eq!(unfinished[0].step, "tool sleep");
    }
    assert!(
        rig.gate.enter(&episode("a"), "tool").await.is_err(),
        "refused from now on"
    );
    refused(rig.forget(2, &["a"], true).await, Reason::RetireIncomplete);

    // It blocks no checkpoint.
    rig.prepare(id(1)).await.unwrap();
    refused(rig.retire(1, &["a"], short).await, Reason::InvalidPhase);
    rig.abandon(id(1)).await.unwrap();

    drop(busy);
    let unfinished = rig.retire(1, &["a"], short).await.unwrap().unfinished;
    assert_eq!(unfinished[0].step, "retire", "the owner has not finished");
    refused(rig.forget(2, &["a"], true).await, Reason::RetireIncomplete);
    slow.notify_one();
    assert_eq!(rig.retire(1, &["a"], SOON).await.unwrap().unfinished, []);
    until("retired", || rig.owner.retired.lock().unwrap().len() == 1).await;
    assert_eq!(rig.forget(2, &["a"], false).await.unwrap().forgotten, 1);
    rig.gate.enter(&episode("a"), "seed").await.unwrap();
}
