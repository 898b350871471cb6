//! What an abandoned checkpoint leaves is deleted; its tombstone stays.

use std::{io, path::Path};

use belay_core::ids::CheckpointId;

use super::{CheckpointStore, controller_state};
use crate::{
    checkpoint_file::{self, Decided},
    crash_safe::is_temp_name,
    error::StoreError,
    manifest,
};

/// `<id>/<kind>/<name>/<replica>`: no file of a checkpoint lies deeper.
const DEPTH: usize = 3;

impl CheckpointStore {
    /// Deletes the manifests, records, states and temporary files of a checkpoint that has a tombstone. The tombstone stays, and so
    /// does what is not a checkpoint's. Safe to repeat.
    pub fn sweep(&self, id: CheckpointId) -> Result<(), StoreError> {
        match self.decided(id)? {
            Some(Decided::Tombstone { .. }) => self.sweep_dir(&self.checkpoint_dir(id), DEPTH),
            Some(Decided::Checkpoint(_)) => Err(StoreError::Taken {
                path: self.decision_path(id),
                what: "the checkpoint is published, and its files stay".into(),
            }),
            None => Err(StoreError::Request(format!(
                "checkpoint {id} is not decided: link its tombstone before its files are deleted"
            ))),
        }
    }

    fn sweep_dir(&self, dir: &Path, depth: usize) -> Result<(), StoreError> {
        let mut entries = match self.fs().read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(StoreError::io("list", dir)(error)),
        };
        // Manifests first: one that stands names records that stand.
        entries.sort_by_key(|entry| entry.name != manifest::FILE_NAME);
        for entry in entries {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                if depth > 0 {
                    self.sweep_dir(&path, depth - 1)?;
                    self.remove_if_empty(&path)?;
                }
            } else if entry.name.to_str().is_some_and(is_ours) {
                gone(self.fs().remove_file(&path)).map_err(StoreError::io("delete", &path))?;
            }
        }
        self.fs()
            .sync_dir(dir)
            .map_err(StoreError::io("sync the directory", dir))
    }

    fn remove_if_empty(&self, dir: &Path) -> Result<(), StoreError> {
        match gone(self.fs().remove_dir(dir)) {
            // Something that is not a checkpoint's lies there.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            other => other.map_err(StoreError::io("delete", dir)),
        }
    }
}

/// A file of a checkpoint other than its decision.
fn is_ours(name: &str) -> bool {
    name != checkpoint_file::FILE_NAME
        && (name == manifest::FILE_NAME
            || is_temp_name(name)
            || name.starts_with(controller_state::PREFIX)
            || (name.starts_with("records-") && name.ends_with(".belay")))
}

/// What is gone is deleted.
fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
