//! The checkpoints on disk, for asynchronous callers: each call runs on a blocking thread. A root that cannot be opened does not
//! keep a coordinator from starting; it is tried again whenever it is needed.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use belay_core::{
    ids::CheckpointId,
    refusal::{Reason, Refusal},
};
use belay_store::{
    CheckpointFile, CheckpointStore, ControllerStateRef, Decided, Published, StoreError,
    crash_safe::TempFile, fs::FileSystem,
};
use bytes::Bytes;

/// The store of one deployment. Cheap to clone.
#[derive(Clone)]
pub struct Catalogue(Arc<Inner>);

struct Inner {
    fs: Arc<dyn FileSystem>,
    root: PathBuf,
    deployment: String,
    store: Mutex<Option<CheckpointStore>>,
}

impl Catalogue {
    /// The checkpoints of a deployment below a root.
    pub fn new(fs: Arc<dyn FileSystem>, root: &Path, deployment: &str) -> Self {
        Self(Arc::new(Inner {
            fs,
            root: root.into(),
            deployment: deployment.into(),
            store: Mutex::new(None),
        }))
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    /// `<root>/<deployment>/checkpoints`, where the message says where checkpoints lie.
    pub fn directory(&self) -> PathBuf {
        self.0.root.join(&self.0.deployment).join("checkpoints")
    }

    async fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&CheckpointStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let inner = self.0.clone();
        tokio::task::spawn_blocking(move || {
            let store = inner.store()?;
            call(&store)
        })
        .await
        .map_err(|e| {
            Refusal::new(
                Reason::Internal,
                format!("a call of the checkpoint store died: {e}"),
            )
        })?
        .map_err(Refusal::from)
    }

    /// Writes a file there and takes it away: a run that cannot end in a checkpoint is refused before it closes anything.
    pub async fn probe(&self) -> Result<(), Refusal> {
        let (fs, directory) = (self.0.fs.clone(), self.directory());
        self.with(move |_| TempFile::create(fs.as_ref(), &directory, "probe")?.write_all(b"belay"))
            .await
    }

    /// Every name that is a checkpoint's, ascending, decided or not.
    pub async fn list(&self) -> Result<Vec<CheckpointId>, Refusal> {
        self.with(|store| store.list()).await
    }

    /// The ids whose name holds a checkpoint, ascending. A damaged one counts: it was published.
    pub async fn published(&self) -> Result<Vec<CheckpointId>, Refusal> {
        self.with(|store| {
            Ok(store
                .list()?
                .into_iter()
                .filter(|id| !matches!(store.published(*id), Ok(None)))
                .collect())
        })
        .await
    }

    /// The newest checkpoint; a damaged one is an error that offers the previous good one.
    pub async fn newest(&self) -> Result<Option<CheckpointFile>, Refusal> {
        self.with(|store| store.newest()).await
    }

    /// Reads and checks every file of a checkpoint. `None` when none stands at that name.
    pub async fn verify(&self, id: CheckpointId) -> Result<Option<CheckpointFile>, Refusal> {
        self.with(move |store| store.verify(id).map_err(|e| store.offer_previous(id, e)))
            .await
    }

    /// What stands at the name.
    pub async fn decided(&self, id: CheckpointId) -> Result<Option<Decided>, Refusal> {
        self.with(move |store| store.decided(id)).await
    }

    /// Links `checkpoint.json`.
    pub async fn publish(&self, file: CheckpointFile) -> Result<Published, Refusal> {
        self.with(move |store| store.publish(&file)).await
    }

    /// Links a tombstone.
    pub async fn bury(&self, id: CheckpointId, epoch: u64, why: &str) -> Result<Published, Refusal> {
        let why = why.to_owned();
        self.with(move |store| store.bury(id, epoch, &why)).await
    }

    /// Deletes what an abandoned checkpoint left.
    pub async fn sweep(&self, id: CheckpointId) -> Result<(), Refusal> {
        self.with(move |store| store.sweep(id)).await
    }

    /// Makes a controller's state durable.
    pub async fn write_controller_state(
        &self,
        id: CheckpointId,
        bytes: Bytes,
    ) -> Result<ControllerStateRef, Refusal> {
        self.with(move |store| store.write_controller_state(id, &bytes))
            .await
    }

    /// A published checkpoint and its controller's state. `None` when no checkpoint stands at that name.
    pub async fn controller_state(
        &self,
        id: CheckpointId,
    ) -> Result<Option<(CheckpointFile, Option<Bytes>)>, Refusal> {
        self.with(move |store| {
            let Some(file) = store.published(id)? else {
                return Ok(None);
            };
            let state = file
                .controller_state
                .as_ref()
                .map(|s| store.read_controller_state(id, s))
                .transpose()?;
            Ok(Some((file, state)))
        })
        .await
    }

    /// The directory of a checkpoint.
    pub fn checkpoint_dir(&self, id: CheckpointId) -> PathBuf {
        self.directory().join(id.to_string())
    }
}

impl Inner {
    fn store(&self) -> Result<CheckpointStore, StoreError> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = store.as_ref() {
            return Ok(store.clone());
        }
        let opened = CheckpointStore::with_fs(self.fs.clone(), &self.root, &self.deployment)?;
        Ok(store.insert(opened).clone())
    }
}
