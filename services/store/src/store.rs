//! The directory of a deployment's checkpoints.

mod catalogue;
mod controller_state;
mod decision;
mod shard;
mod sweep;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use belay_core::{
    ids::{CheckpointId, RolloutId},
    refusal::{Reason, Refusal},
};

pub use controller_state::MAX_CONTROLLER_STATE;
pub use decision::Published;

use crate::{
    crash_safe::create_dir_synced,
    error::StoreError,
    fs::{FileSystem, RealFs},
};

const CHECKPOINTS: &str = "checkpoints";
const LATEST: &str = "LATEST";

/// The checkpoints of one deployment below one root. Cheap to clone. Calls block.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    fs: Arc<dyn FileSystem>,
    deployment: Arc<str>,
    /// `<root>/<deployment>`.
    home: Arc<Path>,
}

impl CheckpointStore {
    /// Opens the store of a deployment on the machine's file system, and makes its directories if they are not there.
    pub fn open(root: &Path, deployment: &str) -> Result<Self, StoreError> {
        Self::with_fs(Arc::new(RealFs), root, deployment)
    }

    /// The same on another file system.
    pub fn with_fs(fs: Arc<dyn FileSystem>, root: &Path, deployment: &str) -> Result<Self, StoreError> {
        // The rule of rollout ids: a name that is one directory, and never leads out of the root.
        RolloutId::new(deployment).map_err(|_| {
            StoreError::Name(
                Refusal::new(
                    Reason::InvalidId,
                    format!("{deployment:?} is not a deployment's name: 1 to 128 letters, digits, '.', '_' or '-', a letter or digit first"),
                )
                .with("field", "deployment"),
            )
        })?;
        let root = std::path::absolute(root).map_err(StoreError::io("find the root", root))?;
        let home = root.join(deployment);
        let base = base_of(fs.as_ref(), &root);
        create_dir_synced(fs.as_ref(), &base, &home.join(CHECKPOINTS))?;
        Ok(Self {
            fs,
            deployment: deployment.into(),
            home: home.into(),
        })
    }

    /// The deployment.
    pub fn deployment(&self) -> &str {
        &self.deployment
    }

    /// Where the files of a checkpoint lie.
    pub fn checkpoint_dir(&self, id: CheckpointId) -> PathBuf {
        self.checkpoints_dir().join(id.to_string())
    }

    /// Every name under `checkpoints/` that is a checkpoint's, ascending, decided or not.
    pub fn list(&self) -> Result<Vec<CheckpointId>, StoreError> {
        let dir = self.checkpoints_dir();
        let mut ids: Vec<CheckpointId> = self
            .fs
            .read_dir(&dir)
            .map_err(StoreError::io("list", &dir))?
            .into_iter()
            .filter_map(|entry| entry.name.to_str()?.parse().ok())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    fn checkpoints_dir(&self) -> PathBuf {
        self.home.join(CHECKPOINTS)
    }

    fn fs(&self) -> &dyn FileSystem {
        self.fs.as_ref()
    }
}

/// The directory below which every name is made and synced: the nearest one above the root that is there.
fn base_of(fs: &dyn FileSystem, root: &Path) -> PathBuf {
    let above = root
        .ancestors()
        .skip(1)
        .find(|dir| fs.is_dir(dir))
        .unwrap_or(root);
    // A root that is there can lie in a directory that this user may not open: then its name is not ours to sync.
    if fs.is_dir(root) && fs.sync_dir(above).is_err() {
        return root.into();
    }
    above.into()
}
