//! `mesh.json`: where a running mesh is. `belay up` writes it; every other command and the coordinator read it.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use belay_core::ids::Instance;
use serde::{Deserialize, Serialize};

use super::{ConfigError, write_whole};
use crate::members::Member;

/// A running mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedMesh {
    /// The deployment's name.
    pub deployment: String,
    /// The checkpoint root.
    pub root: PathBuf,
    /// The coordinator's address; empty until it has started.
    pub coordinator: String,
    /// The built-in engine's address, where one was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Every server, in order.
    pub members: Vec<ResolvedMember>,
}

/// One server of a running mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResolvedMember {
    /// Which.
    pub instance: Instance,
    /// Its data port.
    pub data: String,
    /// Its control port.
    pub control: String,
}

impl From<ResolvedMember> for Member {
    fn from(member: ResolvedMember) -> Self {
        Self {
            instance: member.instance,
            data: member.data,
            control: member.control,
        }
    }
}

impl ResolvedMesh {
    /// Reads the file; one that is not there means that no mesh is up.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(ConfigError::NoMesh { path: path.into() });
            }
            Err(source) => {
                return Err(ConfigError::Read {
                    path: path.into(),
                    source,
                });
            }
        };
        serde_json::from_slice(&text).map_err(|error| ConfigError::Parse {
            path: path.into(),
            message: format!("is no mesh file: {error}"),
        })
    }

    /// Writes the file in one step: a reader sees the old one or the new one.
    pub fn write(&self, path: &Path) -> Result<(), ConfigError> {
        let text = serde_json::to_vec_pretty(self).map_err(|error| ConfigError::Parse {
            path: path.into(),
            message: error.to_string(),
        })?;
        write_whole(path, &text)
    }
}
