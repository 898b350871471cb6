//! Counted work and the door: what a checkpoint waits for, and what waits for a checkpoint.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    time::Duration,
};

use crate::{
    ids::{Episode, Instance, RolloutId},
    refusal::Blocker,
};

/// Names one piece of admitted work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PermitId(u64);

#[derive(Clone, Debug)]
struct Held {
    episode: Episode,
    step: Cow<'static, str>,
    /// When the step began.
    since: Duration,
    /// A checkpoint waits for it. Set anew when admission closes.
    counted: bool,
}

/// The permits that are out, and how many calls wait at the door.
#[derive(Clone, Debug, Default)]
pub(super) struct Admission {
    permits: HashMap<PermitId, Held>,
    next: u64,
    /// Of the permits, how many are counted.
    counted: usize,
    at_door: usize,
}

impl Admission {
    pub(super) fn admit(&mut self, now: Duration, episode: &Episode, step: Cow<'static, str>) -> PermitId {
        let id = PermitId(self.next);
        self.next += 1;
        self.counted += 1;
        let held = Held {
            episode: episode.clone(),
            step,
            since: now,
            counted: true,
        };
        self.permits.insert(id, held);
        id
    }

    pub(super) fn step(&mut self, now: Duration, id: PermitId, step: Cow<'static, str>) {
        if let Some(held) = self.permits.get_mut(&id) {
            held.step = step;
            held.since = now;
        }
    }

    pub(super) fn release(&mut self, id: PermitId) {
        if self.permits.remove(&id).is_some_and(|held| held.counted) {
            self.counted -= 1;
        }
    }

    /// Counts every permit but those of the episodes that are excepted.
    pub(super) fn recount(&mut self, excepted: impl Fn(&Episode) -> bool) {
        for held in self.permits.values_mut() {
            held.counted = !excepted(&held.episode);
        }
        self.counted = self.permits.values().filter(|held| held.counted).count();
    }

    pub(super) fn counted(&self) -> usize {
        self.counted
    }

    /// The counted episodes with their steps, each episode once.
    pub(super) fn counted_steps(&self) -> HashMap<Episode, Cow<'static, str>> {
        self.permits
            .values()
            .filter(|held| held.counted)
            .map(|held| (held.episode.clone(), held.step.clone()))
            .collect()
    }

    /// The oldest of the permits that `which` chooses, at most so many, and how many it chooses.
    pub(super) fn blockers(
        &self,
        now: Duration,
        instance: &Instance,
        most: usize,
        which: impl Fn(&Episode, bool) -> bool,
    ) -> (Vec<Blocker>, usize) {
        let mut chosen: Vec<(&PermitId, &Held)> = self
            .permits
            .iter()
            .filter(|(_, held)| which(&held.episode, held.counted))
            .collect();
        let count = chosen.len();
        let age = |(id, held): &(&PermitId, &Held)| (held.since, **id);
        if count > most {
            // Only the oldest are sorted: a server can hold very many.
            chosen.select_nth_unstable_by_key(most, age);
            chosen.truncate(most);
        }
        chosen.sort_unstable_by_key(age);
        let blockers = chosen
            .into_iter()
            .map(|(_, held)| Blocker {
                episode: held.episode.clone(),
                instance: instance.clone(),
                step: held.step.clone(),
                age: now.saturating_sub(held.since),
                reason: Cow::Borrowed("the step is in progress and cannot be run twice"),
            })
            .collect();
        (blockers, count)
    }

    /// The rollouts that have work in progress.
    pub(super) fn rollouts(&self) -> HashSet<&RolloutId> {
        self.permits.values().map(|held| &held.episode.rollout).collect()
    }

    pub(super) fn at_door(&self) -> usize {
        self.at_door
    }

    /// False when the door is full.
    pub(super) fn come_to_door(&mut self, most: usize) -> bool {
        let room = self.at_door < most;
        self.at_door += usize::from(room);
        room
    }

    pub(super) fn leave_door(&mut self) {
        self.at_door = self.at_door.saturating_sub(1);
    }

    /// Whether the count is that of the permits.
    pub(super) fn is_consistent(&self) -> bool {
        self.counted == self.permits.values().filter(|held| held.counted).count()
    }
}
