//! Which checkpoints there are, and whether they are good.

use std::collections::HashSet;

use belay_core::ids::CheckpointId;

use super::CheckpointStore;
use crate::{
    checkpoint_file::{CheckpointFile, Decided},
    error::StoreError,
};

impl CheckpointStore {
    /// The newest checkpoint that was published. A damaged `checkpoint.json` on the way is an error that names the file and offers
    /// the previous good checkpoint: it is never passed over in silence.
    pub fn newest(&self) -> Result<Option<CheckpointFile>, StoreError> {
        for id in self.list()?.into_iter().rev() {
            match self.published(id) {
                Ok(None) => {}
                Ok(Some(file)) => return Ok(Some(file)),
                Err(error) => return Err(self.offer_previous(id, error)),
            }
        }
        Ok(None)
    }

    /// A published checkpoint. `None` when it was abandoned, not decided, or never begun.
    pub fn published(&self, id: CheckpointId) -> Result<Option<CheckpointFile>, StoreError> {
        match self.read_decision(id)? {
            Some(Decided::Checkpoint(file)) => Ok(Some(*file)),
            Some(Decided::Tombstone { .. }) => Ok(None),
            // `LATEST` is written after a decision only, so this one was lost.
            None if self.hint() == Some(id) => Err(StoreError::invalid(
                &self.decision_path(id),
                "is missing, though LATEST says that this checkpoint was published",
            )),
            None => Ok(None),
        }
    }

    /// The newest good checkpoint below `id`: every file of it is read and checked.
    pub fn previous_good(&self, id: CheckpointId) -> Result<Option<CheckpointId>, StoreError> {
        Ok(self
            .list()?
            .into_iter()
            .rev()
            .skip_while(|candidate| *candidate >= id)
            .find(|candidate| matches!(self.verify(*candidate), Ok(Some(_)))))
    }

    /// Adds the previous good checkpoint to an error about checkpoint `id`, where there is one.
    pub fn offer_previous(&self, id: CheckpointId, error: StoreError) -> StoreError {
        if !matches!(error, StoreError::Invalid { .. }) {
            return error;
        }
        // The damage is what matters: a directory that cannot be listed now offers nothing.
        error.offering(self.previous_good(id).ok().flatten())
    }

    /// Reads and checks every file of a published checkpoint, and that each part that it names is there. The first that is not right is the error.
    pub fn verify(&self, id: CheckpointId) -> Result<Option<CheckpointFile>, StoreError> {
        let Some(file) = self.published(id)? else {
            return Ok(None);
        };
        let mut held = HashSet::new();
        for shard in &file.shards {
            self.open_shard(id, shard)?.for_each(&|_| true, &mut |record| {
                held.insert((shard.instance.clone(), record.episode, record.execution));
            })?;
        }
        for saved in &file.episodes {
            for part in &saved.parts {
                if !held.contains(&(part.clone(), saved.episode.clone(), saved.execution)) {
                    return Err(StoreError::invalid(
                        &self.decision_path(id),
                        format!(
                            "names a part of {} on {part} that is not in that server's records",
                            saved.episode
                        ),
                    ));
                }
            }
        }
        if let Some(state) = &file.controller_state {
            self.read_controller_state(id, state)?;
        }
        Ok(Some(file))
    }
}
