//! The same call again gets the recorded reply and does its work once; other arguments are refused.

use std::sync::atomic::Ordering;

use belay_core::refusal::Reason;
use belay_mesh::wire::ToWire;
use belay_proto::checkpoint as pb;

use crate::rig::{Rig, SOON, episode, id, instance, mark, refused, restart, until};

#[tokio::test]
async fn join_installs_the_members_and_opens_once() {
    let rig = Rig::joining();
    assert_eq!(rig.status().await.phase(), pb::Phase::Joining);
    let request = pb::JoinRequest {
        members: Some(pb::MemberList {
            version: 3,
            members: vec![pb::Member {
                instance: Some(instance(0).to_wire()),
                data_address: "127.0.0.1:1".into(),
                control_address: "127.0.0.1:2".into(),
            }],
        }),
        marks: Some(pb::MarkSet {
            version: 2,
            marks: vec![mark("gone", 4)],
        }),
        ..rig.join_request(true)
    };
    for _ in 0..2 {
        use belay_proto::checkpoint::checkpoint_participant_server::CheckpointParticipant;
        let reply = rig.participant.join(tonic::Request::new(request.clone())).await;
        assert_eq!(reply.unwrap().into_inner().phase(), pb::Phase::Idle);
    }
    let status = rig.status().await;
    assert_eq!(
        (status.members_version, status.marks, status.marks_version),
        (3, 1, 2)
    );
    let refusal = rig.gate.check_mark(&episode("gone")).unwrap_err();
    assert_eq!(refusal.get("next_attempt"), Some("5"));
}

#[tokio::test]
async fn prepare_renew_and_commit() {
    let rig = Rig::holding(&["a", "b"]).await;
    *rig.owner.restarts.lock().unwrap() = vec![restart("r")];
    let first = rig.prepare(id(1)).await.unwrap();
    assert_eq!(first.phase(), pb::Phase::Prepared);
    assert_eq!(first.restarts.len(), 1);
    *rig.owner.restarts.lock().unwrap() = vec![];
    assert_eq!(rig.prepare(id(1)).await.unwrap(), first, "recorded");
    let other = pb::PrepareRequest {
        grace: Some(std::time::Duration::from_secs(9).to_wire()),
        ..rig.prepare_request(id(1))
    };
    refused(rig.prepare_with(other).await, Reason::CheckpointConflict);
    refused(rig.prepare(id(2)).await, Reason::CheckpointConflict);
    for _ in 0..2 {
        let left = rig.renew(id(1)).await.unwrap().lease_left.unwrap();
        assert!((59..=60).contains(&left.seconds), "{left:?}");
    }

    let first = rig.commit(id(1), &["a", "b", "elsewhere"]).await.unwrap();
    assert_eq!((first.parts.len(), first.bytes), (2, 40));
    assert_eq!(rig.commit(id(1), &["a", "b", "elsewhere"]).await.unwrap(), first);
    refused(rig.commit(id(1), &["a"]).await, Reason::CheckpointConflict);
    assert_eq!(rig.owner.captures.load(Ordering::SeqCst), 1);
    until("closing", || !rig.owner.closing.lock().unwrap().is_empty()).await;
    assert_eq!(*rig.owner.closing.lock().unwrap(), [id(1)]);
}

#[tokio::test]
async fn resume_await_and_settle() {
    let rig = Rig::holding(&["a", "left"]).await;
    rig.prepare(id(1)).await.unwrap();
    rig.commit(id(1), &["a"]).await.unwrap();
    let kept = rig.keep(id(1)).await.unwrap();
    assert_eq!(rig.keep(id(1)).await.unwrap(), kept);
    refused(rig.abandon(id(1)).await, Reason::CheckpointConflict);
    let durable = rig.wait_durable(id(1)).await.unwrap();
    assert_eq!(durable.records, 1);
    assert_eq!(rig.wait_durable(id(1)).await.unwrap(), durable);
    assert!(rig.status().await.unsettled.unwrap().durable);

    let published = pb::Outcome::Published;
    for _ in 0..2 {
        let settled = rig.settle_dropping(id(1), published, &["left"]).await.unwrap();
        assert_eq!(settled.dropped, 1);
    }
    assert_eq!(rig.owner.drops.load(Ordering::SeqCst), 1, "dropped once");
    assert_eq!(rig.owner.get(&episode("left")), None);
    assert!(rig.gate.check_mark(&episode("left")).is_err());
    refused(
        rig.settle(id(1), pb::Outcome::Discarded).await,
        Reason::CheckpointConflict,
    );
    refused(rig.settle(id(1), published).await, Reason::CheckpointConflict);
    assert_eq!(
        rig.wait_durable(id(1)).await.unwrap(),
        durable,
        "also when it is settled"
    );
    assert!(rig.status().await.unsettled.is_none());
    assert!(rig.has_manifest(id(1)));
    refused(rig.prepare(id(1)).await, Reason::StaleCheckpoint);
    rig.prepare(id(2)).await.unwrap();
}

#[tokio::test]
async fn abandon_frees_and_tells_the_owner_once() {
    let rig = Rig::holding(&["a"]).await;
    rig.prepare(id(1)).await.unwrap();
    rig.commit(id(1), &["a"]).await.unwrap();
    for _ in 0..2 {
        assert_eq!(rig.abandon(id(1)).await.unwrap().phase(), pb::Phase::Idle);
    }
    until("discarded", || !rig.owner.discarded.lock().unwrap().is_empty()).await;
    assert_eq!(*rig.owner.discarded.lock().unwrap(), [id(1)]);
    refused(rig.keep(id(1)).await, Reason::StaleCheckpoint);
    refused(rig.wait_durable(id(1)).await, Reason::StaleCheckpoint);
}

#[tokio::test]
async fn restore_and_keep() {
    let rig = Rig::holding(&["a", "b"]).await;
    let shard = rig.checkpoint(id(1), &["a", "b"]).await;
    let fresh = rig.beside(0);
    let request = fresh.restore_request(id(2), id(1), &["a", "b"], &[shard]);
    let first = fresh.restore(request.clone()).await.unwrap();
    assert_eq!((first.staged, first.bytes), (2, 2));
    assert_eq!(fresh.restore(request.clone()).await.unwrap(), first);
    let mut other = request.clone();
    other.plan.pop();
    refused(fresh.restore(other).await, Reason::CheckpointConflict);
    assert_eq!(fresh.status().await.phase(), pb::Phase::Restored);
    assert!(fresh.status().await.in_doubt.is_some());

    let kept = fresh.keep(id(2)).await.unwrap();
    assert_eq!((kept.phase(), kept.activated), (pb::Phase::Idle, 2));
    assert_eq!(fresh.keep(id(2)).await.unwrap(), kept);
    assert_eq!(fresh.owner.activations.load(Ordering::SeqCst), 1);
    refused(fresh.restore(request).await, Reason::StaleCheckpoint);
    let second_attempt = belay_core::ids::Episode::new(crate::rig::rollout("b"), 1);
    assert_eq!(fresh.owner.get(&second_attempt), Some(2));
    assert!(
        fresh.gate.check_mark(&episode("b")).is_err(),
        "the attempt that it replaces"
    );
}

#[tokio::test]
async fn retire_and_forget() {
    let rig = Rig::holding(&["a"]).await;
    refused(rig.forget(2, &["a"], true).await, Reason::RolloutLive);
    for _ in 0..2 {
        assert_eq!(rig.retire(1, &["a"], SOON).await.unwrap().unfinished, []);
    }
    assert_eq!(rig.owner.get(&episode("a")), None);
    assert_eq!(rig.forget(2, &["a"], true).await.unwrap().forgotten, 0);
    assert_eq!(rig.status().await.marks, 1, "only asked");
    for forgotten in [1, 0] {
        assert_eq!(rig.forget(2, &["a"], false).await.unwrap().forgotten, forgotten);
    }
    assert_eq!(rig.status().await.marks, 0);
}

#[tokio::test]
async fn bad_arguments_are_refused_by_field() {
    let rig = Rig::idle().await;
    let good = rig.prepare_request(id(1));
    let seconds = |s| Some(prost_types::Duration { seconds: s, nanos: 0 });
    for (bad, reason, field) in [
        (
            pb::PrepareRequest {
                fence: None,
                ..good.clone()
            },
            Reason::InvalidRequest,
            "fence",
        ),
        (
            pb::PrepareRequest {
                timeout: None,
                ..good.clone()
            },
            Reason::InvalidRequest,
            "timeout",
        ),
        (
            pb::PrepareRequest {
                timeout: seconds(3601),
                ..good.clone()
            },
            Reason::InvalidRequest,
            "timeout",
        ),
        (
            pb::PrepareRequest {
                grace: seconds(601),
                ..good.clone()
            },
            Reason::InvalidRequest,
            "grace",
        ),
        (
            pb::PrepareRequest {
                soft_limit: seconds(20),
                ..good.clone()
            },
            Reason::InvalidRequest,
            "soft_limit",
        ),
        (
            pb::PrepareRequest {
                checkpoint_id: "7".into(),
                ..good.clone()
            },
            Reason::InvalidId,
            "checkpoint_id",
        ),
    ] {
        let refusal = refused(rig.prepare_with(bad).await, reason);
        assert_eq!(refusal.get("field"), Some(field));
    }
    refused(
        rig.resume(id(1), pb::Decision::Unspecified).await,
        Reason::InvalidRequest,
    );
    refused(
        rig.settle(id(1), pb::Outcome::Unspecified).await,
        Reason::InvalidRequest,
    );
    assert!(rig.gate.is_open(), "nothing was done");
}
