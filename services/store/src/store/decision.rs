//! Publishing, burying, and what was decided: one name, taken once.

use std::path::PathBuf;

use belay_core::ids::CheckpointId;

use super::{CheckpointStore, LATEST};
use crate::{
    checkpoint_file::{self, CheckpointFile, Decided, Tombstone},
    crash_safe::{self, Linked},
    error::StoreError,
    format::Format,
};

/// Whose the name `checkpoint.json` is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Published {
    /// It is what was given: linked now, or by an earlier try whose reply was lost.
    Won,
    /// It was taken before. This stands, and is what counts.
    Lost(Decided),
}

impl CheckpointStore {
    /// Decides that the checkpoint is published, unless it is decided already. Every manifest that it names must be there, whole.
    ///
    /// An error leaves it open whether the name was taken: [`bury`](Self::bury) or another `publish` tells.
    pub fn publish(&self, file: &CheckpointFile) -> Result<Published, StoreError> {
        if file.deployment != self.deployment() || file.format != Format::CURRENT {
            return Err(StoreError::Request(format!(
                "checkpoint {} is of deployment {} and format {}.{}: this store publishes for {} in format {}.{}",
                file.id,
                file.deployment,
                file.format.major,
                file.format.minor,
                self.deployment(),
                Format::CURRENT.major,
                Format::CURRENT.minor
            )));
        }
        // What stands counts, also when the sweep has taken the manifests.
        if let Some(standing) = self.decided(file.id)? {
            return Ok(match standing {
                Decided::Checkpoint(standing) if *standing == *file => Published::Won,
                standing => Published::Lost(standing),
            });
        }
        for shard in &file.shards {
            self.manifest_of(file.id, shard)?;
        }
        let outcome = self.decide(file.id, &file.to_bytes())?;
        if outcome == Published::Won {
            self.hint_at(file.id);
        }
        Ok(outcome)
    }

    /// Decides that the checkpoint does not come to be, unless it is decided already.
    pub fn bury(&self, id: CheckpointId, epoch: u64, why: &str) -> Result<Published, StoreError> {
        let tombstone = Tombstone {
            format: Format::CURRENT,
            id,
            deployment: self.deployment().into(),
            epoch,
            why: why.into(),
        };
        self.decide(id, &tombstone.to_bytes())
    }

    /// What was decided, and durable: it is synced again before it is told, since whoever linked it may have died before the sync.
    pub fn decided(&self, id: CheckpointId) -> Result<Option<Decided>, StoreError> {
        crash_safe::sync_if_there(self.fs(), &self.decision_path(id))?;
        self.read_decision(id)
    }

    /// What was decided, as it stands.
    pub(super) fn read_decision(&self, id: CheckpointId) -> Result<Option<Decided>, StoreError> {
        let path = self.decision_path(id);
        crash_safe::read_if_there(self.fs(), &path, checkpoint_file::MAX_BYTES)?
            .map(|bytes| Decided::read(&path, &bytes, self.deployment(), id))
            .transpose()
    }

    pub(super) fn decision_path(&self, id: CheckpointId) -> PathBuf {
        self.checkpoint_dir(id).join(checkpoint_file::FILE_NAME)
    }

    fn decide(&self, id: CheckpointId, bytes: &[u8]) -> Result<Published, StoreError> {
        self.make_dir(&self.checkpoint_dir(id))?;
        let path = self.decision_path(id);
        match crash_safe::publish_bytes(self.fs(), &path, bytes)? {
            Linked::New => Ok(Published::Won),
            Linked::Taken => {
                crash_safe::sync_standing(self.fs(), &path)?;
                let standing = crash_safe::read_file(self.fs(), &path, checkpoint_file::MAX_BYTES)?;
                if standing == bytes {
                    return Ok(Published::Won);
                }
                let decided = Decided::read(&path, &standing, self.deployment(), id)?;
                Ok(Published::Lost(decided))
            }
        }
    }

    /// `LATEST` is a hint, so its failure is no failure.
    fn hint_at(&self, id: CheckpointId) {
        let hint = format!("{id}\n");
        if let Err(error) = crash_safe::replace_bytes(self.fs(), &self.latest_path(), hint.as_bytes()) {
            tracing::warn!(%error, "LATEST does not name the newest checkpoint");
        }
    }

    /// The id that `LATEST` names, where it can be read.
    pub(super) fn hint(&self) -> Option<CheckpointId> {
        let bytes = crash_safe::read_file(self.fs(), &self.latest_path(), 256).ok()?;
        std::str::from_utf8(&bytes).ok()?.trim_end().parse().ok()
    }

    fn latest_path(&self) -> PathBuf {
        self.home.join(LATEST)
    }
}
