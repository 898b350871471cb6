//! Where a restore puts each episode, and under which names (protocol 4, Restore).

use std::collections::{BTreeMap, BTreeSet};

use super::attempts::AttemptBook;
use crate::{
    ids::{CheckpointId, Episode, ExecutionId, Instance, RolloutId},
    parts::{Mark, PlannedEpisode},
    refusal::{Reason, Refusal},
};

/// What a checkpoint says of one episode, as far as a plan needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Saved {
    /// As it was called.
    pub episode: Episode,
    /// Every instance that held a part of it.
    pub parts: Vec<Instance>,
}

/// Which rollouts are asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scope {
    /// Only these; empty means all.
    pub only: BTreeSet<RolloutId>,
    /// Not these.
    pub leave_out: BTreeSet<RolloutId>,
}

impl Scope {
    /// The rollout is asked for.
    pub fn takes(&self, rollout: &RolloutId) -> bool {
        (self.only.is_empty() || self.only.contains(rollout)) && !self.leave_out.contains(rollout)
    }
}

/// What a restore will do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// In the rollouts' order.
    pub episodes: Vec<PlannedEpisode>,
    /// Rollouts that are in the checkpoint and over: not restored.
    pub retired: Vec<RolloutId>,
}

impl Plan {
    /// What is refused from *activate* on: everything below the attempts that are handed out.
    pub fn superseded(&self) -> Vec<Mark> {
        superseded(&self.episodes)
    }
}

/// Marks at next − 1 for each planned episode.
pub fn superseded(episodes: &[PlannedEpisode]) -> Vec<Mark> {
    episodes
        .iter()
        .filter_map(|e| {
            Some(Mark {
                rollout: e.saved.rollout.clone(),
                attempt: e.attempt.checked_sub(1)?,
            })
        })
        .collect()
}

/// Plans. `place` gives the replica of the same server that a rollout belongs to now, `fresh` makes executions.
///
/// INVALID_REQUEST when an episode has a part on a server that the mesh no longer has.
pub fn plan(
    source: CheckpointId,
    saved: &[Saved],
    scope: &Scope,
    book: &AttemptBook,
    place: &dyn Fn(&Instance, &RolloutId) -> Option<Instance>,
    fresh: &mut dyn FnMut() -> ExecutionId,
) -> Result<Plan, Refusal> {
    // One rollout goes on in one attempt: its highest.
    let mut newest: BTreeMap<&RolloutId, &Saved> = BTreeMap::new();
    for episode in saved.iter().filter(|s| scope.takes(&s.episode.rollout)) {
        let entry = newest.entry(&episode.episode.rollout).or_insert(episode);
        if episode.episode.attempt > entry.episode.attempt {
            *entry = episode;
        }
    }
    let mut plan = Plan::default();
    for (rollout, saved) in newest {
        if book.is_over(&saved.episode, source) {
            plan.retired.push(rollout.clone());
            continue;
        }
        let mut placement: Vec<Instance> = Vec::with_capacity(saved.parts.len());
        for part in &saved.parts {
            if placement.iter().any(|p| p.same_server(part)) {
                continue;
            }
            let placed = place(part, rollout).ok_or_else(|| {
                Refusal::new(
                    Reason::InvalidRequest,
                    format!(
                        "{} has a part on {}/{}, and the mesh has no such server now: start one, or leave the rollout out of the restore",
                        saved.episode, part.kind, part.name
                    ),
                )
                .episode(&saved.episode)
                .instance(part)
            })?;
            placement.push(placed);
        }
        plan.episodes.push(PlannedEpisode {
            saved: saved.episode.clone(),
            attempt: book.next_attempt(rollout, Some(saved.episode.attempt)),
            execution: fresh(),
            placement,
        });
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{
        attempts::Why,
        test_support::{Dice, episode, execution, instance, rollout},
    };

    const SOURCE: CheckpointId = CheckpointId {
        epoch: 1,
        sequence: 1,
    };

    fn saved(id: &str, attempt: u32, parts: &[&str]) -> Saved {
        Saved {
            episode: episode(id, attempt),
            parts: parts.iter().map(|p| instance(p)).collect(),
        }
    }

    fn make(saved: &[Saved], scope: &Scope, book: &AttemptBook) -> Result<Plan, Refusal> {
        let mut next = 0;
        plan(
            SOURCE,
            saved,
            scope,
            book,
            &|part, _| {
                (&*part.name != "gone").then(|| Instance {
                    replica: 7,
                    ..part.clone()
                })
            },
            &mut || {
                next += 1;
                execution(next)
            },
        )
    }

    #[test]
    fn parts_go_to_replicas_of_the_same_server_each_once() {
        let parts = ["environment/e/0", "resources/counter/1", "resources/counter/0"];
        let plan = make(
            &[saved("a", 0, &parts)],
            &Scope::default(),
            &AttemptBook::default(),
        )
        .expect("planned");
        assert_eq!(plan.episodes[0].attempt, 1);
        assert_eq!(
            plan.episodes[0].placement,
            [instance("environment/e/7"), instance("resources/counter/7")]
        );
        assert_eq!(
            plan.superseded(),
            vec![Mark {
                rollout: rollout("a"),
                attempt: 0
            }]
        );
    }

    #[test]
    fn a_server_that_is_gone_is_named() {
        let refusal = make(
            &[saved("a", 0, &["resources/gone/0"])],
            &Scope::default(),
            &AttemptBook::default(),
        )
        .expect_err("no place");
        assert_eq!(refusal.reason, Reason::InvalidRequest);
        assert!(refusal.message.contains("resources/gone"), "{}", refusal.message);
    }

    #[test]
    fn the_scope_is_kept_and_of_two_attempts_the_higher_goes_on() {
        let all = [
            saved("a", 0, &[]),
            saved("a", 2, &[]),
            saved("b", 0, &[]),
            saved("c", 0, &[]),
        ];
        let scope = Scope {
            only: [rollout("a"), rollout("b")].into(),
            leave_out: [rollout("b")].into(),
        };
        let plan = make(&all, &scope, &AttemptBook::default()).expect("planned");
        assert_eq!(plan.episodes.len(), 1);
        assert_eq!((plan.episodes[0].saved.attempt, plan.episodes[0].attempt), (2, 3));
    }

    /// Restores, retires and forgets in any order: no attempt is handed out twice, none at or below a mark, nothing that
    /// is over comes back, and everything else does, again and again.
    #[test]
    fn random_histories_hand_out_each_attempt_once() {
        let mut dice = Dice::new("random_histories_hand_out_each_attempt_once");
        for _ in 0..500 {
            let mut book = AttemptBook::default();
            let mut given: BTreeSet<(RolloutId, u32)> = BTreeSet::new();
            let all: Vec<Saved> = (0..4)
                .map(|n| saved(&format!("r{n}"), dice.below(3) as u32, &["agent/a/0"]))
                .collect();
            for _ in 0..8 {
                let one = &all[dice.below(4) as usize].episode;
                match dice.below(4) {
                    0 => {
                        let mark = Mark {
                            rollout: one.rollout.clone(),
                            attempt: dice.below(4) as u32,
                        };
                        book.rollouts.extend(book.raised(&[mark], Why::Retired));
                    }
                    _ => {
                        let plan = make(&all, &Scope::default(), &book).expect("planned");
                        assert_eq!(plan.episodes.len() + plan.retired.len(), all.len());
                        for e in &plan.episodes {
                            let row = book.rollouts.get(&e.saved.rollout).copied().unwrap_or_default();
                            assert!(row.mark.is_none_or(|m| e.attempt > m));
                            assert!(row.retired.is_none_or(|r| e.saved.attempt > r));
                            assert!(e.attempt > e.saved.attempt);
                            assert!(given.insert((e.saved.rollout.clone(), e.attempt)), "{e:?} twice");
                        }
                        let out = plan.episodes.iter().map(|e| (&e.saved.rollout, e.attempt));
                        book.rollouts.extend(book.handed_out(out));
                        book.rollouts
                            .extend(book.raised(&plan.superseded(), Why::Superseded));
                    }
                }
            }
        }
    }
}
