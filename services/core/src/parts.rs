//! What servers say of their parts of an episode: modes, cursors, what a capture holds, where an episode stands.

use serde::{Deserialize, Serialize};

use crate::ids::{Digest, Episode, ExecutionId, Instance, Operation, RolloutId};

/// Whether a server's part of an episode can be saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointMode {
    /// The state is captured and restored.
    Exported,
    /// There is no state beyond the replies that are kept.
    Stateless,
    /// The state cannot be captured: the whole episode is a restart.
    RestartOnly,
}

/// What a checkpoint may do while a verifier runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyMode {
    /// Safe to run twice; a checkpoint does not wait for it.
    Replay,
    /// A checkpoint waits for it.
    Wait,
}

/// How far an episode's agent has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// The last operation whose reply the agent has applied.
    pub operation: Option<Operation>,
    /// Chain hash of the last ledger row whose reply the agent has applied.
    pub chain: Option<Digest>,
    /// Revision of the resources session after the last tool reply that the agent has applied.
    pub revision: u64,
}

/// The highest attempt of a rollout that is refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// The rollout.
    pub rollout: RolloutId,
    /// This attempt and all earlier ones are refused.
    pub attempt: u32,
}

/// An in-flight episode that cannot be captured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Restart {
    /// Which.
    pub episode: Episode,
    /// Which server cannot save its part.
    pub instance: Instance,
    /// Why.
    pub reason: String,
}

/// What a part that a root names must be like (protocol 4, closure).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Need {
    /// There, in the same life, no revision behind the cursor, the ledger ending at the chain hash.
    Whole,
    /// As `Whole`, or not there.
    IfBegun,
}

/// A part that a root or an agent's session names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartNeeded {
    /// Where it lives.
    pub instance: Instance,
    /// What it must be like.
    pub need: Need,
}

/// The end of an episode's ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LedgerTip {
    /// The last row's operation.
    pub operation: Operation,
    /// The last row's chain hash.
    pub chain: Digest,
    /// The chain hash before it. `None` for the first row.
    pub parent: Option<Digest>,
}

/// What one participant captured of one episode: all that the closure check needs to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartSummary {
    /// Which episode.
    pub episode: Episode,
    /// In which life.
    pub execution: ExecutionId,
    /// It is a root.
    pub root: bool,
    /// How far it has come; default where the server does not know.
    pub cursor: Cursor,
    /// The parts that it needs on other servers.
    pub needs: Vec<PartNeeded>,
    /// From a policy model: the ledger's end.
    pub ledger: Option<LedgerTip>,
    /// From a resources server: the session's revision.
    pub revision: u64,
    /// For a person: the step or turn that is next.
    pub boundary: String,
    /// From an environment: BLAKE3 of the task.
    pub task: Option<Digest>,
    /// From an environment: it is finished, and its result not acknowledged.
    pub finished: bool,
}

impl PartSummary {
    /// A part of which there is nothing more to say: no root, no needs, nothing that a cursor could be held against.
    pub fn new(episode: Episode, execution: ExecutionId) -> Self {
        Self {
            episode,
            execution,
            root: false,
            cursor: Cursor::default(),
            needs: Vec::new(),
            ledger: None,
            revision: 0,
            boundary: String::new(),
            task: None,
            finished: false,
        }
    }
}

/// Where an episode that an environment admitted stands at the capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Its result was acknowledged.
    Acknowledged,
    /// In the checkpoint, running.
    SavedRunning,
    /// In the checkpoint with its result, which is not acknowledged.
    SavedFinished,
    /// Cannot be captured.
    Restart,
    /// Not in the listed scope.
    LeftOut,
    /// Its attempt was retired.
    Retired,
    /// Its attempt ended with an error.
    Failed,
}

/// One line of the partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionEntry {
    /// Which.
    pub episode: Episode,
    /// Exactly one class.
    pub standing: Standing,
    /// For restarts and failures: why.
    pub reason: String,
}

/// One episode of a restore's plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlannedEpisode {
    /// As it is called in the checkpoint.
    pub saved: Episode,
    /// Its attempt from now on.
    pub attempt: u32,
    /// Its life from now on.
    pub execution: ExecutionId,
    /// Where its parts go: one for each kind and name that it has a part on.
    pub placement: Vec<Instance>,
}

impl PlannedEpisode {
    /// The episode as it is called from now on.
    pub fn episode(&self) -> Episode {
        Episode::new(self.saved.rollout.clone(), self.attempt)
    }

    /// Where the part that was on `saved` goes: the planned replica of the same server.
    pub fn placed(&self, saved: &Instance) -> Option<&Instance> {
        self.placement.iter().find(|i| i.same_server(saved))
    }
}
