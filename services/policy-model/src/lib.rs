//! The policy-model server: calls, held replies, cuts, the capture ledger and the engines behind it.
//!
//! | module | what |
//! | --- | --- |
//! | [`config`] | what a server is made with |
//! | [`model`] | a call in, a reply out: registers, samples in tasks, records, holds |
//! | `owner` | what a checkpoint, a restore and a retire mean here |
//! | [`engine`] | what is asked of an engine; a staging worker; OpenAI-compatible HTTP |
//! | [`chat`] | Responses items as chat completions, and back |
//! | `trajectory` | rows with their tokens |
//! | `record` | an episode on disk |
//! | `freeing` | what an engine is told after episodes have ended |
//!
//! The rules are in `belay_core::calls` and `belay_core::ledger`.

pub mod chat;
pub mod config;
pub mod engine;
pub mod error;
mod freeing;
mod grpc;
pub mod model;
mod owner;
mod record;
mod serve;
mod staging;
mod trajectory;
mod wire;

pub use config::{EngineConfig, OpenAiConfig, PolicyModelConfig};
pub use error::PolicyError;
pub use serve::{PolicyModelError, serve};
