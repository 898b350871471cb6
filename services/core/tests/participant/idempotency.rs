//! The same call again gets the recorded reply and does nothing; the same id with other arguments is refused.

use belay_core::{
    participant::{CommitTurn, Effect, Outcome, Phase, Prepare, RestoreTurn, Settle},
    refusal::Reason,
};

use crate::rig::{
    Rig, commit, durable, id, mark, marks, part, prepare, refused, restart, restore, s, settle,
};

/// Effects that change something; waking and timers do not.
fn acts(rig: &mut Rig) -> Vec<Effect> {
    let mut effects = rig.effects();
    effects.retain(|effect| !matches!(effect, Effect::Phase(_) | Effect::Timer));
    effects
}

#[test]
fn prepare_joins_the_one_that_closed() {
    let mut rig = Rig::idle();
    let call = Prepare {
        restarts: vec![restart("r")],
        ..prepare(id(1))
    };
    assert!(rig.prepare(&call).unwrap(), "this one closed it");
    assert_eq!(acts(&mut rig), [Effect::Closing(id(1))]);
    rig.report(id(1), &[restart("found")]);
    let first = rig.reported(id(1));
    rig.now = s(30);
    assert!(!rig.prepare(&call).unwrap(), "this one joined");
    rig.report(id(1), &[restart("later")]);
    assert_eq!(rig.reported(id(1)), first, "what was replied is fixed");
    assert_eq!(acts(&mut rig), []);
    for other in [
        Prepare {
            grace: s(1),
            ..call.clone()
        },
        Prepare {
            soft_limit: Some(s(1)),
            ..call.clone()
        },
        Prepare {
            restarts: vec![],
            ..call.clone()
        },
    ] {
        refused(rig.prepare(&other), Reason::CheckpointConflict);
    }
}

#[test]
fn commit_captures_once() {
    let mut rig = Rig::prepared(id(1));
    let call = commit(id(1), &["a", "b"]);
    let first = rig.commit(&call).unwrap();
    assert_eq!(acts(&mut rig), [Effect::StartPersist(id(1))]);
    let again = rig.machine.commit(rig.now, &rig.fence, &call);
    assert_eq!(again, Ok(CommitTurn::Recorded(first)));
    assert_eq!(acts(&mut rig), []);
    refused(
        rig.machine.commit(rig.now, &rig.fence, &commit(id(1), &["a"])),
        Reason::CheckpointConflict,
    );
}

#[test]
fn resume_keep_and_abandon() {
    let mut rig = Rig::committed(id(1));
    let kept = rig.keep(id(1)).unwrap();
    assert_eq!(acts(&mut rig), [Effect::Over(id(1))]);
    assert_eq!(rig.keep(id(1)), Ok(kept));
    refused(rig.abandon(id(1)), Reason::CheckpointConflict);
    assert_eq!(acts(&mut rig), []);

    let mut rig = Rig::committed(id(1));
    let abandoned = rig.abandon(id(1)).unwrap();
    assert_eq!(
        acts(&mut rig),
        [
            Effect::Over(id(1)),
            Effect::StopPersist(id(1)),
            Effect::FreeCapture(id(1)),
            Effect::Discarded(id(1)),
        ]
    );
    assert_eq!(rig.abandon(id(1)), Ok(abandoned));
    refused(rig.keep(id(1)), Reason::StaleCheckpoint);
    assert_eq!(acts(&mut rig), []);
}

#[test]
fn awaiting_is_repeatable_also_after_the_capture_is_settled() {
    let mut rig = Rig::committed(id(1));
    assert_eq!(rig.machine.durable(id(1)), Ok(None));
    rig.machine.persisted(id(1), Ok(durable()));
    for _ in 0..2 {
        rig.machine.begin_await(rig.now, &rig.fence, id(1)).unwrap();
        assert_eq!(rig.machine.durable(id(1)), Ok(Some(durable())));
    }
    rig.keep(id(1)).unwrap();
    rig.settle(&settle(id(1), Outcome::Published)).unwrap();
    assert_eq!(rig.machine.durable(id(1)), Ok(Some(durable())));
}

#[test]
fn settle_published_drops_once() {
    let mut rig = Rig::unsettled(id(1));
    let call = Settle {
        drop: marks(4, &[mark("left", 2)]),
        ..settle(id(1), Outcome::Published)
    };
    assert_eq!(rig.settle(&call), Ok(1));
    assert_eq!(acts(&mut rig), [Effect::FreeCapture(id(1))]);
    assert!(rig.machine.marks().refuses(&crate::rig::episode("left", 2)));
    assert_eq!(
        rig.machine.settle(rig.now, &rig.fence, &call),
        Ok(belay_core::participant::SettleTurn::Done(1)),
        "recorded: nothing is dropped again"
    );
    assert_eq!(acts(&mut rig), []);
    refused(
        rig.settle(&settle(id(1), Outcome::Published)),
        Reason::CheckpointConflict,
    );
    refused(
        rig.settle(&settle(id(1), Outcome::Discarded)),
        Reason::CheckpointConflict,
    );
}

#[test]
fn settle_discarded_stops_and_frees_once() {
    let mut rig = Rig::unsettled(id(1));
    let call = settle(id(1), Outcome::Discarded);
    assert_eq!(rig.settle(&call), Ok(0));
    assert_eq!(
        acts(&mut rig),
        [
            Effect::StopPersist(id(1)),
            Effect::FreeCapture(id(1)),
            Effect::Discarded(id(1)),
        ]
    );
    assert_eq!(rig.settle(&call), Ok(0));
    assert_eq!(acts(&mut rig), []);
    refused(
        rig.settle(&settle(id(1), Outcome::Published)),
        Reason::CheckpointConflict,
    );
    refused(rig.machine.durable(id(1)), Reason::StaleCheckpoint);
}

#[test]
fn restore_stages_once_and_keep_activates_once() {
    let mut rig = Rig::joining();
    let call = restore(id(1), &[("a", 1)]);
    let turn = |rig: &mut Rig| rig.machine.restore(rig.now, &rig.fence, &call);
    assert_eq!(turn(&mut rig), Ok(RestoreTurn::Stage));
    assert_eq!(turn(&mut rig), Ok(RestoreTurn::Reading));
    let report = rig.staged(id(1)).unwrap();
    assert_eq!(rig.staged(id(1)), None);
    assert_eq!(turn(&mut rig), Ok(RestoreTurn::Recorded(report)));
    refused(
        rig.machine
            .restore(rig.now, &rig.fence, &restore(id(1), &[("a", 2)])),
        Reason::CheckpointConflict,
    );
    let kept = rig.keep(id(1)).unwrap();
    assert_eq!((kept.phase, kept.activated), (Phase::Idle, 1));
    assert_eq!(rig.keep(id(1)), Ok(kept));
    refused(turn(&mut rig), Reason::StaleCheckpoint);
    refused(rig.machine.activated(rig.now, id(1), 1), Reason::StaleCheckpoint);
}

#[test]
fn join_renew_retire_and_forget() {
    let mut rig = Rig::joining();
    let list = marks(3, &[mark("a", 1)]);
    for _ in 0..2 {
        assert_eq!(rig.join(true, list.clone()), Ok(Phase::Idle));
    }
    for _ in 0..2 {
        let held = rig
            .machine
            .retire(rig.now, &rig.fence, &marks(4, &[mark("b", 0)]));
        assert_eq!(held, Ok(vec![mark("b", 0)]), "asked for again: stopped again");
    }
    let rollouts = [crate::rig::rollout("b")];
    for dropped in [1, 0] {
        let asked = rig.machine.may_forget(rig.now, &rig.fence, &rollouts, 5).unwrap();
        assert_eq!(rig.machine.forget(&asked, 5), dropped);
    }
    rig.prepare(&prepare(id(1))).unwrap();
    for _ in 0..2 {
        assert_eq!(rig.machine.renew(rig.now, &rig.fence, id(1)), Ok(Some(s(60))));
    }
}

#[test]
fn a_part_that_is_too_large_stays_a_restart_in_the_recorded_reply() {
    let mut rig = Rig::prepared(id(1));
    let call = commit(id(1), &["a", "big"]);
    let parts = vec![(part("a"), 10), (part("big"), crate::rig::LIMIT + 1)];
    let report = rig.commit_with(&call, parts).unwrap();
    assert_eq!(report.parts, [part("a")]);
    assert_eq!(report.bytes, 10);
    assert_eq!(report.restarts.len(), 1);
    assert!(report.restarts[0].reason.contains("RECORD_TOO_LARGE"));
    assert_eq!(rig.commit(&call), Ok(report));
}

#[test]
fn marks_of_an_older_version_are_ignored_in_every_call_that_carries_them() {
    let mut rig = Rig::idle();
    rig.join(false, marks(9, &[])).unwrap();
    rig.join(false, marks(8, &[mark("a", 0)])).unwrap();
    let late = rig
        .machine
        .retire(rig.now, &rig.fence, &marks(8, &[mark("a", 0)]));
    refused(late, Reason::RetireIncomplete);
    let old = belay_core::participant::Restore {
        marks: marks(8, &[mark("a", 0)]),
        ..restore(id(1), &[("b", 1)])
    };
    rig.machine.restore(rig.now, &rig.fence, &old).unwrap();
    rig.abandon(id(1)).unwrap();
    assert!(rig.machine.marks().is_empty());
    assert_eq!(rig.machine.marks().version(), 9);
}
