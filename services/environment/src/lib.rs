//! The environment server: runs `single_agent_turn` episodes for a controller.
//!
//! | module | what |
//! | --- | --- |
//! | [`config`] | what a server is made with |
//! | `agents` | the agent's part of an episode, at an agent server |
//! | `serve` | the server: its parts put together |
//!
//! How an episode is run is in `belay_episodes`, the rules are in `belay_core::episode`.

mod agents;
pub mod config;
mod serve;

pub use config::EnvironmentConfig;
pub use serve::serve;
