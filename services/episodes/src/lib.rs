//! Runs episodes for a controller: a Run in, a result out.
//!
//! An environment does nothing else. An agent does it too, for controllers that send whole episodes to it: then it owns the
//! episode, and its own sessions are the agent's part of it. What differs is behind [`AgentSessions`].
//!
//! | module | what |
//! | --- | --- |
//! | [`runner`] | admits, joins, claims; acknowledges |
//! | [`agents`] | where the agent's part of an episode is asked for |
//! | [`service`] | the gRPC service `belay.episode.v1.Environment` |
//! | [`record`] | an episode on disk |
//! | [`error`] | what can go wrong |
//! | `task` | the task of one episode: step after step, each recorded as a boundary |
//! | `steps` | what each step asks of the other servers |
//! | `owner` | what a checkpoint, a restore and a retire mean for episodes |
//! | `row` | what a task row must have |
//!
//! The rules are in `belay_core::episode`.

pub mod agents;
pub mod error;
mod owner;
pub mod record;
mod row;
pub mod runner;
pub mod service;
mod steps;
mod task;

pub use agents::{AgentSessions, LifeRef, SeededSession, SessionSeed};
pub use error::EpisodeError;
pub use runner::{Runner, RunnerOptions};
pub use service::RunService;
