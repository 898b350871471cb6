//! Values come back from the wire as they went; what breaks a rule is refused by name.

use belay_core::{
    parts::{
        LedgerTip, Mark, Need, PartNeeded, PartSummary, PartitionEntry, PlannedEpisode, Restart, Standing,
    },
    refusal::Blocker,
};
use belay_proto::checkpoint as ck;

use super::*;
use crate::members::Member;

#[test]
fn what_breaks_a_rule_is_refused_by_name() {
    let field = |refusal: Refusal| (refusal.reason, refusal.get("field").map(str::to_owned));
    let invalid = |name: &str| (Reason::InvalidRequest, Some(name.to_owned()));
    assert_eq!(field(episode(None).unwrap_err()), invalid("episode"));
    let bad = pb::Episode {
        rollout_id: "a/b".into(),
        attempt: 0,
    };
    assert_eq!(
        field(episode(Some(bad)).unwrap_err()),
        (Reason::InvalidId, Some("rollout_id".into()))
    );
    let bad = pb::EpisodeRef {
        episode: Some(pb::Episode {
            rollout_id: "a".into(),
            attempt: 0,
        }),
        execution: "7".into(),
    };
    assert_eq!(
        field(episode_ref(Some(bad)).unwrap_err()),
        (Reason::InvalidId, Some("execution".into()))
    );
    assert_eq!(field(operation(None).unwrap_err()), invalid("operation"));
    let bad = pb::Instance {
        kind: 9,
        name: "a".into(),
        replica: 0,
    };
    assert_eq!(field(instance(Some(bad)).unwrap_err()), invalid("kind"));
    assert_eq!(field(digest("d", &[0; 31]).unwrap_err()), invalid("d"));
    for bad in [None, Some((0, 0)), Some((-1, 0)), Some((3_600, 1))] {
        let wire = bad.map(|(seconds, nanos)| prost_types::Duration { seconds, nanos });
        assert_eq!(
            field(timeout("timeout", wire).unwrap_err()),
            invalid("timeout"),
            "{bad:?}"
        );
    }
    assert_eq!(grace(None).unwrap(), Duration::from_secs(60));
    let long = prost_types::Duration {
        seconds: 601,
        nanos: 0,
    };
    assert_eq!(field(grace(Some(long)).unwrap_err()), invalid("grace"));
}

#[test]
fn values_come_back_as_they_went() {
    let place: Instance = "policy-model/default/3".parse().unwrap();
    assert_eq!(instance(Some(place.to_wire())).unwrap(), place);
    let episode_ = Episode::new(RolloutId::new("a").unwrap(), 7);
    assert_eq!(episode(Some(episode_.to_wire())).unwrap(), episode_);
    let at = Cursor {
        operation: Some(Operation::model_call(2)),
        chain: Some([7; 32]),
        revision: 9,
    };
    assert_eq!(cursor(Some(at.to_wire())).unwrap(), at);
    assert_eq!(cursor(None).unwrap(), Cursor::default());
    for mode in [
        CheckpointMode::Exported,
        CheckpointMode::Stateless,
        CheckpointMode::RestartOnly,
    ] {
        assert_eq!(checkpoint_mode(mode.to_wire()).unwrap(), mode);
    }
    for mode in [VerifyMode::Replay, VerifyMode::Wait] {
        assert_eq!(verify_mode(mode.to_wire()).unwrap(), mode);
    }
    assert!(checkpoint_mode(0).is_err() && verify_mode(0).is_err());
}

fn execution() -> ExecutionId {
    "01930000-0000-7000-8000-000000000001".parse().unwrap()
}

fn an_episode(attempt: u32) -> Episode {
    Episode::new(RolloutId::new("task-1").unwrap(), attempt)
}

#[test]
fn what_a_capture_says_comes_back_as_it_went() {
    let place = |text: &str| text.parse::<Instance>().unwrap();
    let first = LedgerTip {
        operation: Operation::FIRST,
        chain: [1; 32],
        parent: None,
    };
    let later = LedgerTip {
        operation: Operation::model_call(3),
        chain: [2; 32],
        parent: Some([3; 32]),
    };
    for ledger in [None, Some(first), Some(later)] {
        let captured = PartSummary {
            episode: an_episode(2),
            execution: execution(),
            root: ledger.is_none(),
            cursor: Cursor {
                operation: Some(Operation::tool_call(3, 0)),
                chain: Some([2; 32]),
                revision: 4,
            },
            needs: vec![
                PartNeeded {
                    instance: place("resources/counter/0"),
                    need: Need::Whole,
                },
                PartNeeded {
                    instance: place("policy-model/default/1"),
                    need: Need::IfBegun,
                },
            ],
            ledger,
            revision: 5,
            boundary: "invoke_agent".into(),
            task: ledger.map(|_| [9; 32]),
            finished: ledger.is_some(),
        };
        assert_eq!(part(captured.to_wire()).unwrap(), captured);
    }
    let standings = [
        Standing::Acknowledged,
        Standing::SavedRunning,
        Standing::SavedFinished,
        Standing::Restart,
        Standing::LeftOut,
        Standing::Retired,
        Standing::Failed,
    ];
    for standing in standings {
        let entry = PartitionEntry {
            episode: an_episode(0),
            standing,
            reason: "why".into(),
        };
        assert_eq!(partition_entry(entry.to_wire()).unwrap(), entry);
    }
    let unset = ck::PartitionEntry {
        episode: Some(an_episode(0).to_wire()),
        ..Default::default()
    };
    assert_eq!(partition_entry(unset).unwrap_err().get("field"), Some("standing"));
}

#[test]
fn what_the_coordinator_says_comes_back_as_it_went() {
    let place: Instance = "agent/default/0".parse().unwrap();
    let held_up = Blocker {
        episode: an_episode(1),
        instance: place.clone(),
        step: "verify".into(),
        age: Duration::from_millis(1_500),
        reason: "it may not run twice".into(),
    };
    assert_eq!(blocker(held_up.to_wire()).unwrap(), held_up);
    let cannot = Restart {
        episode: an_episode(1),
        instance: place.clone(),
        reason: "restart_only".into(),
    };
    assert_eq!(restart(cannot.to_wire()).unwrap(), cannot);
    let plan = PlannedEpisode {
        saved: an_episode(1),
        attempt: 2,
        execution: execution(),
        placement: vec![place.clone()],
    };
    assert_eq!(planned(plan.to_wire()).unwrap(), plan);
    let raised = Mark {
        rollout: RolloutId::new("task-1").unwrap(),
        attempt: 4,
    };
    let set = ck::MarkSet {
        version: 7,
        marks: vec![raised.to_wire()],
    };
    assert_eq!(mark_set(Some(set)).unwrap(), (7, vec![raised]));
    let there = Member {
        instance: place,
        data: "127.0.0.1:1".into(),
        control: "127.0.0.1:2".into(),
    };
    let list = ck::MemberList {
        version: 3,
        members: vec![there.to_wire()],
    };
    assert_eq!(member_list(Some(list)).unwrap(), (3, vec![there]));
    assert_eq!(
        (mark_set(None).unwrap(), member_list(None).unwrap()),
        ((0, vec![]), (0, vec![]))
    );
}
