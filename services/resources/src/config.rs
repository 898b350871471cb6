//! What a resources server is made with.

use std::{path::PathBuf, time::Duration};

use belay_core::parts::{CheckpointMode, VerifyMode};
use belay_participant::ServerCommon;

/// The configuration of one replica.
#[derive(Clone, Debug)]
pub struct ResourcesConfig {
    /// What all servers have.
    pub common: ServerCommon,
    /// The built-in environment: one of [`BUILT_IN`](crate::environments::BUILT_IN).
    pub builtin: String,
    /// Instead of what the environment says: any can be served as `RestartOnly`.
    pub mode: Option<CheckpointMode>,
    /// Instead of what the environment says.
    pub verify: Option<VerifyMode>,
    /// Sessions share state with others, whatever the environment says: none is left out of a checkpoint while it is in a call,
    /// a soft limit waits for it.
    pub shared: bool,
    /// A session that nobody calls for so long is ended, as if it had been closed: some time between this and a sixteenth more
    /// (at most a minute) after its last use. It is open time: it stands still while the mesh is closed, and between a crash and
    /// a restore. None: sessions stay until they are closed or retired.
    pub session_ttl: Option<Duration>,
    /// Where applied tool calls are reported to, each before its reply: a URL that takes a JSON object by POST.
    pub effect_log: Option<String>,
    /// `workplace` alone: the directory of the tables that its sessions begin with, instead of its own small set.
    pub tables: Option<PathBuf>,
    /// A deliberate fault, for negative controls: a restored session is as it was seeded, without its saved state and replies.
    pub restore_seeds_anew: bool,
    /// A deliberate fault: a URL that is asked before each tool call and each verify, and waited for.
    pub work_asks: Option<String>,
}

impl ResourcesConfig {
    /// The environment as it says of itself.
    pub fn new(common: ServerCommon, builtin: impl Into<String>) -> Self {
        Self {
            common,
            builtin: builtin.into(),
            mode: None,
            verify: None,
            shared: false,
            session_ttl: None,
            effect_log: None,
            tables: None,
            restore_seeds_anew: false,
            work_asks: None,
        }
    }
}
