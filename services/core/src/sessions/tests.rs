mod lifetime;

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::{
    ids::{Episode, ExecutionId, Operation, RolloutId},
    refusal::{Reason, Refusal},
};

type Table = Sessions<u64>;

fn table() -> Table {
    Sessions::new("resources/counter/0".parse().unwrap())
}

fn episode(attempt: u32) -> Episode {
    Episode::new(RolloutId::new("r").unwrap(), attempt)
}

fn life(n: u128) -> ExecutionId {
    ExecutionId(uuid::Uuid::from_u128(n))
}

fn digest(arguments: &str) -> [u8; 32] {
    call_digest("add", arguments.as_bytes())
}

const TASK: Bytes = Bytes::from_static(b"{}");

/// Seeded with attempt 0, execution 1, state 10.
fn seeded() -> Table {
    let mut table = table();
    assert_eq!(table.seed(&episode(0), life(1), TASK, 10), Ok(0));
    table
}

/// Adds `n` as operation (turn, index); the reply.
fn add(table: &mut Table, turn: u32, index: u32, n: u64) -> Result<KeptReply, Refusal> {
    let operation = Operation { turn, index };
    match table.begin(&episode(0), life(1), operation, digest(&n.to_string()))? {
        Begin::Kept(reply) => Ok(reply),
        Begin::Joined => panic!("nothing else runs"),
        Begin::Apply(state) => {
            let applied = Applied {
                output: Bytes::from(format!("{}", state + n)),
                state: Some(state + n),
            };
            table.finish(&episode(0), life(1), operation, applied)
        }
    }
}

fn state(table: &Table) -> u64 {
    table.get(&episode(0)).unwrap().state
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Refusal>, reason: Reason) -> Refusal {
    let refusal = outcome.expect_err("refused");
    assert_eq!(refusal.reason, reason, "{refusal}");
    assert_eq!(refusal.get("rollout_id"), Some("r"));
    assert_eq!(refusal.get("instance"), Some("resources/counter/0"));
    refusal
}

#[test]
fn the_digest_tells_name_and_arguments_apart() {
    assert_ne!(call_digest("a", b"b"), call_digest("ab", b""));
    assert_ne!(call_digest("a", b"{}"), call_digest("a", b"{ }"));
    let by_hand = blake3::hash(b"add\0{\"n\":1}");
    assert_eq!(call_digest("add", b"{\"n\":1}"), *by_hand.as_bytes());
}

#[test]
fn a_seed_is_idempotent_by_execution() {
    let mut table = seeded();
    add(&mut table, 0, 1, 5).unwrap();
    assert_eq!(table.seeded(&episode(0), life(1), &TASK), Ok(Some(0)));
    assert_eq!(table.seed(&episode(0), life(1), TASK, 10), Ok(0));
    assert_eq!(state(&table), 15, "the second seed made nothing");
    refused(table.seed(&episode(0), life(2), TASK, 10), Reason::StaleExecution);
    refused(
        table.seed(&episode(0), life(1), Bytes::from_static(b"{ }"), 10),
        Reason::TaskMismatch,
    );
    assert_eq!(state(&table), 15);
}

#[test]
fn attempts_of_a_rollout_keep_each_other_out() {
    let mut table = seeded();
    refused(table.seed(&episode(1), life(2), TASK, 0), Reason::AttemptLive);
    assert_eq!(table.retire(&episode(0).rollout, 0), 1);
    table.seed(&episode(1), life(2), TASK, 0).unwrap();
    let late = refused(table.seed(&episode(0), life(1), TASK, 0), Reason::StaleAttempt);
    assert_eq!(late.get("next_attempt"), Some("1"));
    let late = refused(table.view(&episode(0), life(1)), Reason::StaleAttempt);
    assert_eq!(late.get("next_attempt"), Some("1"));
}

#[test]
fn a_session_that_is_not_held_is_unknown() {
    let mut table = table();
    let operation = Operation { turn: 0, index: 1 };
    refused(
        table.begin(&episode(0), life(1), operation, digest("1")),
        Reason::EpisodeUnknown,
    );
    refused(table.view(&episode(0), life(1)), Reason::EpisodeUnknown);
}

#[test]
fn calls_of_another_life_are_refused() {
    let mut table = seeded();
    let operation = Operation { turn: 0, index: 1 };
    refused(
        table.begin(&episode(0), life(2), operation, digest("1")),
        Reason::StaleExecution,
    );
    refused(table.view(&episode(0), life(2)), Reason::StaleExecution);
    refused(table.close(&episode(0), life(2)), Reason::StaleExecution);
    assert_eq!(state(&table), 10);
}

#[test]
fn a_kept_reply_is_given_again_and_nothing_is_applied() {
    let mut table = seeded();
    let first = add(&mut table, 0, 1, 5).unwrap();
    let second = add(&mut table, 0, 2, 7).unwrap();
    assert_eq!((first.revision, second.revision), (1, 2));
    assert_eq!(add(&mut table, 0, 1, 5), Ok(first));
    assert_eq!(add(&mut table, 0, 2, 7), Ok(second));
    assert_eq!(state(&table), 22);
    assert_eq!(table.get(&episode(0)).unwrap().revision, 2);
}

#[test]
fn the_same_operation_with_other_arguments_is_a_mismatch() {
    let mut table = seeded();
    add(&mut table, 0, 1, 5).unwrap();
    refused(add(&mut table, 0, 1, 6), Reason::OperationMismatch);
    assert_eq!(state(&table), 15);
    let operation = Operation { turn: 0, index: 2 };
    let begun = table.begin(&episode(0), life(1), operation, digest("1"));
    assert_eq!(begun, Ok(Begin::Apply(15)));
    refused(
        table.begin(&episode(0), life(1), operation, digest("2")),
        Reason::OperationMismatch,
    );
}

#[test]
fn only_the_latest_turn_is_kept() {
    let mut table = seeded();
    add(&mut table, 0, 1, 5).unwrap();
    add(&mut table, 3, 2, 7).unwrap();
    refused(add(&mut table, 0, 1, 5), Reason::OperationPast);
    refused(add(&mut table, 3, 1, 5), Reason::OperationPast);
    assert_eq!(state(&table), 22);
    assert_eq!(table.get(&episode(0)).unwrap().replies.len(), 1);
}

#[test]
fn a_reissue_joins_the_call_in_flight() {
    let mut table = seeded();
    add(&mut table, 0, 1, 5).unwrap();
    let operation = Operation { turn: 1, index: 1 };
    let begun = table.begin(&episode(0), life(1), operation, digest("1"));
    assert_eq!(begun, Ok(Begin::Apply(15)));
    let again = table.begin(&episode(0), life(1), operation, digest("1"));
    assert_eq!(again, Ok(Begin::Joined));
    refused(add(&mut table, 1, 2, 1), Reason::InvalidRequest);
    refused(add(&mut table, 0, 1, 5), Reason::OperationPast);
    let applied = Applied {
        output: Bytes::new(),
        state: Some(16),
    };
    let reply = table.finish(&episode(0), life(1), operation, applied).unwrap();
    assert_eq!(
        table.begin(&episode(0), life(1), operation, digest("1")),
        Ok(Begin::Kept(reply))
    );
    assert_eq!(state(&table), 16);
}

#[test]
fn a_failed_call_leaves_the_session_as_it_was_and_its_reply_is_kept() {
    let mut table = seeded();
    let operation = Operation { turn: 0, index: 1 };
    table.begin(&episode(0), life(1), operation, digest("x")).unwrap();
    let applied = Applied {
        output: Bytes::from_static(b"no"),
        state: None,
    };
    let reply = table.finish(&episode(0), life(1), operation, applied).unwrap();
    assert!(reply.is_error);
    assert_eq!((reply.revision, state(&table)), (0, 10));
    assert_eq!(
        table.begin(&episode(0), life(1), operation, digest("x")),
        Ok(Begin::Kept(reply))
    );
}

#[test]
fn an_aborted_call_can_be_made_again() {
    let mut table = seeded();
    let operation = Operation { turn: 0, index: 1 };
    table.begin(&episode(0), life(1), operation, digest("5")).unwrap();
    table.abort(&episode(0), life(1), operation);
    assert_eq!(add(&mut table, 0, 1, 5).unwrap().revision, 1);
    assert_eq!(state(&table), 15);
}

#[test]
fn close_is_idempotent_and_final() {
    let mut table = seeded();
    assert_eq!(table.close(&episode(0), life(1)), Ok(true));
    assert_eq!(table.close(&episode(0), life(1)), Ok(false));
    assert_eq!(table.close(&episode(7), life(9)), Ok(false), "one that never was");
    refused(table.seed(&episode(0), life(1), TASK, 10), Reason::EpisodeUnknown);
    refused(add(&mut table, 0, 1, 5), Reason::EpisodeUnknown);
    assert_eq!(table.counts(), (0, 0));
    assert_eq!(table.may_forget(&episode(0).rollout), Ok(()));
    table.forget(&episode(0).rollout);
    table.seed(&episode(0), life(1), TASK, 10).unwrap();
}

#[test]
fn retire_frees_at_once_or_when_the_call_in_flight_ends() {
    let mut table = seeded();
    let rollout = episode(0).rollout;
    let operation = Operation { turn: 0, index: 1 };
    refused(table.may_forget(&rollout), Reason::RolloutLive);
    table.begin(&episode(0), life(1), operation, digest("5")).unwrap();
    assert_eq!(table.retire(&rollout, 4), 1);
    assert_eq!(table.retire(&rollout, 4), 0, "it was retired before");
    assert!(table.retiring(&rollout, 4));
    refused(table.may_forget(&rollout), Reason::RetireIncomplete);
    refused(
        table.begin(&episode(0), life(1), operation, digest("5")),
        Reason::EpisodeUnknown,
    );
    assert!(table.get(&episode(0)).is_none());
    assert_eq!(table.episodes().count(), 0);
    table.seed(&episode(5), life(5), TASK, 0).unwrap();
    let applied = Applied {
        output: Bytes::new(),
        state: Some(15),
    };
    refused(
        table.finish(&episode(0), life(1), operation, applied),
        Reason::EpisodeUnknown,
    );
    assert!(!table.retiring(&rollout, 4));
    assert_eq!(table.counts(), (1, 0));
}

#[test]
fn a_restored_session_replaces_lower_attempts() {
    let mut table = seeded();
    let first = add(&mut table, 0, 1, 5).unwrap();
    let saved = table.get(&episode(0)).unwrap();
    add(&mut table, 0, 2, 7).unwrap();
    let running = Operation { turn: 1, index: 1 };
    table.begin(&episode(0), life(1), running, digest("1")).unwrap();

    let restored = RestoredSession {
        episode: episode(1),
        execution: life(2),
        task: saved.task,
        state: saved.state,
        revision: saved.revision,
        replies: saved.replies.to_vec(),
        time_left: None,
    };
    table.activate(restored, Duration::ZERO);
    let operation = Operation { turn: 0, index: 1 };
    let again = table.begin(&episode(1), life(2), operation, digest("5"));
    assert_eq!(again, Ok(Begin::Kept(first)));
    assert_eq!(table.get(&episode(1)).unwrap().state, 15);
    let applied = Applied {
        output: Bytes::new(),
        state: Some(23),
    };
    table.finish(&episode(0), life(1), running, applied).unwrap_err();
    assert_eq!(table.get(&episode(1)).unwrap().state, 15);
    refused(table.view(&episode(0), life(1)), Reason::StaleAttempt);
}

#[test]
fn a_view_is_not_changed_by_later_calls() {
    let mut table = seeded();
    add(&mut table, 0, 1, 5).unwrap();
    let view = table.view(&episode(0), life(1)).unwrap();
    add(&mut table, 0, 2, 7).unwrap();
    add(&mut table, 1, 1, 7).unwrap();
    assert_eq!((view.state, view.revision, view.replies.len()), (15, 1, 1));
}
