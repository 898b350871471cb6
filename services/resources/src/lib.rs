//! The resources server: owns sessions, applies tool calls to them, scores them.
//!
//! | module | what |
//! | --- | --- |
//! | [`config`] | what a server is made with |
//! | [`environment`] | the contract of an environment: seed, tools, verifier, state as bytes |
//! | [`environments`] | the built-in ones |
//! | `resources` | a call in, a reply out: tool calls as tasks that outlive their callers |
//! | `verifies`, `flight` | work that callers join |
//! | `asking` | work that is held from outside, for tests |
//! | `effects` | applied calls, told to a log outside the mesh |
//! | `expiry` | sessions that nobody calls any more |
//! | `owner` | what a checkpoint, a restore and a retire mean here |
//! | `record` | a session on disk |
//!
//! The rules are in `belay_core::sessions`.

mod asking;
pub mod config;
mod effects;
pub mod environment;
pub mod environments;
pub mod error;
mod expiry;
mod flight;
mod grpc;
mod owner;
mod record;
mod resources;
mod serve;
mod verifies;

pub use config::ResourcesConfig;
pub use environment::Environment;
pub use error::ResourcesError;
pub use serve::{serve, serve_environment};
