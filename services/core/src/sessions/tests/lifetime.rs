//! Time to live: what moves a session's end on, what has none, and what is left of an expired one.

use super::*;

const TTL: Duration = Duration::from_secs(10);
const OPERATION: Operation = Operation { turn: 0, index: 1 };

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A time to live of 10 s; seeded at 100 s with attempt 0, execution 1, state 10.
fn seeded() -> Table {
    let mut table = table().with_ttl(Some(TTL));
    table.seed(&episode(0), life(1), TASK, 10).unwrap();
    table.touch(&episode(0), life(1), s(100));
    table
}

/// As attempt 1, execution 2, at 200 s.
fn restored(mut table: Table, time_left: Option<Duration>) -> Table {
    let session = RestoredSession {
        episode: episode(1),
        execution: life(2),
        task: TASK,
        state: 15,
        revision: 1,
        replies: Vec::new(),
        time_left,
    };
    table.activate(session, s(200));
    table
}

fn ends(table: &Table, attempt: u32) -> Option<Duration> {
    table.get(&episode(attempt)).expect("a session").ends
}

fn begin(table: &mut Table) {
    let begun = table.begin(&episode(0), life(1), OPERATION, digest("5"));
    assert_eq!(begun, Ok(Begin::Apply(10)));
}

/// Nobody has called it for 10 s.
fn expired() -> Table {
    let mut table = seeded();
    assert!(table.expire(&episode(0), s(110)));
    table
}

#[test]
fn a_session_ends_when_its_time_is_over_and_not_before() {
    let mut table = seeded();
    let just_before = s(110) - Duration::from_nanos(1);
    assert_eq!(table.expired(just_before).count(), 0);
    assert!(!table.expire(&episode(0), just_before));
    assert_eq!(table.counts(), (1, 0));
    assert_eq!(table.expired(s(110)).collect::<Vec<_>>(), [episode(0)]);
    assert!(table.expire(&episode(0), s(110)));
    assert_eq!((table.counts(), table.episodes().count()), ((0, 0), 0));
    assert!(!table.expire(&episode(0), s(111)), "it has ended before");
}

#[test]
fn each_use_moves_the_end_on() {
    let mut table = seeded();
    assert_eq!(ends(&table, 0), Some(s(110)));
    table.touch(&episode(0), life(1), s(107));
    assert_eq!(ends(&table, 0), Some(s(117)));
    assert!(!table.expire(&episode(0), s(116)));
}

#[test]
fn another_lifes_use_moves_nothing() {
    let mut table = seeded();
    table.touch(&episode(0), life(2), s(107));
    table.touch(&episode(3), life(1), s(107));
    assert_eq!(ends(&table, 0), Some(s(110)));
}

#[test]
fn a_session_with_a_call_in_flight_does_not_expire() {
    let mut table = seeded();
    begin(&mut table);
    assert_eq!((ends(&table, 0), table.expired(s(999)).count()), (None, 0));
    assert!(!table.expire(&episode(0), s(999)));
    table.abort(&episode(0), life(1), OPERATION);
    assert!(table.expire(&episode(0), s(999)), "nobody has touched it");
}

#[test]
fn a_session_that_verifiers_read_does_not_expire() {
    let mut table = seeded();
    table.begin_verify(&episode(0), life(1));
    table.begin_verify(&episode(0), life(1));
    table.end_verify(&episode(0), life(1));
    assert_eq!(
        (ends(&table, 0), table.expired(s(999)).count()),
        (None, 0),
        "one of two is done"
    );
    assert!(!table.expire(&episode(0), s(999)));
    table.end_verify(&episode(0), life(1));
    assert!(table.expire(&episode(0), s(999)));
}

#[test]
fn a_table_without_a_time_to_live_ends_nothing() {
    let mut table = super::seeded();
    table.touch(&episode(0), life(1), s(100));
    assert_eq!(ends(&table, 0), None);
    assert!(!table.expire(&episode(0), Duration::MAX));
    let table = restored(table, Some(s(3)));
    assert_eq!(ends(&table, 1), None);
}

#[test]
fn a_time_to_live_beyond_all_time_is_for_good() {
    let mut table = table().with_ttl(Some(Duration::MAX));
    table.seed(&episode(0), life(1), TASK, 10).unwrap();
    table.touch(&episode(0), life(1), s(100));
    assert_eq!(ends(&table, 0), None);
}

#[test]
fn a_restored_session_has_what_it_had_left_but_no_more_than_the_table_gives() {
    let empty = || table().with_ttl(Some(TTL));
    assert_eq!(ends(&restored(empty(), Some(s(3))), 1), Some(s(203)));
    assert_eq!(ends(&restored(empty(), Some(Duration::ZERO)), 1), Some(s(200)));
    assert_eq!(ends(&restored(empty(), Some(s(60))), 1), Some(s(210)));
    assert_eq!(
        ends(&restored(empty(), None), 1),
        Some(s(210)),
        "an old record says nothing"
    );
    let mut table = restored(empty(), Some(s(3)));
    table.touch(&episode(1), life(2), s(202));
    assert_eq!(ends(&table, 1), Some(s(212)), "a use gives it the whole again");
}

#[test]
fn calls_of_an_expired_session_are_told_so() {
    let mut table = expired();
    let told = |refusal: Refusal| {
        let why = "nobody called it for 10s, its time to live";
        assert!(refusal.message.contains(why), "{refusal}");
    };
    told(refused(add(&mut table, 0, 1, 5), Reason::EpisodeUnknown));
    told(refused(table.view(&episode(0), life(1)), Reason::EpisodeUnknown));
    told(refused(
        table.seeded(&episode(0), life(1), &TASK),
        Reason::EpisodeUnknown,
    ));
    told(refused(
        table.seed(&episode(0), life(1), TASK, 10),
        Reason::EpisodeUnknown,
    ));
    refused(add_as(&mut table, life(2)), Reason::StaleExecution);
    assert_eq!(table.close(&episode(0), life(1)), Ok(false));
    told(refused(add(&mut table, 0, 1, 5), Reason::EpisodeUnknown));
}

fn add_as(table: &mut Table, execution: ExecutionId) -> Result<Begin<u64>, Refusal> {
    table.begin(&episode(0), execution, OPERATION, digest("5"))
}

#[test]
fn an_expired_session_keeps_no_other_attempt_out() {
    let mut table = expired();
    assert_eq!(table.seed(&episode(1), life(2), TASK, 0), Ok(0));
    refused(add(&mut table, 0, 1, 5), Reason::StaleAttempt);
}

#[test]
fn an_expired_session_is_dropped_by_retire_and_by_forget() {
    let mut table = expired();
    assert_eq!(table.retire(&episode(0).rollout, 0), 0, "nothing lived");
    assert!(!table.retiring(&episode(0).rollout, 0));
    assert_eq!(table.seed(&episode(0), life(3), TASK, 10), Ok(0));

    let mut table = expired();
    assert_eq!(table.may_forget(&episode(0).rollout), Ok(()));
    table.forget(&episode(0).rollout);
    assert_eq!(table.seed(&episode(0), life(3), TASK, 10), Ok(0));
}

/// It is there only until its call ends, and then it goes without a trace.
#[test]
fn a_retired_session_does_not_expire() {
    let mut table = seeded();
    begin(&mut table);
    table.retire(&episode(0).rollout, 0);
    assert!(!table.expire(&episode(0), s(999)));
    table.abort(&episode(0), life(1), OPERATION);
    assert_eq!(table.may_forget(&episode(0).rollout), Ok(()));
    assert_eq!(table.seed(&episode(0), life(3), TASK, 10), Ok(0));
}
