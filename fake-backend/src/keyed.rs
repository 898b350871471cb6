//! The staging worker's keyed calls: which key is which call, and which lives of an episode are served.

use std::collections::{BTreeMap, HashMap};

use belay_core::ids::{Attempt, Digest, ExecutionId, Operation, RolloutId};

use crate::{bounded::BoundedSet, call::CallKey, error::BackendError, holds::CallId};

/// Keys and lives that are over are remembered, so that a late call starts nothing. More than a mesh has in flight at once.
const REMEMBERED: usize = 1 << 18;

/// What a Generate comes to.
#[derive(PartialEq, Eq, Debug)]
pub enum Admitted {
    /// The key was used for the same request: its call.
    Known(CallId),
    /// Nothing is known of the key. Calls of lower attempts are to be stopped.
    New {
        /// Those.
        superseded: Vec<CallId>,
    },
}

/// All keys.
#[derive(Debug)]
pub struct Keyed {
    rollouts: HashMap<RolloutId, BTreeMap<Attempt, Life>>,
    cancelled: BoundedSet<CallKey>,
    freed: BoundedSet<ExecutionId>,
}

#[derive(Debug)]
struct Life {
    execution: ExecutionId,
    calls: BTreeMap<Operation, (CallId, Digest)>,
}

impl Default for Keyed {
    fn default() -> Self {
        Self {
            rollouts: HashMap::new(),
            cancelled: BoundedSet::new(REMEMBERED),
            freed: BoundedSet::new(REMEMBERED),
        }
    }
}

impl Keyed {
    /// Whether a call may start, and what is known of it. Changes nothing.
    pub fn admit(&self, key: &CallKey, digest: &Digest) -> Result<Admitted, BackendError> {
        let stale_execution = |why: String| BackendError::StaleExecution {
            episode: key.episode.clone(),
            execution: key.execution,
            why: why.into(),
        };
        if self.freed.contains(&key.execution) {
            return Err(stale_execution("its rows were freed".into()));
        }
        if self.cancelled.contains(key) {
            return Err(BackendError::Stopped {
                episode: key.episode.clone(),
                operation: key.operation,
                why: "it was cancelled".into(),
            });
        }
        let Some(attempts) = self.rollouts.get(&key.episode.rollout) else {
            return Ok(Admitted::New {
                superseded: Vec::new(),
            });
        };
        if let Some((spoken, _)) = attempts.last_key_value()
            && *spoken > key.episode.attempt
        {
            return Err(BackendError::StaleAttempt {
                episode: key.episode.clone(),
                spoken: *spoken,
            });
        }
        let Some(life) = attempts.get(&key.episode.attempt) else {
            let lower = attempts.values().flat_map(|life| life.calls.values());
            return Ok(Admitted::New {
                superseded: lower.map(|(id, _)| *id).collect(),
            });
        };
        if life.execution != key.execution {
            return Err(stale_execution(format!("execution {} was first", life.execution)));
        }
        match life.calls.get(&key.operation) {
            None => Ok(Admitted::New {
                superseded: Vec::new(),
            }),
            Some((id, known)) if known == digest => Ok(Admitted::Known(*id)),
            Some(_) => Err(BackendError::OperationMismatch {
                episode: key.episode.clone(),
                operation: key.operation,
            }),
        }
    }

    /// An admitted call starts: from now on its attempt has spoken, and this life of it.
    pub fn insert(&mut self, key: &CallKey, digest: Digest, id: CallId) {
        let attempts = self.rollouts.entry(key.episode.rollout.clone()).or_default();
        let life = attempts.entry(key.episode.attempt).or_insert_with(|| Life {
            execution: key.execution,
            calls: BTreeMap::new(),
        });
        life.calls.insert(key.operation, (id, digest));
    }

    /// The call of a key.
    pub fn find(&self, key: &CallKey) -> Option<CallId> {
        let life = self
            .rollouts
            .get(&key.episode.rollout)?
            .get(&key.episode.attempt)?;
        let call = life
            .calls
            .get(&key.operation)
            .filter(|_| life.execution == key.execution)?;
        Some(call.0)
    }

    /// Keeps a later call of the key from starting.
    pub fn fence(&mut self, key: CallKey) {
        self.cancelled.insert(key);
    }

    /// Forgets a rollout through an attempt: its calls, which are to be freed. Those lives never come back; the rollout
    /// may, from any attempt, once nothing of it is left.
    pub fn free(&mut self, rollout: &RolloutId, through: Attempt) -> Vec<CallId> {
        let Some(attempts) = self.rollouts.get_mut(rollout) else {
            return Vec::new();
        };
        let mut freed = Vec::new();
        attempts.retain(|attempt, life| {
            let keep = *attempt > through;
            if !keep {
                self.freed.insert(life.execution);
                freed.extend(life.calls.values().map(|(id, _)| *id));
            }
            keep
        });
        if attempts.is_empty() {
            self.rollouts.remove(rollout);
        }
        freed
    }

    /// How many rollouts are known.
    pub fn rollouts(&self) -> usize {
        self.rollouts.len()
    }
}

#[cfg(test)]
mod tests {
    use belay_core::ids::Episode;
    use uuid::Uuid;

    use super::*;

    fn key(attempt: u32, life: u128, turn: u32) -> CallKey {
        CallKey {
            episode: Episode::new(RolloutId::new("r").expect("legal"), attempt),
            execution: ExecutionId(Uuid::from_u128(life)),
            operation: Operation::model_call(turn),
        }
    }

    fn new() -> Admitted {
        Admitted::New {
            superseded: Vec::new(),
        }
    }

    #[test]
    fn a_key_is_known_again_by_its_request() {
        let mut keyed = Keyed::default();
        assert_eq!(keyed.admit(&key(0, 1, 0), &[7; 32]), Ok(new()));
        keyed.insert(&key(0, 1, 0), [7; 32], 5);
        assert_eq!(keyed.admit(&key(0, 1, 0), &[7; 32]), Ok(Admitted::Known(5)));
        assert!(matches!(
            keyed.admit(&key(0, 1, 0), &[8; 32]),
            Err(BackendError::OperationMismatch { .. })
        ));
        assert_eq!(keyed.admit(&key(0, 1, 1), &[7; 32]), Ok(new()));
    }

    #[test]
    fn a_higher_attempt_that_speaks_ends_the_lower() {
        let mut keyed = Keyed::default();
        keyed.insert(&key(0, 1, 0), [0; 32], 1);
        keyed.insert(&key(0, 1, 1), [0; 32], 2);
        assert_eq!(
            keyed.admit(&key(1, 2, 1), &[0; 32]),
            Ok(Admitted::New {
                superseded: vec![1, 2]
            })
        );
        keyed.insert(&key(1, 2, 1), [0; 32], 3);
        for late in [key(0, 1, 0), key(0, 9, 2)] {
            assert!(matches!(
                keyed.admit(&late, &[0; 32]),
                Err(BackendError::StaleAttempt { spoken: 1, .. })
            ));
        }
    }

    #[test]
    fn within_an_attempt_the_first_life_wins() {
        let mut keyed = Keyed::default();
        keyed.insert(&key(0, 1, 0), [0; 32], 1);
        assert!(matches!(
            keyed.admit(&key(0, 2, 0), &[0; 32]),
            Err(BackendError::StaleExecution { .. })
        ));
        assert_eq!(keyed.find(&key(0, 2, 0)), None);
    }

    #[test]
    fn a_cancelled_key_starts_nothing_and_speaks_for_nobody() {
        let mut keyed = Keyed::default();
        keyed.fence(key(3, 1, 0));
        assert!(matches!(
            keyed.admit(&key(3, 1, 0), &[0; 32]),
            Err(BackendError::Stopped { .. })
        ));
        assert_eq!(keyed.admit(&key(0, 2, 0), &[0; 32]), Ok(new()));
    }

    #[test]
    fn a_freed_life_never_comes_back_but_the_rollout_may() {
        let mut keyed = Keyed::default();
        keyed.insert(&key(0, 1, 0), [0; 32], 1);
        keyed.insert(&key(1, 2, 0), [0; 32], 2);
        let rollout = RolloutId::new("r").expect("legal");
        assert_eq!(keyed.free(&rollout, 0), [1]);
        assert!(matches!(
            keyed.admit(&key(0, 3, 0), &[0; 32]),
            Err(BackendError::StaleAttempt { .. })
        ));
        assert_eq!(keyed.free(&rollout, 7), [2]);
        assert_eq!(keyed.rollouts(), 0);
        assert!(matches!(
            keyed.admit(&key(1, 2, 1), &[0; 32]),
            Err(BackendError::StaleExecution { .. })
        ));
        assert_eq!(keyed.admit(&key(0, 3, 0), &[0; 32]), Ok(new()));
    }
}
