//! What an environment server is made with.

use belay_participant::ServerCommon;

/// The configuration of one replica.
#[derive(Clone, Debug)]
pub struct EnvironmentConfig {
    /// What all servers have.
    pub common: ServerCommon,
    /// At most this many results wait to be acknowledged; then new Runs are refused with ADMISSION_FULL.
    pub max_unacknowledged: usize,
    /// Its episodes have boundaries to go on from. Without, each one that runs is a restart.
    pub boundaries: bool,
}

impl EnvironmentConfig {
    /// The usual bound, and episodes with boundaries.
    pub fn new(common: ServerCommon) -> Self {
        Self {
            common,
            max_unacknowledged: 100_000,
            boundaries: true,
        }
    }
}
