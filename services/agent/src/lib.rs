//! The agent server: owns the loop of model call and tool calls, and its sessions.
//!
//! It also runs whole episodes, for controllers that send them to an agent: as an environment does (`belay_episodes`), with its own
//! sessions as the agent's part.
//!
//! | module | what |
//! | --- | --- |
//! | [`config`] | what a server is made with |
//! | [`agent`] | sessions: seeded, invoked, joined, closed |
//! | `task` | the task of one activation: the loop, each reply recorded as a boundary |
//! | `calls` | what the loop asks of the policy model and of the resources server |
//! | `own_sessions` | its sessions as the agent's part of an episode that it owns |
//! | `owner` | what a checkpoint, a restore and a retire mean here |
//! | `record` | what it holds of an episode, on disk |
//!
//! The rules are in `belay_core::agent`.

pub mod agent;
mod calls;
pub mod config;
pub mod error;
mod grpc;
mod own_sessions;
mod owner;
mod record;
mod serve;
mod task;

pub use config::AgentConfig;
pub use error::AgentError;
pub use serve::serve;
