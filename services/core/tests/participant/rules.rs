//! The rules of protocol 3.2, one by one.

use belay_core::{
    ids::Incarnation,
    participant::{
        Admit, CommitTurn, Decision, Effect, Fence, MarkList, Outcome, Phase, Prepare, PrepareProgress,
        REMEMBERED, ResumeTurn, Settle,
    },
    parts::{PartitionEntry, Standing},
    refusal::{Reason, Refusal},
};
use uuid::Uuid;

use crate::rig::{
    GRACE, LIMIT, Rig, commit, durable, episode, id, mark, marks, part, prepare, refused, restart, restore,
    rollout, s, settle,
};

#[test]
fn another_incarnation_is_told_so_and_nothing_is_done() {
    let mut rig = Rig::idle();
    rig.fence = Fence {
        epoch: 99,
        incarnation: Incarnation(Uuid::from_u128(2)),
    };
    refused(rig.prepare(&prepare(id(1))), Reason::OtherIncarnation);
    refused(
        rig.join(true, marks(5, &[mark("a", 0)])),
        Reason::OtherIncarnation,
    );
    refused(rig.abandon(id(1)), Reason::OtherIncarnation);
    let view = rig.machine.view(rig.now, 0);
    assert_eq!((view.epoch, view.marks, view.phase), (1, 0, Phase::Idle));
    rig.fence.incarnation = Incarnation(Uuid::from_u128(1));
    rig.fence.epoch = 1;
    rig.prepare(&prepare(id(1)))
        .expect("the foreign ABANDON fenced nothing");
}

#[test]
fn a_lower_epoch_is_stale_once_a_higher_one_was_seen() {
    let mut rig = Rig::prepared(id(1));
    rig.fence.epoch = 2;
    rig.machine.renew(rig.now, &rig.fence, id(1)).unwrap();
    rig.fence.epoch = 1;
    refused(
        rig.machine.renew(rig.now, &rig.fence, id(1)),
        Reason::StaleCoordinator,
    );
    refused(rig.commit(&commit(id(1), &[])), Reason::StaleCoordinator);
    refused(rig.keep(id(1)), Reason::StaleCoordinator);
    refused(
        rig.settle(&settle(id(1), Outcome::Discarded)),
        Reason::StaleCoordinator,
    );
}

#[test]
fn the_last_to_park_completes_the_wait() {
    let mut rig = Rig::idle();
    let (one, two) = (rig.work("a"), rig.work("b"));
    rig.prepare(&prepare(id(1))).unwrap();
    assert_eq!(rig.blockers(id(1)), 2);
    rig.effects();
    rig.now = s(11);
    rig.release(one);
    assert_eq!((rig.phase(), rig.effects()), (Phase::Preparing, vec![]));
    rig.machine.step(rig.now, two, "verify".into());
    rig.now = s(21);
    let PrepareProgress::Waiting(waiting) = rig.machine.prepare_progress(rig.now, id(1), 10).unwrap() else {
        panic!("it waits");
    };
    let blocker = &waiting.blockers[0];
    assert_eq!((&*blocker.step, blocker.age), ("verify", s(10)));
    assert_eq!(blocker.episode, episode("b", 0));
    rig.release(two);
    assert_eq!(rig.phase(), Phase::Prepared);
    assert!(rig.effects().contains(&Effect::Phase(Phase::Prepared)));
    rig.report(id(1), &[]);
    assert_eq!(rig.reported(id(1)).took, s(20));
}

#[test]
fn the_oldest_blockers_are_listed_and_all_are_counted() {
    let mut rig = Rig::idle();
    let names: Vec<String> = (0..50).map(|n| format!("e{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        rig.now = s(100 - n as u64);
        rig.work(name);
    }
    rig.now = s(200);
    rig.prepare(&prepare(id(1))).unwrap();
    let view = rig.machine.view(rig.now, 3);
    let listed: Vec<String> = view
        .waiting
        .blockers
        .iter()
        .map(|b| b.episode.to_string())
        .collect();
    assert_eq!(listed, ["e49 attempt 0", "e48 attempt 0", "e47 attempt 0"]);
    assert_eq!(view.waiting.count, 50);
}

#[test]
fn a_commit_while_blocked_names_the_blockers() {
    let mut rig = Rig::idle();
    rig.work("a");
    rig.prepare(&prepare(id(1))).unwrap();
    let refusal = refused(rig.commit(&commit(id(1), &[])), Reason::InvalidPhase);
    assert_eq!(refusal.blockers.len(), 1);
}

#[test]
fn restarts_count_nowhere_whoever_found_them() {
    let mut rig = Rig::idle();
    for name in ["known", "known", "found", "free"] {
        rig.work(name);
    }
    let call = Prepare {
        restarts: vec![restart("known")],
        ..prepare(id(1))
    };
    rig.prepare(&call).unwrap();
    assert_eq!(rig.blockers(id(1)), 2);
    rig.machine
        .found(rig.now, id(1), vec![restart("found"), restart("known")]);
    assert_eq!(rig.blockers(id(1)), 1);
    rig.machine.found(rig.now, id(1), vec![restart("free")]);
    assert_eq!(rig.phase(), Phase::Prepared);
    rig.report(id(1), &[]);
    let found: Vec<_> = rig
        .reported(id(1))
        .restarts
        .into_iter()
        .map(|r| r.episode)
        .collect();
    assert_eq!(
        found,
        [episode("found", 0), episode("free", 0)],
        "its own, each once"
    );
    for name in ["known", "found"] {
        refused(rig.commit(&commit(id(1), &[name])), Reason::RestartInScope);
    }
    let turn = rig
        .machine
        .commit(rig.now, &rig.fence, &commit(id(1), &["a"]))
        .unwrap();
    let CommitTurn::Capture { restarts } = turn else {
        panic!("not captured yet");
    };
    assert_eq!(restarts.len(), 3);
}

#[test]
fn the_soft_limit_makes_restarts_of_what_still_runs() {
    let mut rig = Rig::idle();
    let quick = rig.work("quick");
    let slow = rig.work("slow");
    let call = Prepare {
        soft_limit: Some(s(5)),
        ..prepare(id(1))
    };
    rig.prepare(&call).unwrap();
    assert_eq!(rig.machine.next_deadline(), Some(s(6)));
    rig.release(quick);
    rig.now = s(5);
    rig.machine.tick(rig.now);
    assert_eq!(rig.phase(), Phase::Preparing);
    rig.now = s(6);
    rig.machine.tick(rig.now);
    assert_eq!(rig.phase(), Phase::Prepared);
    rig.report(id(1), &[]);
    let restarts = rig.reported(id(1)).restarts;
    assert_eq!(restarts.len(), 1);
    assert_eq!(restarts[0].episode, episode("slow", 0));
    assert!(restarts[0].reason.contains("tool"), "{}", restarts[0].reason);
    rig.release(slow);
    refused(rig.commit(&commit(id(1), &["slow"])), Reason::RestartInScope);
    assert_eq!(
        rig.machine.next_deadline(),
        Some(s(1) + GRACE),
        "the lease is left"
    );
}

#[test]
fn a_server_that_shares_state_waits_beyond_the_soft_limit() {
    let mut rig = Rig::idle();
    rig.machine.set_shares_state(true);
    let slow = rig.work("slow");
    let call = Prepare {
        soft_limit: Some(s(5)),
        ..prepare(id(1))
    };
    rig.prepare(&call).unwrap();
    rig.now = s(50);
    rig.machine.tick(rig.now);
    assert_eq!(rig.phase(), Phase::Preparing);
    rig.release(slow);
    assert_eq!(rig.phase(), Phase::Prepared);
}

/// Another server has left it out: its call still changes what is saved of the others here.
#[test]
fn a_server_that_shares_state_waits_for_the_calls_of_restarts() {
    for shares in [false, true] {
        let mut rig = Rig::idle();
        rig.machine.set_shares_state(shares);
        let slow = rig.work("known");
        let call = Prepare {
            restarts: vec![restart("known")],
            ..prepare(id(1))
        };
        rig.prepare(&call).unwrap();
        assert_eq!(rig.phase() == Phase::Preparing, shares);
        rig.release(slow);
        assert_eq!(rig.phase(), Phase::Prepared);
    }
}

#[test]
fn a_retired_episode_blocks_no_checkpoint() {
    let mut rig = Rig::idle();
    rig.work("gone");
    let held = rig
        .machine
        .retire(rig.now, &rig.fence, &marks(2, &[mark("gone", 0)]));
    assert_eq!(held.unwrap().len(), 1);
    let unfinished = rig.machine.unfinished(s(9), &[mark("gone", 0)], 10);
    assert_eq!(unfinished[0].age, s(8));
    rig.prepare(&prepare(id(1))).unwrap();
    assert_eq!(rig.phase(), Phase::Prepared);
    rig.abandon(id(1)).unwrap();

    // The mark can also arrive while the wait goes on.
    rig.work("late");
    rig.prepare(&prepare(id(2))).unwrap();
    assert_eq!(rig.phase(), Phase::Preparing);
    rig.join(false, marks(3, &[mark("late", 0)])).unwrap();
    assert_eq!(rig.phase(), Phase::Prepared);
}

#[test]
fn a_lease_that_is_over_lapses_before_the_call_is_looked_at() {
    type Call = fn(&mut Rig) -> Result<(), Refusal>;
    let calls: [Call; 4] = [
        |rig| rig.prepare(&prepare(id(1))).map(drop),
        |rig| rig.machine.renew(rig.now, &rig.fence, id(1)).map(drop),
        |rig| rig.commit(&commit(id(1), &["a"])).map(drop),
        |rig| rig.keep(id(1)).map(drop),
    ];
    for call in calls {
        let mut rig = Rig::committed(id(1));
        rig.now += GRACE;
        let refusal = refused(call(&mut rig), Reason::StaleCheckpoint);
        assert!(refusal.message.contains("lapsed"), "{refusal}");
        assert_eq!(rig.phase(), Phase::Idle);
        let effects = rig.effects();
        assert!(effects.contains(&Effect::StopPersist(id(1))), "{effects:?}");
        assert!(effects.contains(&Effect::Discarded(id(1))), "{effects:?}");
        rig.abandon(id(1)).expect("ABANDON of what lapsed is OK");
    }
}

#[test]
fn every_accepted_call_extends_the_lease_and_no_refused_one() {
    let mut rig = Rig::prepared(id(1));
    rig.now = s(50);
    rig.machine.renew(rig.now, &rig.fence, id(1)).unwrap();
    rig.now = s(100);
    rig.commit(&commit(id(1), &["a"])).unwrap();
    rig.now = s(150);
    rig.machine.begin_await(rig.now, &rig.fence, id(1)).unwrap();
    refused(rig.commit(&commit(id(1), &["b"])), Reason::CheckpointConflict);
    refused(rig.prepare(&prepare(id(2))), Reason::CheckpointConflict);
    rig.machine.persisted(id(1), Ok(durable()));
    assert_eq!(
        rig.machine.next_deadline(),
        Some(s(150) + GRACE),
        "writing does not extend it"
    );
    rig.now = s(210);
    rig.machine.tick(rig.now);
    assert_eq!(rig.phase(), Phase::Idle);
}

#[test]
fn restored_does_not_lapse_and_says_for_how_long_it_is_in_doubt() {
    let mut rig = Rig::joining();
    rig.machine
        .restore(rig.now, &rig.fence, &restore(id(1), &[("a", 1)]))
        .unwrap();
    rig.staged(id(1)).unwrap();
    rig.now = s(10_001);
    rig.machine.tick(rig.now);
    assert_eq!(rig.phase(), Phase::Restored);
    assert_eq!(rig.machine.next_deadline(), None);
    assert_eq!(rig.machine.view(rig.now, 0).in_doubt, Some(s(10_000)));
    assert_eq!(rig.machine.renew(rig.now, &rig.fence, id(1)), Ok(None));
}

#[test]
fn an_abandoned_id_that_was_never_seen_cannot_close_the_mesh_any_more() {
    let mut rig = Rig::idle();
    rig.abandon(id(7)).unwrap();
    assert_eq!(rig.effects(), [Effect::Discarded(id(7))]);
    refused(rig.prepare(&prepare(id(7))), Reason::StaleCheckpoint);
    refused(
        rig.machine.restore(rig.now, &rig.fence, &restore(id(7), &[])),
        Reason::StaleCheckpoint,
    );
    assert!(rig.machine.is_open());
    rig.prepare(&prepare(id(8))).unwrap();
}

#[test]
fn an_id_below_one_that_has_ended_is_over_too() {
    let mut rig = Rig::idle();
    for n in 10..(20 + REMEMBERED as u64) {
        rig.prepare(&prepare(id(n))).unwrap();
        rig.abandon(id(n)).unwrap();
    }
    for old in [1, 9, 10] {
        refused(rig.prepare(&prepare(id(old))), Reason::StaleCheckpoint);
        refused(rig.keep(id(old)), Reason::StaleCheckpoint);
        rig.abandon(id(old)).unwrap();
        assert_eq!(rig.settle(&settle(id(old), Outcome::Discarded)), Ok(0));
    }
}

#[test]
fn an_unexpected_error_before_the_capture_ends_the_id_and_reopens() {
    let mut rig = Rig::prepared(id(1));
    assert!(rig.machine.fail(rig.now, id(1)));
    assert_eq!(rig.phase(), Phase::Idle);
    refused(rig.commit(&commit(id(1), &[])), Reason::StaleCheckpoint);
    let mut rig = Rig::committed(id(1));
    assert!(
        !rig.machine.fail(rig.now, id(1)),
        "after the capture there is nothing to prepare"
    );
    assert_eq!(rig.phase(), Phase::Committed);
}

#[test]
fn keep_leaves_the_capture_unsettled_and_nothing_else_begins_meanwhile() {
    let mut rig = Rig::committed(id(1));
    rig.keep(id(1)).unwrap();
    assert!(rig.machine.is_open());
    let unsettled = rig.machine.view(s(5), 0).unsettled.unwrap();
    assert_eq!(
        (unsettled.id, unsettled.age, unsettled.durable),
        (id(1), s(4), false)
    );
    refused(rig.prepare(&prepare(id(2))), Reason::CheckpointConflict);
    refused(
        rig.settle(&settle(id(1), Outcome::Published)),
        Reason::InvalidPhase,
    );
    rig.machine.persisted(id(1), Ok(durable()));
    rig.settle(&settle(id(1), Outcome::Published)).unwrap();
    assert_eq!(rig.machine.view(rig.now, 0).unsettled, None);
    rig.prepare(&prepare(id(2))).unwrap();
}

#[test]
fn a_write_that_failed_says_why_and_can_only_be_discarded() {
    let mut rig = Rig::committed(id(1));
    let full = Refusal::new(Reason::StorageFull, "no space left");
    rig.machine.persisted(id(1), Err(full.clone()));
    assert_eq!(rig.machine.durable(id(1)), Err(full));
    rig.keep(id(1)).unwrap();
    refused(
        rig.settle(&settle(id(1), Outcome::Published)),
        Reason::InvalidPhase,
    );
    rig.settle(&settle(id(1), Outcome::Discarded)).unwrap();
    rig.machine.persisted(id(1), Ok(durable()));
    refused(rig.machine.durable(id(1)), Reason::StaleCheckpoint);
}

#[test]
fn a_lost_keep_does_not_keep_settle_from_discarding() {
    let mut rig = Rig::committed(id(1));
    rig.settle(&settle(id(1), Outcome::Discarded)).unwrap();
    assert!(rig.machine.is_open());
    assert!(rig.effects().contains(&Effect::StopPersist(id(1))));
    refused(rig.keep(id(1)), Reason::StaleCheckpoint);
}

#[test]
fn a_published_settle_of_an_earlier_life_still_drops_what_was_left_out() {
    let mut rig = Rig::idle();
    let call = Settle {
        drop: marks(4, &[mark("left", 1)]),
        ..settle(id(1), Outcome::Published)
    };
    assert_eq!(rig.settle(&call), Ok(1));
    assert!(rig.machine.marks().refuses(&episode("left", 1)));
    rig.settle(&settle(id(2), Outcome::Discarded)).unwrap();
    refused(rig.prepare(&prepare(id(2))), Reason::StaleCheckpoint);
}

#[test]
fn a_late_join_does_not_open_beside_a_restore() {
    let mut rig = Rig::joining();
    rig.machine
        .restore(rig.now, &rig.fence, &restore(id(1), &[("a", 1)]))
        .unwrap();
    assert_eq!(rig.join(true, MarkList::default()), Ok(Phase::Joining));
    rig.staged(id(1)).unwrap();
    assert_eq!(rig.join(true, MarkList::default()), Ok(Phase::Restored));
}

#[test]
fn keep_of_a_restore_refuses_lower_attempts_before_the_records_live() {
    let mut rig = Rig::joining();
    rig.machine
        .restore(rig.now, &rig.fence, &restore(id(1), &[("a", 3), ("b", 1)]))
        .unwrap();
    rig.staged(id(1)).unwrap();
    let turn = rig.machine.resume(rig.now, &rig.fence, id(1), Decision::Keep);
    let superseded = vec![mark("a", 2), mark("b", 0)];
    assert_eq!(turn, Ok(ResumeTurn::Activate { superseded }));
    assert_eq!(rig.phase(), Phase::Restored, "closed until they are live");
    assert!(rig.machine.marks().refuses(&episode("a", 2)));
    assert!(!rig.machine.marks().refuses(&episode("a", 3)));
    rig.machine.activated(rig.now, id(1), 2).unwrap();
    assert!(rig.machine.is_open());
}

#[test]
fn staging_that_failed_or_was_abandoned_leaves_nothing() {
    let mut rig = Rig::joining();
    let call = restore(id(1), &[("a", 1)]);
    rig.machine.restore(rig.now, &rig.fence, &call).unwrap();
    rig.machine.stage_failed(id(1));
    assert_eq!((rig.phase(), rig.machine.open_id()), (Phase::Joining, None));
    rig.machine
        .restore(rig.now, &rig.fence, &call)
        .expect("it may be tried again");
    rig.abandon(id(1)).unwrap();
    assert!(rig.effects().contains(&Effect::DiscardStaged(id(1))));
    assert_eq!(rig.staged(id(1)), None, "what comes late is let go of");
    rig.join(true, MarkList::default()).unwrap();
    assert_eq!(rig.phase(), Phase::Idle);
}

#[test]
fn a_foreign_shard_is_refused_before_anything_is_read() {
    let mut rig = Rig::joining();
    let mut call = restore(id(1), &[]);
    call.shards.push(belay_core::participant::Shard {
        instance: "resources/weather/0".parse().unwrap(),
        manifest: "resources/weather/0/manifest.json".into(),
        digest: [0; 32],
    });
    let refusal = rig.machine.restore(rig.now, &rig.fence, &call).unwrap_err();
    assert_eq!(refusal.reason, Reason::InvalidRequest);
    assert_eq!(rig.machine.open_id(), None);
}

#[test]
fn the_door_is_bounded() {
    let mut rig = Rig::prepared(id(1));
    for _ in 0..2 {
        assert_eq!(
            rig.machine.admit(rig.now, &episode("a", 0), "seed".into()),
            Ok(Admit::Closed)
        );
        rig.machine.come_to_door().unwrap();
    }
    let refusal = refused(rig.machine.come_to_door(), Reason::AdmissionFull);
    assert!(refusal.retry_after.is_some());
    assert_eq!(rig.machine.view(rig.now, 0).at_door, 2);
    rig.machine.leave_door();
    rig.machine.come_to_door().unwrap();
    assert_eq!(rig.commit(&commit(id(1), &[])).unwrap().at_door, 2);
}

#[test]
fn a_rollout_with_work_or_with_staged_records_is_not_forgotten() {
    let mut rig = Rig::idle();
    let permit = rig.work("a");
    let ask = |rig: &mut Rig| rig.machine.may_forget(rig.now, &rig.fence, &[rollout("a")], 9);
    refused(ask(&mut rig), Reason::RolloutLive);
    rig.machine
        .retire(rig.now, &rig.fence, &marks(2, &[mark("a", 0)]))
        .unwrap();
    refused(ask(&mut rig), Reason::RetireIncomplete);
    rig.release(permit);
    rig.machine
        .restore(rig.now, &rig.fence, &restore(id(1), &[("a", 1)]))
        .unwrap();
    refused(ask(&mut rig), Reason::RolloutLive);
    rig.abandon(id(1)).unwrap();
    assert_eq!(ask(&mut rig), Ok(vec![rollout("a")]));
}

#[test]
fn the_partition_says_of_a_record_that_is_too_large_that_it_is_a_restart() {
    let mut rig = Rig::prepared(id(1));
    let entry = |name| PartitionEntry {
        episode: episode(name, 0),
        standing: Standing::SavedRunning,
        reason: String::new(),
    };
    let call = commit(id(1), &["a", "big"]);
    rig.machine.commit(rig.now, &rig.fence, &call).unwrap();
    let captured = belay_core::participant::Captured {
        parts: vec![(part("a"), LIMIT), (part("big"), LIMIT + 1)],
        partition: vec![entry("a"), entry("big")],
        ..Default::default()
    };
    let report = rig.machine.captured(rig.now, &call, captured).unwrap();
    let standings: Vec<_> = report.partition.iter().map(|e| e.standing).collect();
    assert_eq!(standings, [Standing::SavedRunning, Standing::Restart]);
}

#[test]
fn open_time_stands_still_while_closed() {
    let mut rig = Rig::joining();
    rig.now = s(10);
    rig.join(true, MarkList::default()).unwrap();
    rig.now = s(15);
    rig.prepare(&prepare(id(1))).unwrap();
    rig.now = s(40);
    assert_eq!(rig.machine.open_time(rig.now), s(5));
    rig.abandon(id(1)).unwrap();
    assert_eq!(rig.machine.open_time(s(42)), s(7));
}
