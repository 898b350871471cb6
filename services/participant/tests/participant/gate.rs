//! The door: who waits, who is let in, who is turned away.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use belay_core::{participant::Phase, refusal::Reason};
use belay_proto::checkpoint as pb;

use crate::rig::{Rig, SOON, episode, id, until};

#[tokio::test]
async fn before_the_mesh_is_joined_data_calls_are_told_to_try_again() {
    let rig = Rig::joining();
    let refusal = rig.gate.enter(&episode("a"), "seed").await.unwrap_err();
    assert_eq!(refusal.reason, Reason::NotJoined);
    assert!(refusal.retry_after.is_some());
    assert_eq!(
        rig.gate.enter_replay(&episode("a")).unwrap_err().reason,
        Reason::NotJoined
    );
}

#[tokio::test]
async fn a_call_waits_at_the_door_and_is_let_in_when_it_opens() {
    let rig = Rig::holding(&[]).await;
    rig.prepare(id(1)).await.unwrap();
    let waiting = tokio::spawn({
        let gate = rig.gate.clone();
        async move { gate.enter(&episode("a"), "seed").await }
    });
    while rig.status().await.at_door == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rig.commit(id(1), &[]).await.unwrap().at_door, 1);
    assert!(!waiting.is_finished());
    rig.keep(id(1)).await.unwrap();
    let permit = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(permit.episode(), &episode("a"));
    let status = rig.status().await;
    assert_eq!((status.at_door, status.blocker_count), (0, 1));
}

#[tokio::test]
async fn whoever_goes_away_leaves_the_door_and_was_never_admitted() {
    let rig = Rig::holding(&[]).await;
    rig.prepare(id(1)).await.unwrap();
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let gate = rig.gate.clone();
            tokio::spawn(async move { gate.enter(&episode("a"), "seed").await.map(drop) })
        })
        .collect();
    while rig.status().await.at_door < 3 {
        tokio::task::yield_now().await;
    }
    let refusal = rig.gate.enter(&episode("b"), "seed").await.unwrap_err();
    assert_eq!(refusal.reason, Reason::AdmissionFull);
    for call in calls {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
    assert_eq!(rig.status().await.at_door, 0);
    rig.abandon(id(1)).await.unwrap();
    assert_eq!(rig.status().await.blocker_count, 0);
}

#[tokio::test]
async fn whoever_is_let_in_is_held_against_the_marks_again() {
    let rig = Rig::holding(&[]).await;
    rig.prepare(id(1)).await.unwrap();
    let waiting = tokio::spawn({
        let gate = rig.gate.clone();
        async move { gate.enter(&episode("a"), "seed").await }
    });
    while rig.status().await.at_door == 0 {
        tokio::task::yield_now().await;
    }
    let marks = pb::JoinRequest {
        marks: Some(pb::MarkSet {
            version: 1,
            marks: vec![crate::rig::mark("a", 0)],
        }),
        ..rig.join_request(false)
    };
    use pb::checkpoint_participant_server::CheckpointParticipant;
    rig.participant.join(tonic::Request::new(marks)).await.unwrap();
    rig.abandon(id(1)).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap_err().reason, Reason::StaleAttempt);
}

#[tokio::test]
async fn a_discarded_restore_turns_away_who_waits() {
    let source = Rig::holding(&["a"]).await;
    let shard = source.checkpoint(id(1), &["a"]).await;
    let rig = source.beside(0);
    rig.restore(rig.restore_request(id(2), id(1), &["a"], &[shard]))
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let gate = rig.gate.clone();
        async move { gate.enter(&episode("b"), "seed").await }
    });
    while rig.status().await.at_door == 0 {
        tokio::task::yield_now().await;
    }
    rig.abandon(id(2)).await.unwrap();
    assert_eq!(rig.gate.phase(), Phase::Joining);
    assert_eq!(waiting.await.unwrap().unwrap_err().reason, Reason::NotJoined);
}

#[tokio::test]
async fn replies_leave_until_the_capture_and_again_after_resume() {
    let rig = Rig::holding(&[]).await;
    let free = |wait: bool| {
        let gate = rig.gate.clone();
        async move {
            let leaves = gate.reply_may_leave();
            if wait {
                tokio::time::timeout(SOON, leaves).await.is_ok()
            } else {
                tokio::time::timeout(Duration::from_millis(5), leaves)
                    .await
                    .is_ok()
            }
        }
    };
    rig.prepare(id(1)).await.unwrap();
    assert!(free(true).await, "PREPARED holds no reply");
    assert!(
        tokio::time::timeout(Duration::from_millis(5), rig.gate.opened())
            .await
            .is_err()
    );
    rig.commit(id(1), &[]).await.unwrap();
    assert!(!free(false).await, "COMMITTED does");
    rig.keep(id(1)).await.unwrap();
    assert!(free(true).await);
    tokio::time::timeout(SOON, rig.gate.opened()).await.unwrap();
}

#[tokio::test]
async fn a_replayable_step_waits_for_no_checkpoint_and_holds_none_up() {
    let rig = Rig::holding(&["a"]).await;
    rig.prepare(id(1)).await.unwrap();
    rig.gate.enter_replay(&episode("a")).unwrap();
    assert_eq!(rig.commit(id(1), &["a"]).await.unwrap().parts.len(), 1);
}

#[tokio::test]
async fn serving_is_told_when_the_server_is_first_open() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let dir = Arc::new(tempfile::TempDir::new().unwrap());
    let rig = Rig::with(dir, 0, move |options| {
        options.on_serving = Arc::new(move |serving| tell.lock().unwrap().push(serving));
    });
    rig.join(false).await.unwrap();
    assert!(told.lock().unwrap().is_empty());
    rig.join(true).await.unwrap();
    rig.prepare(id(1)).await.unwrap();
    rig.abandon(id(1)).await.unwrap();
    assert_eq!(*told.lock().unwrap(), [true], "a checkpoint is no outage");
}

#[tokio::test]
async fn a_server_without_a_coordinator_serves_from_the_start() {
    let dir = Arc::new(tempfile::TempDir::new().unwrap());
    let rig = Rig::with(dir, 0, |options| options.standalone = true);
    drop(rig.gate.enter(&episode("a"), "seed").await.unwrap());
    assert_eq!(rig.status().await.phase(), pb::Phase::Idle);
}

#[tokio::test]
async fn a_thousand_calls_at_the_door_are_all_let_in() {
    use belay_participant::{Gate, GateOptions, Participant, ParticipantOptions};
    let gate = Gate::new(GateOptions {
        instance: crate::rig::instance(0),
        door: 1000,
        standalone: true,
    });
    let dir = tempfile::TempDir::new().unwrap();
    let owner = Arc::new(crate::counters::Counters::new(gate.clone()));
    let options = ParticipantOptions::new(dir.path(), "test");
    let participant = Participant::new(options, gate.clone(), owner, Default::default());
    use pb::checkpoint_participant_server::CheckpointParticipant;
    let fence = Some(pb::Fence {
        coordinator_epoch: 1,
        incarnation: gate.incarnation().to_string(),
    });
    let prepare = pb::PrepareRequest {
        fence: fence.clone(),
        checkpoint_id: id(1).to_string(),
        timeout: Some(prost_types::Duration { seconds: 9, nanos: 0 }),
        ..Default::default()
    };
    participant.prepare(tonic::Request::new(prepare)).await.unwrap();
    let calls: Vec<_> = (0..1000)
        .map(|n| {
            let gate = gate.clone();
            let episode = episode(&format!("e{n}"));
            tokio::spawn(async move { gate.enter(&episode, "seed").await.unwrap() })
        })
        .collect();
    let at_door = || async {
        let status = participant.status(tonic::Request::new(pb::StatusRequest::default()));
        status.await.unwrap().into_inner().at_door
    };
    while at_door().await < 1000 {
        tokio::task::yield_now().await;
    }
    let resume = pb::ResumeRequest {
        fence,
        checkpoint_id: id(1).to_string(),
        decision: pb::Decision::Abandon.into(),
    };
    participant.resume(tonic::Request::new(resume)).await.unwrap();
    for call in calls {
        tokio::time::timeout(SOON, call).await.unwrap().unwrap();
    }
    until("an empty door", || gate.is_open()).await;
    assert_eq!(at_door().await, 0);
}
