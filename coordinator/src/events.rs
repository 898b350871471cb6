//! What runs tell those who asked for them.

use std::time::Duration;

use belay_core::{
    coordinator::{checkpoint_run::Failure, partition::Partition},
    ids::{CheckpointId, Instance, RolloutId},
    parts::PlannedEpisode,
    refusal::Blocker,
};
use tokio::sync::mpsc;

/// A stage that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageReport {
    /// Which.
    pub stage: &'static str,
    /// Of which kinds of server.
    pub kind: String,
    /// How long.
    pub took: Duration,
    /// A line.
    pub detail: String,
}

/// What a run of checkpoint tells.
#[derive(Clone, Debug)]
pub enum CheckpointEvent {
    /// A stage ended.
    Stage(StageReport),
    /// A stage waits, for these.
    Waiting {
        /// Which.
        stage: &'static str,
        /// The oldest.
        blockers: Vec<Blocker>,
        /// All.
        count: u64,
    },
    /// Where everything stands.
    Partition(Partition),
    /// Captured and closed, for at most so long.
    Held(Duration),
    /// The end: it is published.
    Published(PublishedReport),
    /// The end: it is not.
    Abandoned(Failure),
}

/// A published checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PublishedReport {
    /// Episodes in it.
    pub episodes: u64,
    /// Not in it.
    pub restarts: u64,
    /// Of all records.
    pub bytes: u64,
    /// How long the mesh did not move.
    pub stall: Duration,
    /// From begin to published.
    pub total: Duration,
    /// Its directory.
    pub path: String,
    /// Generations cut in flight.
    pub cut_generations: u64,
    /// Tokens in their prefixes.
    pub cut_tokens: u64,
}

/// What a run of restore tells.
#[derive(Clone, Debug)]
pub enum RestoreEvent {
    /// A stage ended.
    Stage(StageReport),
    /// Where episodes go on.
    Plan {
        /// What is read.
        source: CheckpointId,
        /// Each episode.
        episodes: Vec<PlannedEpisode>,
        /// In the checkpoint, and over.
        retired: Vec<RolloutId>,
    },
    /// Decided; these have not answered.
    InDoubt {
        /// Who.
        missing: Vec<Instance>,
        /// Since the decision.
        since: Duration,
    },
    /// The end: everything is live.
    Restored {
        /// What was read.
        source: CheckpointId,
        /// How many.
        episodes: u64,
        /// From begin to the last answer.
        total: Duration,
        /// Generations that start anew.
        prefixes_lost: u64,
    },
    /// The end: nothing is.
    Abandoned(Failure),
}

/// Where a run tells. Nobody has to listen, and a listener that is slow or gone never holds a closed mesh up: the channel is
/// not bounded, and a run tells only so much.
pub struct Events<T>(mpsc::UnboundedSender<T>);

impl<T> Events<T> {
    /// Both ends.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<T>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Tells.
    pub fn tell(&self, event: T) {
        // Nobody listens: the run goes on all the same.
        let _ = self.0.send(event);
    }

    /// Nobody listens any more.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}
