//! One round of generation cuts: which calls were listed for the worker, and what its receipt says of each.

use std::collections::HashMap;

use super::CallKey;
use crate::{ids::CheckpointId, ledger::TokenSpan};

/// What became of one call at a cut, as the worker's receipt says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CutAnswer {
    /// Which call.
    pub key: CallKey,
    /// What became of it.
    pub outcome: CutOutcome,
}

/// The outcomes of a cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CutOutcome {
    /// This prefix is durable.
    Staged(TokenSpan),
    /// It had finished: its reply arrives by itself.
    Finished,
    /// Nothing could be kept.
    Failed(String),
}

/// A round. A receipt is the worker's promise of durability, so only an unambiguous answer counts.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct CutRound {
    id: CheckpointId,
    listed: HashMap<CallKey, Standing>,
    /// A receipt has come: another one is late.
    received: bool,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
enum Standing {
    Unanswered,
    Answered(CutOutcome),
    Ambiguous,
}

impl CutRound {
    pub(super) fn new(id: CheckpointId, listed: &[CallKey]) -> Self {
        let listed = listed
            .iter()
            .map(|key| (key.clone(), Standing::Unanswered))
            .collect();
        Self {
            id,
            listed,
            received: false,
        }
    }

    pub(super) fn is(&self, id: CheckpointId) -> bool {
        self.id == id
    }

    /// Takes a receipt and replies the calls that it says are finished.
    pub(super) fn take(&mut self, answers: Vec<CutAnswer>) -> Vec<CallKey> {
        if std::mem::replace(&mut self.received, true) {
            return Vec::new();
        }
        for CutAnswer { key, outcome } in answers {
            // A foreign answer belongs to no call, so nothing follows from it.
            if let Some(standing) = self.listed.get_mut(&key) {
                *standing = match standing {
                    Standing::Unanswered => Standing::Answered(outcome),
                    Standing::Answered(_) | Standing::Ambiguous => Standing::Ambiguous,
                };
            }
        }
        self.listed
            .iter()
            .filter(|(_, standing)| matches!(standing, Standing::Answered(CutOutcome::Finished)))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Calls without a receipt; after it, those whose whole reply is to come.
    pub(super) fn pending(&self) -> impl Iterator<Item = &CallKey> {
        self.listed
            .iter()
            .filter(|(_, standing)| match standing {
                Standing::Unanswered => !self.received,
                Standing::Answered(outcome) => *outcome == CutOutcome::Finished,
                Standing::Ambiguous => false,
            })
            .map(|(key, _)| key)
    }

    pub(super) fn prefix(&self, key: &CallKey) -> Option<&TokenSpan> {
        match self.listed.get(key)? {
            Standing::Answered(CutOutcome::Staged(prefix)) => Some(prefix),
            _ => None,
        }
    }
}
