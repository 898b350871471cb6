//! `mesh.toml`: what the mesh is made of; and `mesh.json`: where a running one is.

mod file;
mod resolved;
mod rules;
#[cfg(test)]
mod tests;

use std::{io::Write as _, path::Path};

pub use file::{
    ConfigError, CoordinatorAt, Engine, FaultsConfig, FullDisk, Limits, MeshConfig, ReplicaAddress,
    ServerConfig, TlsConfig,
};
pub use resolved::{ResolvedMember, ResolvedMesh};

/// Writes a file in one step, with the folders above it: a reader sees the old one or the new one.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), ConfigError> {
    let write = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|source| ConfigError::Write {
        path: path.into(),
        source,
    })
}
