//! Holding calls: where sampling stops until somebody says `release`.
//!
//! A hold is a rule, not a list: after n calls in total, after n calls of each rollout (both counted from the start or the
//! last reset), or after n tokens of each call. A call that meets the rule is *held* and stays so until a release, whatever
//! hold is set meanwhile; one release frees all and takes the rule away. A held call counts as received, and can be cut.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

/// A model call of this process, in the order of arrival, from 1.
pub type CallId = u64;

/// Where calls stop. As JSON exactly one of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// The first n calls go through.
    AfterCalls(u64),
    /// The first n calls of each rollout go through.
    AfterCallsPerRollout(u64),
    /// Each call samples n tokens; the ones of its prefix do not count. One that needs exactly n is held at its end.
    AfterTokensPerCall(u64),
}

/// A call's place among those counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ordinal {
    total: u64,
    of_rollout: u64,
}

/// The hold, its waiters, and the counts that it reads.
#[derive(Default, Debug)]
pub struct Holds {
    hold: Option<Hold>,
    held: BTreeSet<CallId>,
    total: u64,
    of_rollout: HashMap<String, u64>,
}

impl Holds {
    /// Counts a call that arrived.
    pub fn arrived(&mut self, rollout: &str) -> Ordinal {
        self.total += 1;
        let of_rollout = self.of_rollout.entry(rollout.to_owned()).or_default();
        *of_rollout += 1;
        Ordinal {
            total: self.total,
            of_rollout: *of_rollout,
        }
    }

    /// How many more tokens a call may sample now; 0: it is held from here on. `None`: as many as it likes.
    pub fn allowance(&mut self, call: CallId, ordinal: Ordinal, sampled: u64) -> Option<u64> {
        if self.held.contains(&call) {
            return Some(0);
        }
        let allowed = match self.hold? {
            Hold::AfterCalls(n) => (ordinal.total > n).then_some(0)?,
            Hold::AfterCallsPerRollout(n) => (ordinal.of_rollout > n).then_some(0)?,
            Hold::AfterTokensPerCall(n) => n.saturating_sub(sampled),
        };
        if allowed == 0 {
            self.held.insert(call);
        }
        Some(allowed)
    }

    /// Sets the rule; those held stay held.
    pub fn set(&mut self, hold: Hold) {
        self.hold = Some(hold);
    }

    /// Takes the rule away and frees all. Their ids, to be woken.
    pub fn release(&mut self) -> Vec<CallId> {
        self.hold = None;
        std::mem::take(&mut self.held).into_iter().collect()
    }

    /// A call that ended waits no more.
    pub fn forget(&mut self, call: CallId) {
        self.held.remove(&call);
    }

    /// How many wait.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The rule.
    pub fn current(&self) -> Option<Hold> {
        self.hold
    }

    /// Counts from 0 again.
    pub fn reset_counts(&mut self) {
        self.total = 0;
        self.of_rollout.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_calls_go_through_in_total() {
        let mut holds = Holds::default();
        holds.set(Hold::AfterCalls(2));
        let allowed: Vec<_> = (1..=3)
            .map(|call| {
                let ordinal = holds.arrived(if call == 1 { "a" } else { "b" });
                holds.allowance(call, ordinal, 0)
            })
            .collect();
        assert_eq!(allowed, [None, None, Some(0)]);
        assert_eq!(holds.held(), 1);
    }

    #[test]
    fn the_first_calls_go_through_for_each_rollout() {
        let mut holds = Holds::default();
        holds.set(Hold::AfterCallsPerRollout(1));
        let mut allowed = Vec::new();
        for (call, rollout) in ["a", "b", "a", "b"].into_iter().enumerate() {
            let ordinal = holds.arrived(rollout);
            allowed.push(holds.allowance(call as u64, ordinal, 0));
        }
        assert_eq!(allowed, [None, None, Some(0), Some(0)]);
    }

    #[test]
    fn each_call_samples_its_tokens_and_is_held() {
        let mut holds = Holds::default();
        holds.set(Hold::AfterTokensPerCall(5));
        let ordinal = holds.arrived("a");
        assert_eq!(holds.allowance(1, ordinal, 3), Some(2));
        assert_eq!(holds.held(), 0);
        assert_eq!(holds.allowance(1, ordinal, 5), Some(0));
        assert_eq!(holds.held(), 1);
    }

    #[test]
    fn a_second_hold_keeps_the_first_ones_waiters_and_one_release_frees_all() {
        let mut holds = Holds::default();
        holds.set(Hold::AfterCalls(0));
        let first = holds.arrived("a");
        assert_eq!(holds.allowance(1, first, 0), Some(0));
        holds.set(Hold::AfterCalls(100));
        assert_eq!(holds.allowance(1, first, 0), Some(0), "still held");
        holds.set(Hold::AfterTokensPerCall(0));
        let second = holds.arrived("b");
        assert_eq!(holds.allowance(2, second, 0), Some(0));
        assert_eq!(holds.release(), [1, 2]);
        assert_eq!((holds.held(), holds.current()), (0, None));
        assert_eq!(holds.allowance(1, first, 0), None);
    }

    #[test]
    fn one_field_of_json() {
        let hold: Hold = serde_json::from_str(r#"{"after_calls_per_rollout": 1}"#).expect("a hold");
        assert_eq!(hold, Hold::AfterCallsPerRollout(1));
        for bad in [
            "{}",
            r#"{"after_calls":1,"after_tokens_per_call":2}"#,
            r#"{"after":1}"#,
            "3",
        ] {
            assert!(serde_json::from_str::<Hold>(bad).is_err(), "{bad}");
        }
    }
}
