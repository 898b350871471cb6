//! What an engine is told after episodes have ended: stop their calls, free their rows. In the background, within bounds, and
//! counted, so that a rollout is forgotten only when all of it is done.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use belay_core::{
    calls::CallKey,
    ids::{Attempt, RolloutId},
};
use futures_util::{StreamExt, stream};
use tokio::sync::watch;

use crate::engine::Engine;

/// Calls that are cancelled at a time.
const CANCELS: usize = 64;

/// The jobs at work, by rollout.
#[derive(Clone)]
pub(crate) struct Freeing {
    at_work: Arc<Mutex<HashMap<RolloutId, u32>>>,
    /// Grows with every job that has ended.
    ended: watch::Sender<u64>,
}

impl Default for Freeing {
    fn default() -> Self {
        Self {
            at_work: Arc::default(),
            ended: watch::channel(0).0,
        }
    }
}

/// One job.
#[derive(Default)]
pub(crate) struct Job {
    /// Calls to stop.
    pub(crate) stop: Vec<CallKey>,
    /// Rows to free.
    pub(crate) free: Vec<(RolloutId, Attempt)>,
}

impl Freeing {
    /// Starts a job; it ends by itself, since the engine's calls are bounded.
    pub(crate) fn start<E: Engine>(&self, engine: &Arc<E>, job: Job) {
        let stopped = job.stop.iter().map(|key| &key.episode.rollout);
        let rollouts: HashSet<RolloutId> = stopped.chain(job.free.iter().map(|(r, _)| r)).cloned().collect();
        if rollouts.is_empty() {
            return;
        }
        self.with(|at_work| {
            for rollout in &rollouts {
                *at_work.entry(rollout.clone()).or_default() += 1;
            }
        });
        let working = Working {
            freeing: self.clone(),
            rollouts,
        };
        let engine = engine.clone();
        tokio::spawn(async move {
            run(&*engine, job).await;
            drop(working);
        });
    }

    /// A job of the rollout is at work.
    pub(crate) fn has(&self, rollout: &RolloutId) -> bool {
        self.with(|at_work| at_work.contains_key(rollout))
    }

    /// Waits until no job of these rollouts is at work.
    pub(crate) async fn done(&self, rollouts: &[RolloutId]) {
        let mut ended = self.ended.subscribe();
        // The sender lives as long as `self`, so this waits for nothing but the jobs.
        let _ = ended
            .wait_for(|_| rollouts.iter().all(|rollout| !self.has(rollout)))
            .await;
    }

    fn with<T>(&self, f: impl FnOnce(&mut HashMap<RolloutId, u32>) -> T) -> T {
        f(&mut self.at_work.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn run<E: Engine>(engine: &E, Job { stop, free }: Job) {
    stream::iter(stop)
        .for_each_concurrent(CANCELS, |key| async move {
            if let Err(error) = engine.cancel(&key).await {
                tracing::warn!(?key, "a generation may go on at the engine: {error}");
            }
        })
        .await;
    if !free.is_empty()
        && let Err(error) = engine.free(&free).await
    {
        tracing::warn!(rollouts = free.len(), "rows stay at the engine: {error}");
    }
}

/// Takes a job off the count, also when its task is dropped.
struct Working {
    freeing: Freeing,
    rollouts: HashSet<RolloutId>,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.freeing.with(|at_work| {
            for rollout in &self.rollouts {
                if let Some(count) = at_work.get_mut(rollout) {
                    *count -= 1;
                    if *count == 0 {
                        at_work.remove(rollout);
                    }
                }
            }
        });
        self.freeing.ended.send_modify(|ended| *ended += 1);
    }
}
