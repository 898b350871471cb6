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
mod tests;
