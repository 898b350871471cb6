//! `manifest.json`: what makes a participant's share of a checkpoint durable.

use std::path::Path;

use belay_core::ids::{CheckpointId, Digest, Incarnation, Instance, hex};
use serde::{Deserialize, Serialize};

use crate::{error::StoreError, format::Format, hex_serde, sealed};

/// The file's name, in the participant's directory.
pub const FILE_NAME: &str = "manifest.json";

/// No manifest is larger.
pub const MAX_BYTES: u64 = 1 << 20;

/// A participant's share: whose it is, and how to know its records file again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this file and of the records file.
    pub format: Format,
    /// The checkpoint.
    pub id: CheckpointId,
    /// The deployment.
    pub deployment: String,
    /// Whose records.
    pub instance: Instance,
    /// The process that wrote them.
    pub incarnation: Incarnation,
    /// BLAKE3 of the records file: it is in the file's name.
    #[serde(with = "hex_serde")]
    pub records_digest: Digest,
    /// Bytes of the records file.
    pub bytes: u64,
    /// Records in it.
    pub records: u64,
}

impl Manifest {
    /// Where an instance's manifest lies, below the checkpoint's directory.
    pub fn path_of(instance: &Instance) -> String {
        format!("{instance}/{FILE_NAME}")
    }

    /// The records file's name.
    pub fn records_name(&self) -> String {
        format!("records-{}.belay", hex(&self.records_digest))
    }

    /// Reads a manifest's bytes, and checks that it is this instance's in this checkpoint of this deployment.
    pub fn read(
        path: &Path,
        bytes: &[u8],
        deployment: &str,
        id: CheckpointId,
        instance: &Instance,
    ) -> Result<Self, StoreError> {
        let manifest: Self = sealed::unseal(path, bytes)?.parse()?;
        let foreign = |what: &str, is: &dyn std::fmt::Display, not: &dyn std::fmt::Display| {
            Err(StoreError::invalid(
                path,
                format!("is foreign: it is of {what} {is}, not {not}"),
            ))
        };
        if manifest.deployment != deployment {
            return foreign("deployment", &manifest.deployment, &deployment);
        }
        if manifest.id != id {
            return foreign("checkpoint", &manifest.id, &id);
        }
        if manifest.instance != *instance {
            return foreign("instance", &manifest.instance, instance);
        }
        Ok(manifest)
    }
}
