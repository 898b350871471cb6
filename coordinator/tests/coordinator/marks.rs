//! Retire and Forget.

use belay_core::refusal::Reason;
use belay_mesh::status::from_status;
use belay_proto::checkpoint as pb;

use super::{all, newest, support::*, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_attempt_is_refused_after_every_crash_until_it_is_forgotten() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.seed("b");
    mesh.checkpoint(all()).await.published();
    let status = mesh
        .client()
        .forget(pb::CoordinatorForgetRequest {
            rollout_ids: vec!["a".into()],
        })
        .await;
    assert_eq!(
        from_status(&status.unwrap_err()).unwrap().reason,
        Reason::RolloutLive
    );
    let retired = mesh.retire("a", 0).await;
    assert_eq!((retired.next[0].attempt, retired.unfinished.len()), (1, 0));
    for name in ALL {
        assert_eq!(mesh.held(name), [episode("b", 0)], "{name}");
    }
    mesh.restart_all().await;
    mesh.kill_coordinator();
    mesh.start_coordinator().await;
    mesh.all_in(pb::Phase::Joining).await;
    let story = mesh.restore(newest()).await.restored();
    assert_eq!(story.retired, ["a"]);
    assert_eq!(story.plan.len(), 1);
    for name in ALL {
        let refusal = mesh.servers[name]
            .gate
            .check_mark(&episode("a", 0))
            .expect_err("refused");
        assert_eq!(refusal.reason, Reason::StaleAttempt, "{name}");
        assert!(
            mesh.servers[name].gate.check_mark(&episode("a", 1)).is_ok(),
            "{name}"
        );
    }
    let forgotten = mesh
        .client()
        .forget(pb::CoordinatorForgetRequest {
            rollout_ids: vec!["a".into()],
        })
        .await
        .unwrap();
    assert_eq!(forgotten.into_inner().forgotten, 1);
    for name in ALL {
        assert!(
            mesh.servers[name].gate.check_mark(&episode("a", 0)).is_ok(),
            "{name}"
        );
    }
    // Forgotten is over: an old checkpoint does not bring it back.
    mesh.restart_all().await;
    mesh.all_in(pb::Phase::Joining).await;
    let story = mesh.restore(newest()).await.restored();
    assert_eq!(story.retired, ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retire_that_a_server_missed_reaches_it_when_it_is_back() {
    let mut mesh = Mesh::open().await;
    mesh.seed("a");
    mesh.kill(RES);
    let retired = mesh.retire("a", 0).await;
    assert_eq!(retired.next[0].attempt, 1);
    assert_eq!(mesh.coordinator_status().await.unfinished_retires, 1);
    mesh.restart(RES).await;
    until("the retire to be complete", async || {
        mesh.coordinator_status().await.unfinished_retires == 0
    })
    .await;
    assert!(mesh.servers[RES].gate.check_mark(&episode("a", 0)).is_err());
}
