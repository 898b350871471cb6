//! The participant: serves `CheckpointParticipant` for a state owner.

use std::{path::PathBuf, sync::Arc};

use belay_mesh::members::Members;

use crate::{gate::Gate, owner::StateOwner};

/// What a participant is made with, beside its gate and its owner.
#[derive(Clone, Debug)]
pub struct ParticipantOptions {
    /// The checkpoint root.
    pub root: PathBuf,
    /// The deployment below the root.
    pub deployment: String,
    /// A record over this many bytes makes its episode a restart.
    pub record_limit: u64,
}

/// A server's checkpoint control plane.
pub struct Participant<O: StateOwner> {
    _owner: Arc<O>,
}

impl<O: StateOwner> Participant<O> {
    /// Ties gate, owner and member list together; starts the lease watch.
    pub fn new(
        _options: ParticipantOptions,
        _gate: Gate,
        _owner: Arc<O>,
        _members: Members,
    ) -> Self {
        todo!()
    }
}
