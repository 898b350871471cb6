//! `checkpoint.json`: the decision about a checkpoint. Its link, create-only, is what decides; a tombstone under the same
//! name decides the other way, for ever.

use std::path::Path;

use belay_core::{
    ids::{CheckpointId, Digest, Episode, ExecutionId, Incarnation, Instance},
    parts::{Cursor, Mark, Restart},
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{error::StoreError, format::Format, hex_serde, sealed};

/// The file's name, in the checkpoint's directory.
pub const FILE_NAME: &str = "checkpoint.json";

/// No `checkpoint.json` is larger: that would be some two million episodes.
pub const MAX_BYTES: u64 = 1 << 30;

/// A published checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckpointFile {
    /// The version of the format.
    pub format: Format,
    /// Its id.
    pub id: CheckpointId,
    /// Whose it is.
    pub deployment: String,
    /// The epoch of the coordinator that published it.
    pub epoch: u64,
    /// The model and its version, where they are known.
    #[serde(default)]
    pub model: Option<String>,
    /// Every participant's share.
    pub shards: Vec<ShardRef>,
    /// What is restored: these and nothing else.
    pub episodes: Vec<SavedEpisode>,
    /// What was in flight and could not be captured.
    #[serde(default)]
    pub restarts: Vec<Restart>,
    /// The version of the marks.
    pub marks_version: u64,
    /// All marks.
    pub marks: Vec<Mark>,
    /// The controller's own state, published with the checkpoint.
    #[serde(default)]
    pub controller_state: Option<ControllerStateRef>,
    /// When, by the wall clock: for people, it decides nothing.
    #[serde(default)]
    pub created_unix_ms: u64,
}

/// A participant's share of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardRef {
    /// Whose it is.
    pub instance: Instance,
    /// The process that wrote it.
    pub incarnation: Incarnation,
    /// Its manifest, as a path below the checkpoint's directory.
    pub manifest: String,
    /// BLAKE3 of the manifest's bytes.
    #[serde(with = "hex_serde")]
    pub digest: Digest,
    /// Records in it.
    pub records: u64,
    /// Bytes of its records file.
    pub bytes: u64,
}

impl ShardRef {
    /// A share of which only this much is known, as a restore's request names it: enough to read it, since the digest pins the
    /// manifest and the manifest all else. Incarnation and sizes are zero.
    pub fn named(instance: Instance, manifest: String, digest: Digest) -> Self {
        Self {
            instance,
            incarnation: Incarnation(Uuid::nil()),
            manifest,
            digest,
            records: 0,
            bytes: 0,
        }
    }
}

/// An episode in a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SavedEpisode {
    /// Which.
    pub episode: Episode,
    /// In which life.
    pub execution: ExecutionId,
    /// For a person: the step or turn that is next.
    pub boundary: String,
    /// It is finished, and its result not acknowledged.
    pub finished: bool,
    /// How far it has come.
    #[serde(with = "hex_serde::cursor")]
    pub cursor: Cursor,
    /// BLAKE3 of its task.
    #[serde(default, with = "hex_serde::option")]
    pub task: Option<Digest>,
    /// Every instance that holds a part of it.
    pub parts: Vec<Instance>,
}

/// A controller's own state beside a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ControllerStateRef {
    /// The file's name, in the checkpoint's directory.
    pub file: String,
    /// BLAKE3 of its bytes.
    #[serde(with = "hex_serde")]
    pub digest: Digest,
    /// How many.
    pub bytes: u64,
}

/// The decision that a checkpoint does not come to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tombstone {
    /// The version of the format.
    pub format: Format,
    /// Which checkpoint.
    pub id: CheckpointId,
    /// Whose.
    pub deployment: String,
    /// The epoch of the coordinator that abandoned it.
    pub epoch: u64,
    /// Why, for a person.
    pub why: String,
}

/// What stands under the name `checkpoint.json`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decided {
    /// The checkpoint is published.
    Checkpoint(Box<CheckpointFile>),
    /// The checkpoint was abandoned.
    Tombstone {
        /// The epoch of the coordinator that abandoned it.
        epoch: u64,
        /// Why, for a person.
        why: String,
    },
}

/// Which of the two it is: the first member of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Published,
    Abandoned,
}

#[derive(Serialize)]
struct Written<'a, T> {
    decision: Decision,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Deserialize)]
struct Head {
    decision: Decision,
    id: CheckpointId,
    deployment: String,
}

impl CheckpointFile {
    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        sealed::seal(&Written {
            decision: Decision::Published,
            body: self,
        })
    }
}

impl Tombstone {
    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        sealed::seal(&Written {
            decision: Decision::Abandoned,
            body: self,
        })
    }
}

impl Decided {
    /// Reads what stands at `path`, and checks that it is about this checkpoint of this deployment.
    pub fn read(path: &Path, bytes: &[u8], deployment: &str, id: CheckpointId) -> Result<Self, StoreError> {
        let unsealed = sealed::unseal(path, bytes)?;
        let head: Head = unsealed.parse()?;
        if head.deployment != deployment {
            return Err(StoreError::invalid(
                path,
                format!(
                    "is foreign: it is of deployment {}, not {deployment}",
                    head.deployment
                ),
            ));
        }
        if head.id != id {
            return Err(StoreError::invalid(
                path,
                format!("is foreign: it is of checkpoint {}, not {id}", head.id),
            ));
        }
        Ok(match head.decision {
            Decision::Published => Self::Checkpoint(Box::new(unsealed.parse()?)),
            Decision::Abandoned => {
                let Tombstone { epoch, why, .. } = unsealed.parse()?;
                Self::Tombstone { epoch, why }
            }
        })
    }
}
