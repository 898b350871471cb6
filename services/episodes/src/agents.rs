//! Where the agent's part of an episode is asked for: at an agent server, or in this process.

use std::{future::Future, time::Duration};

use belay_core::{
    episode::AgentOutcome,
    ids::{Episode, ExecutionId, Instance},
    parts::CheckpointMode,
    refusal::Refusal,
};
use bytes::Bytes;

use crate::error::EpisodeError;

/// An episode in one of its lives.
#[derive(Clone, Copy, Debug)]
pub struct LifeRef<'a> {
    /// Which.
    pub episode: &'a Episode,
    /// In which life.
    pub execution: ExecutionId,
}

/// A session that is to be made.
#[derive(Clone, Debug)]
pub struct SessionSeed {
    /// `responses_create_params` of the task.
    pub params: Bytes,
    /// Where tools are called.
    pub resources: Instance,
    /// Whether that server can save its part.
    pub resources_mode: CheckpointMode,
    /// The resources session's revision after its seed.
    pub revision: u64,
    /// At most this many model calls; 0: the agent's own limit.
    pub max_steps: u32,
}

/// A session that was made.
#[derive(Clone, Debug)]
pub struct SeededSession {
    /// Where it lives.
    pub instance: Instance,
    /// Whether it can be saved.
    pub mode: CheckpointMode,
    /// Where its model calls go.
    pub policy_model: Instance,
}

/// The agent's part of an episode. Every call is idempotent: a step that was cut is made again as it was.
///
/// `seed` and `invoke` are called without a permit, and may wait while the mesh is closed. `close` is called under a permit of the
/// runner's own gate: who shares that gate must not ask it again.
pub trait AgentSessions: Send + Sync + 'static {
    /// The agent that a Run means when it names none.
    fn default_name(&self) -> &str;

    /// The replica that a new episode's session goes to. INVALID_REQUEST names those that there are.
    fn place(&self, name: &str, episode: &Episode) -> Result<Instance, EpisodeError>;

    /// Asked in the turn in which a Run would begin here.
    fn may_begin(&self, _episode: &Episode) -> Result<(), Refusal> {
        Ok(())
    }

    /// Makes the session.
    fn seed(
        &self,
        agent: &Instance,
        life: LifeRef<'_>,
        seed: SessionSeed,
    ) -> impl Future<Output = Result<SeededSession, EpisodeError>> + Send;

    /// Runs its first activation to its end.
    fn invoke(
        &self,
        agent: &Instance,
        life: LifeRef<'_>,
    ) -> impl Future<Output = Result<AgentOutcome, EpisodeError>> + Send;

    /// Ends it.
    fn close(
        &self,
        agent: &Instance,
        life: LifeRef<'_>,
        patience: Duration,
    ) -> impl Future<Output = Result<(), EpisodeError>> + Send;
}
