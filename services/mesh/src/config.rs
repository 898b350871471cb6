//! `mesh.toml`: what the mesh is made of; and `mesh.json`: where a running one is.

mod file;
mod resolved;

pub use file::{
    ConfigError, CoordinatorAt, Engine, FaultsConfig, Limits, MeshConfig, ReplicaAddress, ServerConfig,
    TlsConfig,
};
pub use resolved::{ResolvedMember, ResolvedMesh};
