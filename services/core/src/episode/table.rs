//! Every episode that one server admitted and that is not forgotten.
//!
//! ```text
//!  admit ──> live ──finish──> finished ──acknowledge──> acknowledged
//!             │ └───fail────> failed      │
//!             └───────retire──────────────┴───────────> retired
//!  activate ─> live or finished, unclaimed until a Run comes
//! ```

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    boundary::{Boundary, StepDone},
    work::{Deadline, Finished, Life, Work},
};
use crate::{
    ids::{Attempt, Episode, ExecutionId, Instance, RolloutId},
    parts::Mark,
    refusal::{Reason, Refusal},
};

/// The table: a pure value.
#[derive(Clone, Debug)]
pub struct Episodes {
    pub(super) instance: Instance,
    /// At most this many results wait to be acknowledged.
    pub(super) limit: usize,
    /// Episodes have boundaries to go on from.
    pub(super) boundaries: bool,
    pub(super) rollouts: HashMap<RolloutId, Rollout>,
    results: usize,
}

/// What is remembered of a rollout.
#[derive(Clone, Debug, Default)]
pub(super) struct Rollout {
    /// This attempt and all earlier ones are refused.
    pub(super) mark: Option<Attempt>,
    pub(super) attempts: BTreeMap<Attempt, Entry>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) execution: ExecutionId,
    /// It came out of a checkpoint.
    pub(super) restored: bool,
    /// A Run has asked for it.
    pub(super) claimed: bool,
    pub(super) state: State,
}

#[derive(Clone, Debug)]
pub(super) enum State {
    Live {
        work: Arc<Work>,
        boundary: Boundary,
        deadline: Deadline,
    },
    Finished(Arc<Finished>),
    Acknowledged,
    Failed(Arc<Refusal>),
    Retired {
        /// Its task has yet to end.
        ending: bool,
    },
}

impl State {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Live { .. } => "live",
            Self::Finished(_) => "finished",
            Self::Acknowledged => "acknowledged",
            Self::Failed(_) => "failed",
            Self::Retired { .. } => "retired",
        }
    }
}

impl Entry {
    pub(super) fn live(life: &Life, restored: bool, claimed: bool) -> Self {
        Self {
            execution: life.execution,
            restored,
            claimed,
            state: State::Live {
                work: life.work.clone(),
                boundary: life.boundary.clone(),
                deadline: life.deadline,
            },
        }
    }

    /// No other attempt of the rollout may start beside it.
    pub(super) fn bars_others(&self) -> bool {
        matches!(
            self.state,
            State::Live { .. } | State::Finished(_) | State::Retired { ending: true }
        )
    }
}

impl Rollout {
    /// The attempt that would be served now.
    pub(super) fn next_attempt(&self) -> Attempt {
        let above_mark = self.mark.map_or(0, |mark| mark.saturating_add(1));
        match self.attempts.last_key_value() {
            Some((highest, entry)) if matches!(entry.state, State::Live { .. } | State::Finished(_)) => {
                above_mark.max(*highest)
            }
            Some((highest, _)) => above_mark.max(highest.saturating_add(1)),
            None => above_mark,
        }
    }
}

/// An episode that goes live by a restore.
#[derive(Clone, PartialEq, Debug)]
pub struct Restored {
    /// As it is called from now on.
    pub episode: Episode,
    /// Its life from now on.
    pub execution: ExecutionId,
    /// What is asked for.
    pub work: Arc<Work>,
    /// Where it goes on; at `return` it is finished.
    pub boundary: Boundary,
    /// What is left of its time.
    pub deadline: Deadline,
}

/// A result that was freed: its ledger is to be ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Freed {
    /// Which.
    pub episode: Episode,
    /// The life that finished.
    pub execution: ExecutionId,
    /// Where its ledger is.
    pub policy_model: Instance,
}

impl Episodes {
    /// An empty table that keeps at most `limit` results.
    pub fn new(instance: Instance, limit: usize) -> Self {
        Self {
            instance,
            limit,
            boundaries: true,
            rollouts: HashMap::new(),
            results: 0,
        }
    }

    /// The same of episodes that have no boundaries to go on from: each one that runs is a restart.
    #[must_use]
    pub fn without_boundaries(self) -> Self {
        Self {
            boundaries: false,
            ..self
        }
    }

    /// A step is done: the boundary after it, from which the episode goes on. At `return` it is finished. `None` when this life is
    /// over (retired, failed) or the step was not the next one: then nothing is changed.
    pub fn record(&mut self, episode: &Episode, execution: ExecutionId, done: StepDone) -> Option<Boundary> {
        let entry = self.entry_mut(episode)?;
        if entry.execution != execution {
            return None;
        }
        let State::Live { work, boundary, .. } = &mut entry.state else {
            return None;
        };
        let next = boundary.after(done)?;
        *boundary = next.clone();
        if let Some(finished) = finished(episode, execution, entry.restored, work, &next) {
            entry.state = State::Finished(Arc::new(finished));
            self.results += 1;
        }
        Some(next)
    }

    /// The attempt ended with an error, which every later Run of it gets. False when this life is over already.
    pub fn fail(&mut self, episode: &Episode, execution: ExecutionId, why: Refusal) -> bool {
        match self.entry_mut(episode) {
            Some(entry) if entry.execution == execution && matches!(entry.state, State::Live { .. }) => {
                entry.state = State::Failed(Arc::new(why));
                true
            }
            _ => false,
        }
    }

    /// The result of an episode, or what it failed with; `None` while it runs or when it is not held.
    pub fn outcome(&self, episode: &Episode) -> Option<Result<Arc<Finished>, Refusal>> {
        match &self.entry(episode)?.state {
            State::Finished(finished) => Some(Ok(finished.clone())),
            State::Failed(refusal) => Some(Err(refusal.as_ref().clone())),
            _ => None,
        }
    }

    /// The life that is held of an episode.
    pub fn execution(&self, episode: &Episode) -> Option<ExecutionId> {
        self.entry(episode).map(|entry| entry.execution)
    }

    /// A finished, unacknowledged episode. EPISODE_UNKNOWN, or INVALID_REQUEST while it runs.
    pub fn finished(&self, episode: &Episode) -> Result<Arc<Finished>, Refusal> {
        let (reason, what) = match self.entry(episode).map(|entry| &entry.state) {
            Some(State::Finished(finished)) => return Ok(finished.clone()),
            Some(State::Live { .. }) => (
                Reason::InvalidRequest,
                "it still runs: wait for the reply of its Run",
            ),
            Some(State::Acknowledged) => (Reason::EpisodeUnknown, "its result was acknowledged and freed"),
            Some(State::Failed(_)) => (Reason::EpisodeUnknown, "its attempt ended with an error"),
            Some(State::Retired { .. }) => (Reason::EpisodeUnknown, "its attempt was retired"),
            None => (Reason::EpisodeUnknown, "it was neither started nor restored here"),
        };
        let message = format!("{} has no result of {episode}: {what}", self.instance);
        Err(self.refuse(reason, episode, message))
    }

    /// Frees results. Episodes that are not finished are passed over.
    pub fn acknowledge(&mut self, episodes: &[Episode]) -> Vec<Freed> {
        let mut freed = Vec::new();
        for episode in episodes {
            let Some(entry) = self.entry_mut(episode) else {
                continue;
            };
            let State::Finished(finished) = &entry.state else {
                continue;
            };
            freed.push(Freed {
                episode: episode.clone(),
                execution: entry.execution,
                policy_model: finished.parts.policy_model.clone(),
            });
            entry.state = State::Acknowledged;
            self.results -= 1;
        }
        freed
    }

    /// Retires attempts: the lives whose tasks are to be stopped; [`ended`](Self::ended) says when each has.
    pub fn retire(&mut self, mark: &Mark) -> Vec<ExecutionId> {
        let rollout = self.rollouts.entry(mark.rollout.clone()).or_default();
        rollout.mark = rollout.mark.max(Some(mark.attempt));
        let mut stop = Vec::new();
        for entry in rollout
            .attempts
            .range_mut(..=mark.attempt)
            .map(|(_, entry)| entry)
        {
            let ending = match entry.state {
                State::Live { .. } => entry.claimed,
                State::Finished(_) => {
                    self.results -= 1;
                    false
                }
                State::Retired { .. } | State::Acknowledged | State::Failed(_) => continue,
            };
            entry.state = State::Retired { ending };
            if ending {
                stop.push(entry.execution);
            }
        }
        stop
    }

    /// The task of an episode has ended.
    pub fn ended(&mut self, episode: &Episode, execution: ExecutionId) {
        if let Some(entry) = self.entry_mut(episode)
            && entry.execution == execution
            && let State::Retired { ending } = &mut entry.state
        {
            *ending = false;
        }
    }

    /// A retired attempt at or below the mark has yet to end.
    pub fn retiring(&self, mark: &Mark) -> bool {
        self.rollouts.get(&mark.rollout).is_some_and(|rollout| {
            rollout
                .attempts
                .range(..=mark.attempt)
                .any(|(_, entry)| matches!(entry.state, State::Retired { ending: true }))
        })
    }

    /// Restored episodes go live, unclaimed. Lower attempts are retired first: the lives whose tasks are to be stopped.
    pub fn activate(&mut self, restored: Vec<Restored>) -> Vec<ExecutionId> {
        let mut stop = Vec::new();
        for one in restored {
            let Episode { rollout, attempt } = &one.episode;
            if let Some(below) = attempt.checked_sub(1) {
                stop.extend(self.retire(&Mark {
                    rollout: rollout.clone(),
                    attempt: below,
                }));
            }
            let state = match finished(&one.episode, one.execution, true, &one.work, &one.boundary) {
                Some(finished) => State::Finished(Arc::new(finished)),
                None => State::Live {
                    work: one.work,
                    boundary: one.boundary,
                    deadline: one.deadline,
                },
            };
            self.results += usize::from(matches!(state, State::Finished(_)));
            let entry = Entry {
                execution: one.execution,
                restored: true,
                claimed: false,
                state,
            };
            let attempts = &mut self.rollouts.entry(rollout.clone()).or_default().attempts;
            if let Some(replaced) = attempts.insert(*attempt, entry) {
                self.results -= usize::from(matches!(replaced.state, State::Finished(_)));
                if matches!(replaced.state, State::Live { .. }) && replaced.claimed {
                    stop.push(replaced.execution);
                }
            }
        }
        stop
    }

    /// Drops restored episodes that nobody has claimed, at or below these marks; claimed ones stay. How many.
    pub fn drop_unclaimed(&mut self, marks: &[Mark]) -> u64 {
        let mut dropped = 0;
        for mark in marks {
            let Some(rollout) = self.rollouts.get_mut(&mark.rollout) else {
                continue;
            };
            for entry in rollout
                .attempts
                .range_mut(..=mark.attempt)
                .map(|(_, entry)| entry)
            {
                let holds = matches!(entry.state, State::Live { .. } | State::Finished(_));
                if entry.claimed || !holds {
                    continue;
                }
                self.results -= usize::from(matches!(entry.state, State::Finished(_)));
                entry.state = State::Retired { ending: false };
                rollout.mark = rollout.mark.max(Some(mark.attempt));
                dropped += 1;
            }
        }
        dropped
    }

    /// An attempt of the rollout runs, is finished or waits to be claimed here.
    pub fn holds(&self, rollout: &RolloutId) -> bool {
        self.rollouts
            .get(rollout)
            .is_some_and(|r| r.attempts.values().any(Entry::bars_others))
    }

    /// ROLLOUT_LIVE while an attempt lives, is staged or has a result; RETIRE_INCOMPLETE while a retired one has yet to end.
    pub fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        let attempts = self.rollouts.get(rollout).into_iter().flat_map(|r| &r.attempts);
        for (attempt, entry) in attempts {
            let (reason, what) = match entry.state {
                State::Live { .. } => (Reason::RolloutLive, "lives; let it end, or retire it"),
                State::Finished(_) => (
                    Reason::RolloutLive,
                    "has a result that is not acknowledged; acknowledge it, or retire it",
                ),
                State::Retired { ending: true } => (
                    Reason::RetireIncomplete,
                    "is retired and has yet to end; try again in a moment",
                ),
                _ => continue,
            };
            let episode = Episode::new(rollout.clone(), *attempt);
            let message = format!("{episode} {what} ({})", self.instance);
            return Err(self.refuse(reason, &episode, message));
        }
        Ok(())
    }

    /// Drops what is remembered of a rollout that is over. One that is not stays.
    pub fn forget(&mut self, rollout: &RolloutId) {
        if self.may_forget(rollout).is_ok() {
            self.rollouts.remove(rollout);
        }
    }

    /// Episodes that live or wait to be claimed, and finished ones whose result is not acknowledged.
    pub fn roots(&self) -> Vec<Episode> {
        let mut roots: Vec<Episode> = self
            .entries()
            .filter(|(_, entry)| matches!(entry.state, State::Live { .. } | State::Finished(_)))
            .map(|(episode, _)| episode)
            .collect();
        roots.sort();
        roots
    }

    /// How many results wait to be acknowledged.
    pub fn results(&self) -> usize {
        self.results
    }

    /// The most results that may wait.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many restored episodes wait for a Run.
    pub fn unclaimed(&self) -> u64 {
        self.entries()
            .filter(|(_, entry)| {
                !entry.claimed && matches!(entry.state, State::Live { .. } | State::Finished(_))
            })
            .count() as u64
    }

    /// How many are held, by state.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::from([("episodes", 0), ("results", 0)]);
        for (_, entry) in self.entries() {
            let name = match entry.state {
                State::Live { .. } => "episodes",
                State::Finished(_) => "results",
                State::Retired { ending: true } => "retiring",
                _ => entry.state.name(),
            };
            *counts.entry(name).or_default() += 1;
        }
        counts
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (Episode, &Entry)> {
        self.rollouts.iter().flat_map(|(id, rollout)| {
            rollout
                .attempts
                .iter()
                .map(|(attempt, entry)| (Episode::new(id.clone(), *attempt), entry))
        })
    }

    pub(super) fn entry(&self, episode: &Episode) -> Option<&Entry> {
        self.rollouts
            .get(&episode.rollout)?
            .attempts
            .get(&episode.attempt)
    }

    pub(super) fn entry_mut(&mut self, episode: &Episode) -> Option<&mut Entry> {
        self.rollouts
            .get_mut(&episode.rollout)?
            .attempts
            .get_mut(&episode.attempt)
    }
}

/// The result, once the boundary is `return`.
fn finished(
    episode: &Episode,
    execution: ExecutionId,
    restored: bool,
    work: &Arc<Work>,
    boundary: &Boundary,
) -> Option<Finished> {
    let Boundary::Return(parts, outcome, verdict) = boundary else {
        return None;
    };
    Some(Finished {
        episode: episode.clone(),
        execution,
        restored,
        work: work.clone(),
        parts: parts.clone(),
        outcome: outcome.clone(),
        verdict: verdict.clone(),
    })
}
