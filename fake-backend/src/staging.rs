//! Cuts and their receipts: what is kept under a checkpoint until its release.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use belay_core::ids::CheckpointId;

use crate::{bounded::BoundedSet, call::CallKey, error::BackendError, rows::Stored};

/// Released ids that a late cut is refused for.
const REMEMBERED: usize = 1 << 16;

/// What became of one call at a cut.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// In flight: this prefix is kept.
    Staged(Stored),
    /// Its whole reply is kept.
    Finished,
    /// Nothing is kept.
    Failed(String),
}

/// The answers of one cut, each listed call once.
pub type Receipt = Arc<Vec<(CallKey, Outcome)>>;

#[derive(Debug)]
struct Cut {
    listed: BTreeSet<CallKey>,
    receipt: Receipt,
}

/// All cuts that were not released.
#[derive(Debug)]
pub struct Staging {
    cuts: HashMap<CheckpointId, HashMap<String, Cut>>,
    released: BoundedSet<CheckpointId>,
}

impl Default for Staging {
    fn default() -> Self {
        Self {
            cuts: HashMap::new(),
            released: BoundedSet::new(REMEMBERED),
        }
    }
}

impl Staging {
    /// The receipt of the same cut, if there was one. Refused after the release, and for another list.
    pub fn receipt(
        &self,
        checkpoint: CheckpointId,
        client: &str,
        listed: &BTreeSet<CallKey>,
    ) -> Result<Option<Receipt>, BackendError> {
        if self.released.contains(&checkpoint) {
            return Err(BackendError::Released(checkpoint));
        }
        match self.cuts.get(&checkpoint).and_then(|clients| clients.get(client)) {
            None => Ok(None),
            Some(cut) if cut.listed == *listed => Ok(Some(cut.receipt.clone())),
            Some(_) => Err(BackendError::OtherCut(checkpoint)),
        }
    }

    /// Keeps a receipt; the list is that of its answers.
    pub fn keep(&mut self, checkpoint: CheckpointId, client: &str, receipt: Receipt) {
        let cut = Cut {
            listed: receipt.iter().map(|(key, _)| key.clone()).collect(),
            receipt,
        };
        self.cuts
            .entry(checkpoint)
            .or_default()
            .insert(client.to_owned(), cut);
    }

    /// Ends a checkpoint's cuts for good: the prefixes, which are to be freed.
    pub fn release(&mut self, checkpoint: CheckpointId) -> Vec<Stored> {
        self.released.insert(checkpoint);
        let cuts = self.cuts.remove(&checkpoint).into_iter().flatten();
        cuts.flat_map(|(_, cut)| cut.receipt.to_vec())
            .filter_map(|(_, outcome)| match outcome {
                Outcome::Staged(stored) => Some(stored),
                Outcome::Finished | Outcome::Failed(_) => None,
            })
            .collect()
    }

    /// How many checkpoints have cuts.
    pub fn checkpoints(&self) -> usize {
        self.cuts.len()
    }
}
