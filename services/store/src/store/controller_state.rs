//! A controller's own state beside a checkpoint: written before the decision, which names it by its digest.

use belay_core::ids::{CheckpointId, hex};
use bytes::Bytes;

use super::CheckpointStore;
use crate::{
    checkpoint_file::ControllerStateRef,
    crash_safe::{self, Linked},
    error::StoreError,
};

/// The largest state, in bytes.
pub const MAX_CONTROLLER_STATE: u64 = 64 << 20;

pub(super) const PREFIX: &str = "controller-state-";

impl CheckpointStore {
    /// Makes a state durable. It belongs to the checkpoint once `checkpoint.json` names it.
    pub fn write_controller_state(
        &self,
        id: CheckpointId,
        bytes: &[u8],
    ) -> Result<ControllerStateRef, StoreError> {
        let size = bytes.len() as u64;
        if size > MAX_CONTROLLER_STATE {
            return Err(StoreError::TooLarge {
                what: "the controller's state".into(),
                size,
                limit: MAX_CONTROLLER_STATE,
            });
        }
        let digest = *blake3::hash(bytes).as_bytes();
        let state = ControllerStateRef {
            file: format!("{PREFIX}{}", hex(&digest)),
            digest,
            bytes: size,
        };
        let dir = self.checkpoint_dir(id);
        self.make_dir(&dir)?;
        let path = dir.join(&state.file);
        if crash_safe::publish_bytes(self.fs(), &path, bytes)? == Linked::Taken {
            crash_safe::sync_standing(self.fs(), &path)?;
            self.read_controller_state(id, &state)?;
        }
        Ok(state)
    }

    /// Reads a state and checks that it is the one.
    pub fn read_controller_state(
        &self,
        id: CheckpointId,
        state: &ControllerStateRef,
    ) -> Result<Bytes, StoreError> {
        // The name is made from the digest, and never taken from the reference: it cannot lead elsewhere.
        let path = self
            .checkpoint_dir(id)
            .join(format!("{PREFIX}{}", hex(&state.digest)));
        let bytes = crash_safe::read_file(self.fs(), &path, MAX_CONTROLLER_STATE)?;
        if *blake3::hash(&bytes).as_bytes() != state.digest {
            return Err(StoreError::invalid(
                &path,
                "is altered: its digest is not the one in its name",
            ));
        }
        Ok(bytes.into())
    }
}
