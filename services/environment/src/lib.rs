//! The environment server: runs `single_agent_turn` episodes for a controller.
//!
//! | module | what |
//! | --- | --- |
//! | [`config`] | what a server is made with |
//! | [`environment`] | a Run in, a result out: admits, joins, claims; acknowledges |
//! | `task` | the task of one episode: step after step, each recorded as a boundary |
//! | `steps` | what each step asks of the other servers |
//! | `owner` | what a checkpoint, a restore and a retire mean here |
//! | `record` | an episode on disk |
//! | `row` | what a task row must have |
//!
//! The rules are in `belay_core::episode`.

pub mod config;
pub mod environment;
pub mod error;
mod grpc;
mod owner;
mod record;
mod row;
mod serve;
mod steps;
mod task;

pub use config::EnvironmentConfig;
pub use error::EnvironmentError;
pub use serve::serve;
