//! The book of attempts: which are refused, which were handed out, which rollouts are forgotten.
//!
//! A mark is raised for two reasons that a restore must tell apart. A *retired* attempt is over: a record at or below it is
//! never restored. A *superseded* one was restored as a later attempt: it is refused everywhere, and its record may be
//! restored again as often as its checkpoint is there.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{Attempt, CheckpointId, Episode, RolloutId},
    parts::Mark,
};

/// What is remembered of one rollout until it is forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Remembered {
    /// This attempt and all earlier ones are refused.
    pub mark: Option<Attempt>,
    /// This attempt and all earlier ones are over, and are restored by nothing.
    pub retired: Option<Attempt>,
    /// The highest attempt that a restore has handed out.
    pub handed_out: Option<Attempt>,
}

/// Why a mark is raised.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Why {
    /// The attempt is over.
    Retired,
    /// It goes on as a later attempt.
    Superseded,
}

/// All marks, and what belongs to them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AttemptBook {
    /// Grows with every change of the marks.
    pub version: u64,
    /// By rollout.
    pub rollouts: BTreeMap<RolloutId, Remembered>,
    /// Forgotten rollouts: what a checkpoint up to this one says of them is not restored.
    pub forgotten: BTreeMap<RolloutId, CheckpointId>,
}

impl AttemptBook {
    /// All marks but those of rollouts that are `being_forgotten`: a participant that joins must not learn them anew.
    pub fn marks(&self, being_forgotten: &BTreeSet<RolloutId>) -> Vec<Mark> {
        self.rollouts
            .iter()
            .filter(|(rollout, _)| !being_forgotten.contains(*rollout))
            .filter_map(|(rollout, r)| {
                Some(Mark {
                    rollout: rollout.clone(),
                    attempt: r.mark?,
                })
            })
            .collect()
    }

    /// How many rollouts have a mark.
    pub fn mark_count(&self) -> u64 {
        self.rollouts.values().filter(|r| r.mark.is_some()).count() as u64
    }

    /// The rollouts as they are after these marks are raised. Those that do not change are not listed.
    pub fn raised(&self, marks: &[Mark], why: Why) -> Vec<(RolloutId, Remembered)> {
        let mut changed: BTreeMap<RolloutId, Remembered> = BTreeMap::new();
        for mark in marks {
            let before = self.rollouts.get(&mark.rollout).copied().unwrap_or_default();
            let row = changed.entry(mark.rollout.clone()).or_insert(before);
            row.mark = row.mark.max(Some(mark.attempt));
            if why == Why::Retired {
                row.retired = row.retired.max(Some(mark.attempt));
            }
        }
        changed.retain(|rollout, row| self.rollouts.get(rollout) != Some(row));
        changed.into_iter().collect()
    }

    /// The rollouts as they are after these attempts are handed out.
    pub fn handed_out<'a>(
        &self,
        attempts: impl IntoIterator<Item = (&'a RolloutId, Attempt)>,
    ) -> Vec<(RolloutId, Remembered)> {
        attempts
            .into_iter()
            .map(|(rollout, attempt)| {
                let mut row = self.rollouts.get(rollout).copied().unwrap_or_default();
                row.handed_out = row.handed_out.max(Some(attempt));
                (rollout.clone(), row)
            })
            .collect()
    }

    /// The attempt that is legal next: above the mark, above all that was handed out, above `seen`. What was handed out and
    /// is not marked is itself still good.
    pub fn next_attempt(&self, rollout: &RolloutId, seen: Option<Attempt>) -> Attempt {
        let row = self.rollouts.get(rollout).copied().unwrap_or_default();
        [row.mark, row.handed_out, seen]
            .into_iter()
            .flatten()
            .max()
            .map_or(0, |a| a.saturating_add(1))
    }

    /// A record of this episode, in this checkpoint, is of a rollout that is over.
    pub fn is_over(&self, episode: &Episode, checkpoint: CheckpointId) -> bool {
        let retired = self.rollouts.get(&episode.rollout).and_then(|r| r.retired);
        retired.is_some_and(|r| episode.attempt <= r)
            || self
                .forgotten
                .get(&episode.rollout)
                .is_some_and(|until| checkpoint <= *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::test_support::{episode, rollout};

    fn mark(id: &str, attempt: Attempt) -> Mark {
        Mark {
            rollout: rollout(id),
            attempt,
        }
    }

    fn book(rows: Vec<(RolloutId, Remembered)>) -> AttemptBook {
        AttemptBook {
            rollouts: rows.into_iter().collect(),
            ..AttemptBook::default()
        }
    }

    const FIRST: CheckpointId = CheckpointId {
        epoch: 1,
        sequence: 1,
    };

    #[test]
    fn a_mark_only_rises() {
        let book = book(AttemptBook::default().raised(&[mark("a", 3), mark("a", 1)], Why::Retired));
        assert_eq!(book.rollouts[&rollout("a")].mark, Some(3));
        assert!(book.raised(&[mark("a", 2)], Why::Retired).is_empty());
        assert_eq!(book.next_attempt(&rollout("a"), None), 4);
        assert_eq!(book.next_attempt(&rollout("b"), None), 0);
    }

    #[test]
    fn what_was_superseded_may_be_restored_again_and_what_was_retired_not() {
        let superseded = book(AttemptBook::default().raised(&[mark("a", 0)], Why::Superseded));
        assert!(!superseded.is_over(&episode("a", 0), FIRST));
        let retired = book(superseded.raised(&[mark("a", 0)], Why::Retired));
        assert!(retired.is_over(&episode("a", 0), FIRST));
        assert!(!retired.is_over(&episode("a", 1), FIRST));
    }

    #[test]
    fn a_forgotten_rollout_comes_back_only_from_a_later_checkpoint() {
        let mut book = AttemptBook::default();
        book.forgotten.insert(rollout("a"), FIRST);
        assert!(book.is_over(&episode("a", 7), FIRST));
        assert!(!book.is_over(
            &episode("a", 0),
            CheckpointId {
                epoch: 1,
                sequence: 2
            }
        ));
    }

    #[test]
    fn no_attempt_is_handed_out_twice() {
        let first = book(AttemptBook::default().handed_out([(&rollout("a"), 1)]));
        assert_eq!(first.next_attempt(&rollout("a"), Some(0)), 2);
        assert_eq!(first.marks(&BTreeSet::new()), vec![]);
    }

    #[test]
    fn marks_of_rollouts_being_forgotten_are_not_told() {
        let book = book(AttemptBook::default().raised(&[mark("a", 0), mark("b", 1)], Why::Retired));
        assert_eq!(book.marks(&BTreeSet::from([rollout("a")])), vec![mark("b", 1)]);
    }
}
