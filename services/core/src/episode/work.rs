//! What a Run asks for, and what it comes to.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::boundary::{AgentOutcome, Boundary, SeededParts, Verdict};
use crate::ids::{Digest, Episode, ExecutionId};

/// What a Run asks for: the same for every attempt that goes on from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// The task row, raw JSON.
    pub task: Bytes,
    /// BLAKE3 of the row.
    pub digest: Digest,
    /// The resources server's name.
    pub environment: Arc<str>,
    /// The agent's name.
    pub agent: Arc<str>,
    /// At most this many model calls; 0: the agent's own limit.
    pub max_steps: u32,
}

impl Work {
    /// Takes a row and digests it.
    pub fn new(task: Bytes, environment: &str, agent: &str, max_steps: u32) -> Self {
        Self {
            digest: *blake3::hash(&task).as_bytes(),
            task,
            environment: environment.into(),
            agent: agent.into(),
            max_steps,
        }
    }

    /// Another Run asks for the same.
    pub fn same_as(&self, other: &Self) -> bool {
        self.digest == other.digest && self.environment == other.environment && self.agent == other.agent
    }
}

/// When an episode has to be done. Times are those for which the mesh was open, so that parked and dead time does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deadline {
    /// No limit.
    #[default]
    Never,
    /// It is restored and nobody has claimed it: the time stands still, this much is left.
    Left(Duration),
    /// It runs, until the mesh has been open for this long.
    Until(Duration),
}

impl Deadline {
    /// Starts (again) at `now`.
    #[must_use]
    pub fn started(self, now: Duration) -> Self {
        match self {
            Self::Left(left) => Self::Until(now + left),
            other => other,
        }
    }

    /// What is left at `now`. `None`: no limit.
    pub fn left(self, now: Duration) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::Left(left) => Some(left),
            Self::Until(until) => Some(until.saturating_sub(now)),
        }
    }
}

impl From<Option<Duration>> for Deadline {
    fn from(left: Option<Duration>) -> Self {
        left.map_or(Self::Never, Self::Left)
    }
}

/// An episode that is to be run on: what its task needs to know.
#[derive(Clone, PartialEq, Debug)]
pub struct Life {
    /// Which.
    pub episode: Episode,
    /// In which life.
    pub execution: ExecutionId,
    /// What is asked for.
    pub work: Arc<Work>,
    /// Where it goes on.
    pub boundary: Boundary,
    /// When it has to be done.
    pub deadline: Deadline,
}

/// An episode that is done.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// Which.
    pub episode: Episode,
    /// The life that finished.
    pub execution: ExecutionId,
    /// It went on from a checkpoint.
    pub restored: bool,
    /// What was asked for.
    pub work: Arc<Work>,
    /// Where its parts were: the ledger still is.
    pub parts: Arc<SeededParts>,
    /// What the agent came to.
    pub outcome: Arc<AgentOutcome>,
    /// What the verifier gave.
    pub verdict: Arc<Verdict>,
}
