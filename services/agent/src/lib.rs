//! The agent server: owns the loop of model call and tool calls, and its sessions.
//!
//! | module | what |
//! | --- | --- |
//! | [`config`] | what a server is made with |
//! | [`agent`] | sessions: seeded, invoked, joined, closed |
//! | `task` | the task of one activation: the loop, each reply recorded as a boundary |
//! | `calls` | what the loop asks of the policy model and of the resources server |
//! | `owner` | what a checkpoint, a restore and a retire mean here |
//! | `record` | a session on disk |
//!
//! The rules are in `belay_core::agent`.

pub mod agent;
mod calls;
pub mod config;
pub mod error;
mod grpc;
mod owner;
mod record;
mod serve;
mod task;

pub use config::AgentConfig;
pub use error::AgentError;
pub use serve::serve;
