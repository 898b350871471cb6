//! The participant: serves `CheckpointParticipant` for a state owner.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use belay_mesh::members::Members;
use belay_proto::checkpoint::checkpoint_participant_server::CheckpointParticipantServer;
use belay_store::fs::{FileSystem, RealFs};

use crate::{common::DEFAULT_RECORD_LIMIT, control::Inner, gate::Gate, owner::StateOwner};

/// Control messages may be this large: a scope, a plan or a partition grows with the number of rollouts.
pub const MAX_MESSAGE: usize = 256 << 20;

/// What a participant is made with, beside its gate and its owner.
#[derive(Clone)]
pub struct ParticipantOptions {
    /// The checkpoint root.
    pub root: PathBuf,
    /// The deployment below the root.
    pub deployment: String,
    /// A record over this many bytes makes its episode a restart.
    pub record_limit: u64,
    /// No coordinator: the server serves from the start.
    pub standalone: bool,
    /// Told `true` when the server begins to serve data: when it is first open.
    pub on_serving: Arc<dyn Fn(bool) + Send + Sync>,
    /// Where the root lies.
    pub file_system: Arc<dyn FileSystem>,
}

impl ParticipantOptions {
    /// With the protocol's defaults, on the machine's file system.
    pub fn new(root: impl AsRef<Path>, deployment: impl Into<String>) -> Self {
        Self {
            root: root.as_ref().to_owned(),
            deployment: deployment.into(),
            record_limit: DEFAULT_RECORD_LIMIT,
            standalone: false,
            on_serving: Arc::new(|_| {}),
            file_system: Arc::new(RealFs),
        }
    }
}

impl fmt::Debug for ParticipantOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParticipantOptions")
            .field("root", &self.root)
            .field("deployment", &self.deployment)
            .field("record_limit", &self.record_limit)
            .field("standalone", &self.standalone)
            .finish_non_exhaustive()
    }
}

/// A server's checkpoint control plane. Cheap to clone; all clones are one participant.
pub struct Participant<O: StateOwner> {
    pub(crate) inner: Arc<Inner<O>>,
}

impl<O: StateOwner> Participant<O> {
    /// Ties gate, owner and member list together; starts the lease watch. Must be called in a tokio runtime.
    pub fn new(options: ParticipantOptions, gate: Gate, owner: Arc<O>, members: Members) -> Self {
        Self {
            inner: Inner::start(options, gate, owner, members),
        }
    }

    /// As a tonic service, with its message limits set.
    pub fn into_service(self) -> CheckpointParticipantServer<Self> {
        CheckpointParticipantServer::new(self)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE)
    }

    /// Waits until no task runs in the background: no write, no staging, no retire. For a process that is about to end; the caller
    /// bounds it.
    pub async fn drained(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

impl<O: StateOwner> Clone for Participant<O> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}
