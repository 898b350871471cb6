//! The rules of a call one by one, and random sequences of everything against a record of what was sampled.

use uuid::Uuid;

use super::*;
use crate::ledger::{Coordinate, WeightSpan};

mod random;

fn episode(rollout: &str, attempt: Attempt) -> Episode {
    Episode::new(RolloutId::new(rollout).expect("legal"), attempt)
}

fn life(n: u128) -> ExecutionId {
    ExecutionId(Uuid::from_u128(n))
}

fn id(sequence: u64) -> CheckpointId {
    CheckpointId { epoch: 1, sequence }
}

fn arrival(turn: u32, parent: Option<Digest>, digest: u8) -> Arrival {
    Arrival {
        key: CallKey {
            episode: episode("r", 0),
            execution: life(1),
            operation: Operation::model_call(turn),
        },
        parent,
        digest: [digest; 32],
        cuttable: true,
    }
}

fn span(row: &str, tokens: u32) -> TokenSpan {
    TokenSpan {
        coordinate: Some(Coordinate {
            store: "s".into(),
            row: row.into(),
        }),
        tokens,
        digest: *blake3::hash(row.as_bytes()).as_bytes(),
        weights: vec![WeightSpan {
            tokens,
            version: String::new(),
        }],
    }
}

fn finished(text: &str) -> Finished {
    Finished {
        reply: Reply {
            response: text.to_owned().into(),
            input_tokens: 3,
            output_tokens: 4,
        },
        prompt_tokens: 3,
        span: Some(span(text, 4)),
        carried: None,
        finish: FinishReason::ToolCalls,
    }
}

/// Plays turns 0 to n-1 of episode r and replies the chain hash of the last.
fn played(calls: &mut Calls, turns: u32) -> Option<Digest> {
    let mut parent = None;
    for turn in 0..turns {
        let call = arrival(turn, parent, turn as u8);
        assert_eq!(calls.begin(&call), Ok(Begin::Sample { prefix: None }));
        parent = Some(
            calls
                .finish(&call.key, finished(&turn.to_string()))
                .expect("in flight")
                .row
                .chain,
        );
    }
    parent
}

fn refused(calls: &mut Calls, call: &Arrival) -> Reason {
    let before = calls.counts();
    let reason = calls.begin(call).expect_err("a refusal").reason;
    assert_eq!(calls.counts(), before, "a refused call changes nothing");
    reason
}

fn restored(captured: &CapturedEpisode) -> Restored {
    let rows: Vec<Row> = captured.ledger.rows().iter().map(|row| (**row).clone()).collect();
    let last = captured.last.as_ref().map(|reply| {
        let row = captured.ledger.last().expect("a reply has a row");
        (row.entry.operation, row.entry.request_digest, (**reply).clone())
    });
    Restored::new(rows, last, captured.in_flight.clone()).expect("a capture reads back")
}

#[test]
fn the_same_call_joins_and_then_gets_the_kept_reply() {
    let mut calls = Calls::default();
    let call = arrival(0, None, 0);
    assert_eq!(calls.begin(&call), Ok(Begin::Sample { prefix: None }));
    assert_eq!(calls.begin(&call), Ok(Begin::Join));
    let answer = calls.finish(&call.key, finished("a")).expect("in flight");
    assert_eq!(calls.begin(&call), Ok(Begin::Kept(answer.clone())));
    assert_eq!(
        calls.begin(&call),
        Ok(Begin::Kept(answer)),
        "delivery is never assumed"
    );
    assert_eq!(
        calls.counts(),
        Counts {
            kept: 1,
            ledgers: 1,
            rows: 1,
            ..Counts::default()
        }
    );
}

#[test]
fn a_reply_is_kept_until_the_next_operation_begins() {
    let mut calls = Calls::default();
    let parent = played(&mut calls, 1);
    let first = arrival(0, None, 0);
    assert_eq!(refused(&mut calls, &arrival(1, None, 1)), Reason::EpisodeUnknown);
    assert!(
        matches!(calls.begin(&first), Ok(Begin::Kept(_))),
        "a refused call is no arrival"
    );
    calls.begin(&arrival(1, parent, 1)).expect("legal");
    assert_eq!(refused(&mut calls, &first), Reason::OperationPast);
}

#[test]
fn a_call_without_its_ledger_is_unknown() {
    let mut calls = Calls::default();
    assert_eq!(
        refused(&mut calls, &arrival(1, Some([1; 32]), 0)),
        Reason::EpisodeUnknown
    );
    assert_eq!(
        refused(&mut calls, &arrival(0, Some([1; 32]), 0)),
        Reason::EpisodeUnknown
    );
    assert_eq!(refused(&mut calls, &arrival(1, None, 0)), Reason::EpisodeUnknown);
    let parent = played(&mut calls, 2);
    assert_eq!(
        refused(&mut calls, &arrival(2, Some([1; 32]), 2)),
        Reason::EpisodeUnknown
    );
    calls.begin(&arrival(2, parent, 2)).expect("legal");
    assert_eq!(
        refused(&mut calls, &arrival(3, parent, 3)),
        Reason::EpisodeUnknown,
        "no predecessor"
    );
    assert_eq!(
        refused(&mut calls, &arrival(2, Some([1; 32]), 2)),
        Reason::EpisodeUnknown
    );
}

#[test]
fn another_request_of_the_same_operation_is_a_mismatch() {
    let mut calls = Calls::default();
    let parent = played(&mut calls, 1);
    assert_eq!(
        refused(&mut calls, &arrival(0, None, 9)),
        Reason::OperationMismatch,
        "answered"
    );
    calls.begin(&arrival(1, parent, 1)).expect("legal");
    assert_eq!(
        refused(&mut calls, &arrival(1, parent, 9)),
        Reason::OperationMismatch,
        "in flight"
    );
}

#[test]
fn another_life_is_stale_and_a_lower_attempt_too() {
    let mut calls = Calls::default();
    played(&mut calls, 1);
    let mut other = arrival(0, None, 0);
    other.key.execution = life(2);
    assert_eq!(refused(&mut calls, &other), Reason::StaleExecution);
    let mut higher = arrival(0, None, 0);
    higher.key.episode = episode("q", 3);
    calls.begin(&higher).expect("legal");
    let mut lower = higher.clone();
    lower.key.episode = episode("q", 2);
    let refusal = calls.begin(&lower).expect_err("stale");
    assert_eq!(
        (refusal.reason, refusal.get("next_attempt")),
        (Reason::StaleAttempt, Some("3"))
    );
}

#[test]
fn an_ended_or_retired_episode_does_not_begin_anew_until_forgotten() {
    for retire in [false, true] {
        let mut calls = Calls::default();
        played(&mut calls, 2);
        let key = arrival(0, None, 0).key;
        assert_eq!(calls.end(&key.episode, life(9)), None, "meant for another life");
        let removed = if retire {
            calls.retire(&key.episode.rollout, 0)
        } else {
            calls.end(&key.episode, key.execution).expect("this life")
        };
        assert_eq!(
            removed,
            [Removed {
                episode: key.episode.clone(),
                generating: None
            }]
        );
        assert_eq!(refused(&mut calls, &arrival(0, None, 0)), Reason::EpisodeUnknown);
        calls.forget(&key.episode.rollout);
        assert_eq!(
            calls.begin(&arrival(0, None, 0)),
            Ok(Begin::Sample { prefix: None })
        );
    }
}

#[test]
fn what_a_dead_life_finishes_late_is_dropped() {
    let mut calls = Calls::default();
    let call = arrival(0, None, 0);
    calls.begin(&call).expect("legal");
    let removed = calls.retire(&call.key.episode.rollout, 0);
    assert_eq!(removed[0].generating, Some(call.key.clone()));
    assert_eq!(calls.finish(&call.key, finished("late")), None);
    assert_eq!(calls.counts(), Counts::default());
}

#[test]
fn a_failed_generation_is_as_if_the_call_had_not_arrived() {
    let mut calls = Calls::default();
    let parent = played(&mut calls, 1);
    let call = arrival(1, parent, 1);
    calls.begin(&call).expect("legal");
    calls.fail(&call.key);
    assert_eq!(calls.begin(&call), Ok(Begin::Sample { prefix: None }));
    // Its record is legal too: neither a reply nor a call in flight.
    calls.fail(&call.key);
    let captured = calls.capture(id(1), [&call.key.episode]);
    calls.install(episode("r", 1), life(2), restored(&captured[0]));
}

#[test]
fn a_kept_reply_survives_a_restore_and_the_dead_life_leaves_nothing() {
    let mut calls = Calls::default();
    let parent = played(&mut calls, 2);
    let captured = calls.capture(id(1), [&episode("r", 0), &episode("not-here", 0)]);
    assert_eq!(captured.len(), 1);
    // What runs on after the capture is not in it.
    calls.begin(&arrival(2, parent, 2)).expect("legal");
    let removed = calls.install(episode("r", 1), life(2), restored(&captured[0]));
    assert_eq!(
        removed[0].generating.as_ref().map(|key| key.operation),
        Some(Operation::model_call(2))
    );
    let mut again = arrival(1, captured[0].ledger.rows()[1].parent, 1);
    again.key.episode = episode("r", 1);
    again.key.execution = life(2);
    assert!(matches!(calls.begin(&again), Ok(Begin::Kept(answer)) if &answer.reply.response[..] == b"1"));
    assert_eq!(
        calls.counts(),
        Counts {
            kept: 1,
            ledgers: 1,
            rows: 2,
            ..Counts::default()
        }
    );
}

/// Turn 1 is in flight at a cut; replies its key.
fn cut(calls: &mut Calls, id: CheckpointId) -> CallKey {
    let parent = played(calls, 1);
    let call = arrival(1, parent, 1);
    calls.begin(&call).expect("legal");
    assert_eq!(calls.begin_cut(id), std::slice::from_ref(&call.key));
    call.key
}

fn staged(key: &CallKey, tokens: u32) -> CutAnswer {
    CutAnswer {
        key: key.clone(),
        outcome: CutOutcome::Staged(span("prefix", tokens)),
    }
}

fn captured_prefix(calls: &mut Calls, id: CheckpointId) -> Option<TokenSpan> {
    let captured = calls.capture(id, [&episode("r", 0)]);
    captured[0].in_flight.as_ref().expect("in flight").prefix.clone()
}

#[test]
fn a_cut_prefix_is_captured_and_given_to_the_reissue() {
    let mut calls = Calls::default();
    let key = cut(&mut calls, id(1));
    assert!(calls.receipt(id(1), vec![staged(&key, 2)]).is_empty());
    let captured = calls.capture(id(1), [&key.episode]);
    calls.install(episode("r", 1), life(2), restored(&captured[0]));
    assert_eq!(calls.counts().waiting, 1);
    // Captured again before its re-issue, it still has its prefix.
    let again = calls.capture(id(2), [&episode("r", 1)]);
    assert_eq!(again[0].in_flight, captured[0].in_flight);
    let mut reissue = arrival(1, captured[0].ledger.tip().map(|tip| tip.chain), 1);
    reissue.key.episode = episode("r", 1);
    reissue.key.execution = life(2);
    let mut other = reissue.clone();
    other.digest = [9; 32];
    assert_eq!(refused(&mut calls, &other), Reason::OperationMismatch);
    assert_eq!(
        calls.begin(&reissue),
        Ok(Begin::Sample {
            prefix: Some(span("prefix", 2))
        })
    );
}

#[test]
fn a_receipt_that_is_missing_double_foreign_late_or_empty_keeps_nothing() {
    type Receipt = fn(&CallKey) -> Vec<CutAnswer>;
    let foreign = |key: &CallKey| CallKey {
        execution: life(7),
        ..key.clone()
    };
    assert_eq!(foreign(&arrival(0, None, 0).key).execution, life(7));
    let receipts: [(&str, Receipt); 5] = [
        ("missing", |_| vec![]),
        ("double", |key| vec![staged(key, 2), staged(key, 2)]),
        ("foreign", |key| {
            vec![staged(
                &CallKey {
                    execution: life(7),
                    ..key.clone()
                },
                2,
            )]
        }),
        ("failed", |key| {
            vec![CutAnswer {
                key: key.clone(),
                outcome: CutOutcome::Failed("x".into()),
            }]
        }),
        ("empty", |key| vec![staged(key, 0)]),
    ];
    for (what, receipt) in receipts {
        let mut calls = Calls::default();
        let key = cut(&mut calls, id(1));
        calls.receipt(id(1), receipt(&key));
        // A second receipt is late, whatever it says.
        calls.receipt(id(1), vec![staged(&key, 2)]);
        assert_eq!(captured_prefix(&mut calls, id(1)), None, "{what}");
    }
    let mut calls = Calls::default();
    let key = cut(&mut calls, id(1));
    calls.receipt(id(2), vec![staged(&key, 2)]);
    assert_eq!(captured_prefix(&mut calls, id(1)), None, "of another round");
    calls.receipt(id(1), vec![staged(&key, 2)]);
    assert_eq!(captured_prefix(&mut calls, id(1)), None, "after the capture");
}

#[test]
fn a_call_that_finished_before_the_capture_is_captured_whole() {
    let mut calls = Calls::default();
    let key = cut(&mut calls, id(1));
    let finished_at_worker = CutAnswer {
        key: key.clone(),
        outcome: CutOutcome::Finished,
    };
    assert_eq!(
        calls.receipt(id(1), vec![finished_at_worker]),
        std::slice::from_ref(&key),
        "its reply is on its way"
    );
    calls.finish(&key, finished("whole"));
    let captured = calls.capture(id(1), [&key.episode]);
    assert_eq!(captured[0].in_flight, None);
    assert_eq!(
        captured[0].last.as_ref().map(|reply| &reply.response[..]),
        Some(&b"whole"[..])
    );
}

#[test]
fn a_cut_is_pending_from_the_first_moment_until_its_answer() {
    let mut calls = Calls::default();
    let parent = played(&mut calls, 1);
    let call = arrival(1, parent, 1);
    calls.begin(&call).expect("legal");
    assert_eq!(calls.cuts_pending(), 1, "the round has not begun");
    calls.begin_cut(id(1));
    assert_eq!(calls.cuts_pending(), 1, "no receipt");
    calls.receipt(id(1), vec![staged(&call.key, 2)]);
    assert_eq!(calls.cuts_pending(), 0);
    calls.begin_cut(id(2));
    calls.receipt(id(2), vec![]);
    assert_eq!(
        calls.cuts_pending(),
        0,
        "an answer that is missing is not waited for"
    );
    calls.begin_cut(id(3));
    calls.receipt(
        id(3),
        vec![CutAnswer {
            key: call.key.clone(),
            outcome: CutOutcome::Finished,
        }],
    );
    assert_eq!(calls.cuts_pending(), 1, "its reply is on its way");
    calls.finish(&call.key, finished("whole"));
    assert_eq!(calls.cuts_pending(), 0);
}

#[test]
fn constrained_generations_are_not_listed_for_a_cut() {
    let mut calls = Calls::default();
    let call = Arrival {
        cuttable: false,
        ..arrival(0, None, 0)
    };
    calls.begin(&call).expect("legal");
    assert!(calls.begin_cut(id(1)).is_empty());
    assert!(calls.is_generating(&call.key));
}

#[test]
fn a_record_whose_parts_do_not_fit_is_refused() {
    let mut calls = Calls::default();
    let key = cut(&mut calls, id(1));
    let captured = calls.capture(id(1), [&key.episode]).remove(0);
    let rows = || {
        captured
            .ledger
            .rows()
            .iter()
            .map(|row| (**row).clone())
            .collect::<Vec<_>>()
    };
    let reply = finished("x").reply;
    let call = captured.in_flight.clone().expect("in flight");
    let first = Operation::FIRST;
    for (what, broken) in [
        (
            "reply of another operation",
            Restored::new(rows(), Some((key.operation, [0; 32], reply.clone())), None),
        ),
        (
            "reply to another request",
            Restored::new(rows(), Some((first, [9; 32], reply.clone())), None),
        ),
        (
            "reply without a row",
            Restored::new(vec![], Some((first, [0; 32], reply)), None),
        ),
        (
            "call of the last row",
            Restored::new(
                rows(),
                None,
                Some(CapturedCall {
                    operation: first,
                    ..call.clone()
                }),
            ),
        ),
        ("call without its rows", Restored::new(vec![], None, Some(call))),
    ] {
        assert!(broken.is_err(), "{what}");
    }
}
