//! What the demo claims, counted from evidence: the calls and effects that the inference engine logged before the kill and
//! after the end, the coordinator's partition and plan, the results that the environment gave.
//!
//! *Repeated* means within the history that survives: what ran up to the checkpoint, and what ran after its restore.

use std::collections::{BTreeMap, BTreeSet};

/// A model call as the engine logged it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Whose.
    pub rollout: String,
    /// Of which attempt.
    pub attempt: u32,
    /// Which turn's.
    pub turn: u32,
    /// Tokens of the reply so far, with those of the prefix.
    pub tokens: u64,
    /// Tokens that came from a saved prefix.
    pub prefix: u64,
    /// The reply is whole.
    pub finished: bool,
}

/// A tool's effect as the engine's log keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effect {
    /// Whose.
    pub rollout: String,
    /// Of which attempt.
    pub attempt: u32,
    /// Which operation.
    pub operation: (u32, u32),
}

/// A result that the environment gave to the controller.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Whose.
    pub rollout: String,
    /// Which attempt finished.
    pub attempt: u32,
    /// Its reward.
    pub reward: f64,
    /// It went on from the checkpoint.
    pub restored: bool,
}

/// All that is known at the end.
#[derive(Default, Debug)]
pub struct Evidence {
    /// What was asked for.
    pub rollouts: BTreeSet<String>,
    /// Acknowledged before the checkpoint, as the partition says.
    pub acknowledged: BTreeSet<String>,
    /// The restore's plan: the saved attempt and the one that goes on.
    pub plan: BTreeMap<String, (u32, u32)>,
    /// The engine's log when the checkpoint was published and nothing moved.
    pub calls_at_checkpoint: Vec<Call>,
    /// The engine's log at the end.
    pub calls_at_end: Vec<Call>,
    /// The effects when the checkpoint was published.
    pub effects_at_checkpoint: Vec<Effect>,
    /// The effects at the end.
    pub effects_at_end: Vec<Effect>,
    /// Every result, in the order of arrival.
    pub outcomes: Vec<Outcome>,
}

/// The demo's table.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Account {
    /// Asked for.
    pub rollouts: u64,
    /// Finished and acknowledged before the checkpoint.
    pub finished_before: u64,
    /// Went on from the checkpoint to a result.
    pub continued: u64,
    /// Without a result of their own, or saved and yet started over.
    pub lost: u64,
    /// With more than one result, or running again after their result was acknowledged.
    pub done_twice: u64,
    /// Model calls whose reply or prefix was saved, and that were sampled from their start again.
    pub model_calls_repeated: u64,
    /// Tool calls applied twice.
    pub tool_effects_repeated: u64,
    /// Tokens of saved replies and prefixes that did not have to be sampled again.
    pub tokens_saved: u64,
}

impl Account {
    /// Nothing lost, nothing repeated.
    pub fn is_clean(&self) -> bool {
        self.lost == 0
            && self.done_twice == 0
            && self.model_calls_repeated == 0
            && self.tool_effects_repeated == 0
            && self.finished_before + self.continued == self.rollouts
    }
}

/// Counts the evidence.
pub fn account(evidence: &Evidence) -> Account {
    let mut results: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in &evidence.outcomes {
        results.entry(&outcome.rollout).or_default().push(outcome);
    }
    let of = |rollout: &str| results.get(rollout).map_or(&[][..], Vec::as_slice);
    let continued = |rollout: &str| {
        evidence.plan.get(rollout).is_some_and(|(_, next)| {
            of(rollout)
                .iter()
                .any(|outcome| outcome.restored && outcome.attempt >= *next)
        })
    };
    let mut account = Account {
        rollouts: evidence.rollouts.len() as u64,
        finished_before: evidence.acknowledged.len() as u64,
        model_calls_repeated: repeated_calls(evidence),
        tool_effects_repeated: repeated_effects(evidence),
        tokens_saved: tokens_saved(evidence),
        ..Account::default()
    };
    for rollout in &evidence.rollouts {
        let finished_before = evidence.acknowledged.contains(rollout);
        let went_on = continued(rollout);
        account.continued += u64::from(went_on);
        let saved = evidence.plan.contains_key(rollout);
        account.lost += u64::from(of(rollout).is_empty() || (saved && !went_on));
        account.done_twice += u64::from(of(rollout).len() > 1 || (finished_before && saved));
    }
    account
}

/// The calls that came after the checkpoint: of the attempts that go on, and of rollouts that were over.
fn calls_after(evidence: &Evidence) -> impl Iterator<Item = &Call> {
    let known: BTreeSet<_> = evidence
        .calls_at_checkpoint
        .iter()
        .map(|call| (call.rollout.as_str(), call.attempt, call.turn))
        .collect();
    evidence.calls_at_end.iter().filter(move |call| {
        // A call that was in flight at the kill and ran to its end unheard belongs to a history that did not survive.
        !known.contains(&(call.rollout.as_str(), call.attempt, call.turn))
    })
}

fn repeated_calls(evidence: &Evidence) -> u64 {
    let before: BTreeMap<_, _> = evidence
        .calls_at_checkpoint
        .iter()
        .map(|call| ((call.rollout.as_str(), call.turn), call))
        .collect();
    let mut seen = BTreeSet::new();
    let mut repeated = 0;
    for call in calls_after(evidence) {
        let again = !seen.insert((call.rollout.as_str(), call.turn));
        let over = evidence.acknowledged.contains(&call.rollout);
        let saved = before
            .get(&(call.rollout.as_str(), call.turn))
            .is_some_and(|earlier| {
                let from_start = call.prefix == 0;
                earlier.finished || (earlier.tokens > 0 && from_start)
            });
        repeated += u64::from(again || over || saved);
    }
    repeated
}

fn repeated_effects(evidence: &Evidence) -> u64 {
    let mut applied = BTreeSet::new();
    let mut repeated = 0;
    let known: BTreeSet<_> = evidence
        .effects_at_checkpoint
        .iter()
        .map(|e| (e.rollout.as_str(), e.attempt, e.operation))
        .collect();
    let after = evidence
        .effects_at_end
        .iter()
        .filter(|e| !known.contains(&(e.rollout.as_str(), e.attempt, e.operation)));
    for effect in evidence.effects_at_checkpoint.iter().chain(after) {
        repeated += u64::from(!applied.insert((effect.rollout.as_str(), effect.operation)));
    }
    repeated
}

fn tokens_saved(evidence: &Evidence) -> u64 {
    let replies: u64 = evidence
        .calls_at_checkpoint
        .iter()
        .filter(|call| call.finished && evidence.plan.contains_key(&call.rollout))
        .map(|call| call.tokens)
        .sum();
    let prefixes: u64 = calls_after(evidence).map(|call| call.prefix).sum();
    replies + prefixes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(rollout: &str, attempt: u32, turn: u32, tokens: u64, prefix: u64, finished: bool) -> Call {
        Call {
            rollout: rollout.into(),
            attempt,
            turn,
            tokens,
            prefix,
            finished,
        }
    }

    fn effect(rollout: &str, attempt: u32, turn: u32) -> Effect {
        Effect {
            rollout: rollout.into(),
            attempt,
            operation: (turn, 1),
        }
    }

    /// One rollout that was over, one that goes on: as it should be.
    fn good() -> Evidence {
        let before = vec![
            call("a", 0, 0, 5, 0, true),
            call("b", 0, 0, 7, 0, true),
            call("b", 0, 1, 4, 0, false),
        ];
        let mut after = before.clone();
        after[2] = call("b", 0, 1, 9, 0, true); // it ran to its end, unheard
        after.push(call("b", 1, 1, 9, 4, true));
        after.push(call("b", 1, 2, 3, 0, true));
        Evidence {
            rollouts: ["a", "b"].map(String::from).into(),
            acknowledged: ["a"].map(String::from).into(),
            plan: [("b".into(), (0, 1))].into(),
            calls_at_checkpoint: before,
            calls_at_end: after,
            effects_at_checkpoint: vec![effect("a", 0, 0), effect("b", 0, 0)],
            effects_at_end: vec![effect("a", 0, 0), effect("b", 0, 0), effect("b", 1, 1)],
            outcomes: vec![
                Outcome {
                    rollout: "a".into(),
                    attempt: 0,
                    reward: 1.0,
                    restored: false,
                },
                Outcome {
                    rollout: "b".into(),
                    attempt: 1,
                    reward: 1.0,
                    restored: true,
                },
            ],
        }
    }

    #[test]
    fn a_clean_run_counts_clean() {
        let account = account(&good());
        let expected = Account {
            rollouts: 2,
            finished_before: 1,
            continued: 1,
            tokens_saved: 11,
            ..Account::default()
        };
        assert_eq!(account, expected);
        assert!(account.is_clean());
    }

    #[test]
    fn each_fault_is_seen() {
        type Fault = (fn(&mut Evidence), fn(&Account) -> u64);
        let faults: [Fault; 8] = [
            (
                |e| {
                    e.outcomes.pop();
                },
                |a| a.lost,
            ),
            (|e| e.outcomes[1].restored = false, |a| a.lost),
            (|e| e.outcomes.push(e.outcomes[1].clone()), |a| a.done_twice),
            (
                |e| {
                    e.plan.insert("a".into(), (0, 1));
                },
                |a| a.done_twice,
            ),
            (
                |e| e.calls_at_end.push(call("b", 1, 0, 7, 0, true)),
                |a| a.model_calls_repeated,
            ),
            (|e| e.calls_at_end[3].prefix = 0, |a| a.model_calls_repeated),
            (
                |e| e.calls_at_end.push(call("a", 1, 0, 7, 0, true)),
                |a| a.model_calls_repeated,
            ),
            (
                |e| e.effects_at_end.push(effect("b", 1, 0)),
                |a| a.tool_effects_repeated,
            ),
        ];
        for (number, (break_it, figure)) in faults.into_iter().enumerate() {
            let mut evidence = good();
            break_it(&mut evidence);
            let account = account(&evidence);
            assert!(figure(&account) > 0, "fault {number} is not seen: {account:?}");
            assert!(!account.is_clean(), "fault {number}: {account:?}");
        }
    }
}
