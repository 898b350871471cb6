//! What an agent server is made with.

use belay_participant::ServerCommon;

/// The configuration of one replica.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// What all servers have.
    pub common: ServerCommon,
    /// At most this many model calls in a session whose caller sets no limit.
    pub max_steps: u32,
    /// The name of the policy model that its sessions ask.
    pub policy_model: String,
}

impl AgentConfig {
    /// The usual limit, and the policy model named "default".
    pub fn new(common: ServerCommon) -> Self {
        Self {
            common,
            max_steps: 64,
            policy_model: "default".to_owned(),
        }
    }
}
