//! The coordinator as one value: what it knows, and whose turn it is.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use belay_core::{
    ids::{CheckpointId, Instance},
    refusal::{Reason, Refusal},
};
use belay_mesh::{channel::Channels, members::Member};
use belay_store::fs::{FileSystem, RealFs};
use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::timeout,
};

use crate::{
    catalogue::Catalogue, error::CoordinatorError, events::PublishedReport, journal::Journal, mesh::Mesh,
    superseded::Superseded,
};

/// What a coordinator is made with.
#[derive(Clone)]
pub struct CoordinatorConfig {
    /// The deployment's name: a directory below the root.
    pub deployment: String,
    /// The checkpoint root.
    pub root: PathBuf,
    /// The state directory: the journal and its lock.
    pub state: PathBuf,
    /// The servers of the mesh.
    pub members: Vec<Member>,
    /// The model and its version, written into checkpoints.
    pub model: Option<String>,
    /// How often every member is asked for its status; while something is not as it should be, five times as often.
    pub poll: Duration,
    /// After this, a restore that was decided and not answered everywhere says that it is in doubt.
    pub restore_timeout: Duration,
    /// The connections.
    pub channels: Channels,
    /// TLS on its port; plain text where it is unset.
    pub tls: Option<tonic::transport::ServerTlsConfig>,
    /// The file system of the root.
    pub fs: Arc<dyn FileSystem>,
}

impl CoordinatorConfig {
    /// With the protocol's defaults.
    pub fn new(deployment: impl Into<String>, root: PathBuf, state: PathBuf, channels: Channels) -> Self {
        Self {
            deployment: deployment.into(),
            root,
            state,
            members: Vec::new(),
            model: None,
            poll: Duration::from_millis(500),
            restore_timeout: Duration::from_secs(600),
            channels,
            tls: None,
            fs: Arc::new(RealFs),
        }
    }
}

/// What can be told to the run that is open.
pub enum RunCommand {
    /// Publish what is held, with the controller's state.
    Publish {
        /// Empty: none.
        controller_state: Bytes,
        /// When it is published, or why not.
        reply: oneshot::Sender<Result<PublishedReport, Refusal>>,
    },
    /// End it.
    Abort {
        /// When it is done, or why not.
        reply: oneshot::Sender<Result<(), Refusal>>,
    },
    /// An instance is out for good.
    Removed(Instance),
}

/// The run that is open, for those who ask or command.
#[derive(Clone)]
pub struct CurrentRun {
    /// Which.
    pub id: CheckpointId,
    /// `checkpoint` or `restore`.
    pub kind: &'static str,
    /// The stage it is in.
    pub stage: &'static str,
    /// Decided, and somebody has not answered for too long.
    pub in_doubt: bool,
    /// Commands.
    pub commands: mpsc::UnboundedSender<RunCommand>,
}

/// The coordinator.
pub struct Coordinator {
    /// As it was made.
    pub config: CoordinatorConfig,
    /// Its epoch.
    pub epoch: u64,
    /// What was decided.
    pub journal: Journal,
    /// What is on disk.
    pub catalogue: Catalogue,
    /// Who is there.
    pub mesh: Mesh,
    /// Whether somebody newer is.
    pub superseded: Superseded,
    /// Somebody said that nothing is to be restored.
    pub open_anyway: AtomicBool,
    sequence: AtomicU64,
    turn: Arc<Semaphore>,
    current: Mutex<Option<CurrentRun>>,
}

/// The right to do something with the mesh: one at a time.
pub struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl Coordinator {
    /// All parts together.
    pub fn new(
        config: CoordinatorConfig,
        epoch: u64,
        journal: Journal,
        catalogue: Catalogue,
        mesh: Mesh,
        superseded: Superseded,
    ) -> Self {
        Self {
            config,
            epoch,
            journal,
            catalogue,
            mesh,
            superseded,
            open_anyway: AtomicBool::new(false),
            sequence: AtomicU64::new(0),
            turn: Arc::new(Semaphore::new(1)),
            current: Mutex::new(None),
        }
    }

    /// An id for a run.
    pub fn next_id(&self) -> CheckpointId {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        CheckpointId {
            epoch: self.epoch,
            sequence,
        }
    }

    /// The turn, if nobody has it.
    pub fn try_turn(&self) -> Option<Turn> {
        self.turn
            .clone()
            .try_acquire_owned()
            .ok()
            .map(|permit| Turn { _permit: permit })
    }

    /// The turn, after at most `bound`. While a run of checkpoint or restore is open it is refused at once, unless the caller is
    /// ready to wait for a run's end.
    pub async fn turn(&self, what: &str, bound: Duration, wait_for_run: bool) -> Result<Turn, Refusal> {
        let busy = |run: &CurrentRun| {
            let (reason, word) = if run.in_doubt {
                (Reason::InDoubt, "is in doubt")
            } else {
                (Reason::CheckpointConflict, "is open")
            };
            Refusal::new(
                reason,
                format!(
                    "{what} has to wait: {} {} {word}, in stage {}; one run at a time, try again when it has ended",
                    run.kind, run.id, run.stage
                ),
            )
            .with("checkpoint_id", run.id)
            .retry(Duration::from_secs(1))
        };
        if let Some(run) = self.current().filter(|_| !wait_for_run) {
            return Err(busy(&run));
        }
        match timeout(bound, self.turn.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Turn { _permit: permit }),
            Ok(Err(_)) => Err(Refusal::new(Reason::Internal, "the turn was closed")),
            Err(_) => Err(self.current().map_or_else(
                || {
                    Refusal::new(
                        Reason::CheckpointConflict,
                        format!("{what} has to wait: retires or forgets are on their way; try again"),
                    )
                    .retry(Duration::from_secs(1))
                },
                |run| busy(&run),
            )),
        }
    }

    /// The run that is open.
    pub fn current(&self) -> Option<CurrentRun> {
        self.slot().clone()
    }

    /// A run opens. Only who has the turn may say so.
    pub fn opened(
        &self,
        _turn: &Turn,
        id: CheckpointId,
        kind: &'static str,
    ) -> mpsc::UnboundedReceiver<RunCommand> {
        let (commands, receiver) = mpsc::unbounded_channel();
        *self.slot() = Some(CurrentRun {
            id,
            kind,
            stage: "begin",
            in_doubt: false,
            commands,
        });
        receiver
    }

    /// It goes on to a stage.
    pub fn in_stage(&self, stage: &'static str) {
        if let Some(run) = self.slot().as_mut() {
            run.stage = stage;
        }
    }

    /// It is decided, and somebody does not answer.
    pub fn in_doubt(&self, in_doubt: bool) {
        if let Some(run) = self.slot().as_mut() {
            run.in_doubt = in_doubt;
        }
    }

    /// It is over.
    pub fn closed(&self) {
        *self.slot() = None;
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<CurrentRun>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error to end with, when a newer coordinator was heard of.
    pub fn end(&self) -> Result<(), CoordinatorError> {
        match self.superseded.by() {
            Some(instance) => Err(CoordinatorError::Superseded {
                instance,
                epoch: self.epoch,
            }),
            None => Ok(()),
        }
    }
}
