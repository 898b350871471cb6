//! Per rollout, the highest attempt that is refused: a set with a version (protocol 3.2 rule 8).

use std::collections::HashMap;

use crate::{
    ids::{Attempt, Episode, RolloutId},
    parts::Mark,
    refusal::{Reason, Refusal},
};

/// Status warns above this many.
pub const MANY_MARKS: usize = 1_000_000;

/// One rollout's mark, and the version of the set that raised it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    attempt: Attempt,
    raised: u64,
}

/// The marks that a participant holds.
///
/// A mark is only ever raised or, by a Forget, dropped. What arrives with an older version than the one held is ignored: a
/// late Join must not bring back what was forgotten since.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    version: u64,
    held: HashMap<RolloutId, Held>,
}

impl Marks {
    /// The version held; 0 before the first.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True when no rollout has a mark.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The rollout's mark.
    pub fn get(&self, rollout: &RolloutId) -> Option<Attempt> {
        self.held.get(rollout).map(|held| held.attempt)
    }

    /// The mark, or a higher one, is held.
    pub fn holds(&self, mark: &Mark) -> bool {
        self.get(&mark.rollout).is_some_and(|held| held >= mark.attempt)
    }

    /// True when the episode is at or below its rollout's mark.
    pub fn refuses(&self, episode: &Episode) -> bool {
        self.get(&episode.rollout)
            .is_some_and(|mark| episode.attempt <= mark)
    }

    /// STALE_ATTEMPT, with the attempt to send instead, when [`refuses`](Self::refuses).
    pub fn check(&self, episode: &Episode) -> Result<(), Refusal> {
        match self.get(&episode.rollout) {
            Some(mark) if episode.attempt <= mark => {
                let next = u64::from(mark) + 1;
                Err(Refusal::new(
                    Reason::StaleAttempt,
                    format!(
                        "{episode} is refused: attempts through {mark} were retired or superseded; send attempt {next}"
                    ),
                )
                .episode(episode)
                .with("next_attempt", next))
            }
            _ => Ok(()),
        }
    }

    /// Unites: each mark is the higher of the two. False, and nothing done, when the version is older than the one held.
    pub fn raise<'a>(&mut self, version: u64, marks: impl IntoIterator<Item = &'a Mark>) -> bool {
        if version < self.version {
            return false;
        }
        self.version = version;
        for mark in marks {
            let held = self.held.entry(mark.rollout.clone()).or_insert(Held {
                attempt: mark.attempt,
                raised: version,
            });
            held.attempt = held.attempt.max(mark.attempt);
            // Also where the attempt stays: a Forget from before this call must not take away what this call asked for.
            held.raised = version;
        }
        true
    }

    /// True when a Forget of this version may drop what is remembered of the rollout: no mark, or one raised before it.
    pub fn may_drop(&self, version: u64, rollout: &RolloutId) -> bool {
        self.held.get(rollout).is_none_or(|h| h.raised < version)
    }

    /// Drops the rollouts' marks that were raised before the version; replies how many. The version held becomes the
    /// call's, if that is newer, so that a late Join from before it is ignored.
    pub fn forget<'a>(&mut self, version: u64, rollouts: impl IntoIterator<Item = &'a RolloutId>) -> u64 {
        self.version = self.version.max(version);
        let mut dropped = 0;
        for rollout in rollouts {
            if self.held.get(rollout).is_some_and(|h| h.raised < version) {
                self.held.remove(rollout);
                dropped += 1;
            }
        }
        dropped
    }

    /// All marks, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Mark> + '_ {
        self.held.iter().map(|(rollout, held)| Mark {
            rollout: rollout.clone(),
            attempt: held.attempt,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(name: &str) -> RolloutId {
        RolloutId::new(name).expect("legal")
    }

    fn mark(name: &str, attempt: u32) -> Mark {
        Mark {
            rollout: rollout(name),
            attempt,
        }
    }

    #[test]
    fn a_mark_refuses_its_attempt_and_all_earlier_ones_and_names_the_next() {
        let mut marks = Marks::default();
        assert!(marks.raise(1, &[mark("a", 2)]));
        for attempt in 0..=2 {
            let refusal = marks
                .check(&Episode::new(rollout("a"), attempt))
                .expect_err("marked");
            assert_eq!(refusal.reason, Reason::StaleAttempt);
            assert_eq!(refusal.get("next_attempt"), Some("3"));
        }
        assert!(marks.check(&Episode::new(rollout("a"), 3)).is_ok());
        assert!(marks.check(&Episode::new(rollout("b"), 0)).is_ok());
    }

    #[test]
    fn the_highest_attempt_has_no_overflow() {
        let mut marks = Marks::default();
        marks.raise(1, &[mark("a", u32::MAX)]);
        let refusal = marks
            .check(&Episode::new(rollout("a"), u32::MAX))
            .expect_err("marked");
        assert_eq!(refusal.get("next_attempt"), Some("4294967296"));
    }

    #[test]
    fn a_mark_never_sinks_and_an_older_version_is_ignored() {
        let mut marks = Marks::default();
        marks.raise(3, &[mark("a", 5)]);
        marks.raise(4, &[mark("a", 1), mark("b", 0)]);
        assert_eq!(marks.get(&rollout("a")), Some(5));
        assert!(!marks.raise(3, &[mark("c", 9), mark("a", 9)]));
        assert_eq!(marks.get(&rollout("c")), None);
        assert_eq!(marks.get(&rollout("a")), Some(5));
        assert_eq!(marks.version(), 4);
    }

    #[test]
    fn forget_drops_only_what_was_raised_before_it_and_fences_late_joins() {
        let mut marks = Marks::default();
        marks.raise(1, &[mark("old", 0), mark("again", 0)]);
        marks.raise(3, &[mark("again", 0)]);
        let (old, again) = (rollout("old"), rollout("again"));
        assert!(marks.may_drop(2, &old) && !marks.may_drop(2, &again));
        assert_eq!(marks.forget(2, [&old, &again]), 1);
        assert_eq!((marks.get(&old), marks.get(&again)), (None, Some(0)));
        assert_eq!(marks.version(), 3);
        assert_eq!(marks.forget(9, [&again]), 1);
        assert!(!marks.raise(8, &[mark("again", 0)]), "from before the forget");
        assert!(marks.is_empty());
    }
}
