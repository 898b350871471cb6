//! Episodes that a restore has staged and nothing has made live.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use belay_core::{
    calls::Restored,
    ids::{Attempt, Episode, RolloutId},
};

/// Which rollouts have staged episodes: the participant holds the episodes, this counts them.
#[derive(Clone, Default)]
pub(crate) struct StagedRollouts(Arc<Mutex<HashMap<RolloutId, Vec<Attempt>>>>);

/// A staged episode. Dropping it, discarded or live, takes it off the count.
pub struct StagedEpisode {
    /// What was read.
    pub(crate) restored: Restored,
    episode: Episode,
    count: StagedRollouts,
}

impl StagedRollouts {
    pub(crate) fn stage(&self, episode: Episode, restored: Restored) -> StagedEpisode {
        self.with(|map| {
            map.entry(episode.rollout.clone())
                .or_default()
                .push(episode.attempt)
        });
        StagedEpisode {
            restored,
            episode,
            count: self.clone(),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.with(|map| map.values().map(Vec::len).sum::<usize>() as u64)
    }

    /// An attempt of the rollout above this one is staged.
    pub(crate) fn above(&self, rollout: &RolloutId, attempt: Attempt) -> bool {
        self.with(|map| {
            map.get(rollout)
                .is_some_and(|staged| staged.iter().any(|a| *a > attempt))
        })
    }

    pub(crate) fn has(&self, rollout: &RolloutId) -> bool {
        self.with(|map| map.contains_key(rollout))
    }

    fn with<T>(&self, f: impl FnOnce(&mut HashMap<RolloutId, Vec<Attempt>>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for StagedEpisode {
    fn drop(&mut self) {
        let Episode { rollout, attempt } = &self.episode;
        self.count.with(|map| {
            if let Some(staged) = map.get_mut(rollout) {
                if let Some(at) = staged.iter().position(|a| a == attempt) {
                    staged.swap_remove(at);
                }
                if staged.is_empty() {
                    map.remove(rollout);
                }
            }
        });
    }
}
