//! What an agent server is made with.

use belay_core::parts::CheckpointMode;
use belay_participant::ServerCommon;

/// The configuration of one replica.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// What all servers have.
    pub common: ServerCommon,
    /// Whether its sessions can be saved: `Exported`, or `RestartOnly` to leave their episodes out of checkpoints.
    pub mode: CheckpointMode,
    /// At most this many results of whole episodes wait to be acknowledged; then new Runs are refused with ADMISSION_FULL.
    pub max_unacknowledged: usize,
    /// At most this many model calls in a session whose caller sets no limit.
    pub max_steps: u32,
    /// The name of the policy model that its sessions ask.
    pub policy_model: String,
}

impl AgentConfig {
    /// The usual limits, and the policy model named "default".
    pub fn new(common: ServerCommon) -> Self {
        Self {
            common,
            mode: CheckpointMode::Exported,
            max_unacknowledged: 100_000,
            max_steps: 64,
            policy_model: "default".to_owned(),
        }
    }
}
