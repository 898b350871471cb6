//! Why a call is refused (protocol 3.3): one list of reasons for the whole mesh.

use std::{borrow::Cow, fmt, time::Duration};

use crate::ids::{Episode, Instance};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// The reasons of protocol 3.3. On the wire: `google.rpc.ErrorInfo` with domain `belay` and this name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Reason { $($(#[$doc])* $variant,)* }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The reason of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

reasons! {
    /// The id has ended, or was never prepared here.
    StaleCheckpoint = "STALE_CHECKPOINT",
    /// The call is not legal in this phase.
    InvalidPhase = "INVALID_PHASE",
    /// A higher coordinator epoch was seen.
    StaleCoordinator = "STALE_COORDINATOR",
    /// The call was meant for another process.
    OtherIncarnation = "OTHER_INCARNATION",
    /// Another id is open or unsettled, or the same with other arguments.
    CheckpointConflict = "CHECKPOINT_CONFLICT",
    /// At or below the mark, or below a live or staged attempt.
    StaleAttempt = "STALE_ATTEMPT",
    /// Above a live attempt that was not retired.
    AttemptLive = "ATTEMPT_LIVE",
    /// A restore was decided but an instance has not answered.
    InDoubt = "IN_DOUBT",
    /// Another life of the episode is held here.
    StaleExecution = "STALE_EXECUTION",
    /// Neither seeded nor restored in this process.
    EpisodeUnknown = "EPISODE_UNKNOWN",
    /// Older than the last operation.
    OperationPast = "OPERATION_PAST",
    /// The same operation with another request.
    OperationMismatch = "OPERATION_MISMATCH",
    /// Another replica owns the episode.
    WrongReplica = "WRONG_REPLICA",
    /// A restored episode sent with another task.
    TaskMismatch = "TASK_MISMATCH",
    /// RESTORED was expected and nothing is staged.
    NotRestored = "NOT_RESTORED",
    /// A commit names an episode that Prepare had reported as a restart.
    RestartInScope = "RESTART_IN_SCOPE",
    /// Forget before a retire has freed everything.
    RetireIncomplete = "RETIRE_INCOMPLETE",
    /// Forget while an attempt is live or staged.
    RolloutLive = "ROLLOUT_LIVE",
    /// A data call in JOINING.
    NotJoined = "NOT_JOINED",
    /// The door is full, or unacknowledged results are at their bound.
    AdmissionFull = "ADMISSION_FULL",
    /// One episode's record is over the limit.
    RecordTooLarge = "RECORD_TOO_LARGE",
    /// No space left, or the quota is used up.
    StorageFull = "STORAGE_FULL",
    /// The file system is read-only.
    StorageReadonly = "STORAGE_READONLY",
    /// No permission.
    StorageDenied = "STORAGE_DENIED",
    /// An I/O error.
    StorageIo = "STORAGE_IO",
    /// The participant's own timeout.
    DeadlinePassed = "DEADLINE_PASSED",
    /// Missing, cut short, altered, foreign, or of a newer format.
    InvalidCheckpoint = "INVALID_CHECKPOINT",
    /// A name breaks its rule.
    InvalidId = "INVALID_ID",
    /// A field breaks its rule.
    InvalidRequest = "INVALID_REQUEST",
    /// No certificate.
    UnauthenticatedPeer = "UNAUTHENTICATED_PEER",
    /// The peer's role may not call this.
    RoleDenied = "ROLE_DENIED",
    /// The inference engine failed after the retries.
    EngineFailed = "ENGINE_FAILED",
    /// A peer could not be reached within the bound.
    PeerUnreachable = "PEER_UNREACHABLE",
    /// A checkpoint or restore run was given up.
    RunAbandoned = "RUN_ABANDONED",
    /// A defect: the message is for the maintainers.
    Internal = "INTERNAL",
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An episode that still prevents a consistent cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blocker {
    /// Which episode.
    pub episode: Episode,
    /// On which server.
    pub instance: Instance,
    /// In which step.
    pub step: Cow<'static, str>,
    /// For how long.
    pub age: Duration,
    /// Why it is waited for.
    pub reason: Cow<'static, str>,
}

/// A call that is refused: the reason for programs, the message for people (what is, and what to do), names as metadata.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// One line: what, where, which rule, what to do.
    pub message: String,
    /// `episode`, `instance`, `phase`, `next_attempt`, `field` and the like.
    pub metadata: Vec<(Cow<'static, str>, String)>,
    /// Where the call waited for these.
    pub blockers: Vec<Blocker>,
    /// Where a retry is right: after this long.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// A refusal without metadata.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            metadata: Vec::new(),
            blockers: Vec::new(),
            retry_after: None,
        }
    }

    /// Adds a name.
    #[must_use]
    pub fn with(mut self, key: impl Into<Cow<'static, str>>, value: impl fmt::Display) -> Self {
        self.metadata.push((key.into(), value.to_string()));
        self
    }

    /// Names the episode.
    #[must_use]
    pub fn episode(self, episode: &Episode) -> Self {
        self.with("rollout_id", &episode.rollout)
            .with("attempt", episode.attempt)
    }

    /// Names the server.
    #[must_use]
    pub fn instance(self, instance: &Instance) -> Self {
        self.with("instance", instance)
    }

    /// Says that a retry is right, and after how long.
    #[must_use]
    pub fn retry(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The value of a metadata key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.metadata
            .iter()
            .find_map(|(k, v)| (*k == key).then_some(v.as_str()))
    }
}
