//! What can go wrong in the coordinator, beside what participants refuse.

use std::path::PathBuf;

use belay_core::{
    ids::Instance,
    refusal::{Reason, Refusal},
};

/// An error of the coordinator.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// A mesh without servers cannot be coordinated.
    #[error("the mesh of deployment {deployment:?} names no server: add at least one to mesh.toml")]
    NoMembers {
        /// Which.
        deployment: String,
    },
    /// Two coordinators on one journal would both believe in their epoch.
    #[error("the state directory {} is held by another coordinator: stop that one, or give this one a state directory of its own", dir.display())]
    StateHeld {
        /// Which.
        dir: PathBuf,
    },
    /// The directory cannot be made or opened.
    #[error("the state directory {} cannot be used ({source}): make it writable, or name another", dir.display())]
    StateDir {
        /// Which.
        dir: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// The journal cannot be read or written.
    #[error("the journal {} failed ({message}): nothing further is decided; check the disk, then start the coordinator again", path.display())]
    Journal {
        /// Which.
        path: PathBuf,
        /// What the database said.
        message: String,
    },
    /// The journal belongs to another deployment.
    #[error("the journal {} is of deployment {found:?}, not {expected:?}: name the right state directory", path.display())]
    OtherDeployment {
        /// Which.
        path: PathBuf,
        /// Its deployment.
        found: String,
        /// Ours.
        expected: String,
    },
    /// A participant has seen a higher epoch.
    #[error(
        "{instance} follows a newer coordinator: this one (epoch {epoch}) has stopped; stop the other first if this one is to be started again"
    )]
    Superseded {
        /// Who said so.
        instance: Instance,
        /// Our epoch.
        epoch: u64,
    },
    /// The port's server.
    #[error(transparent)]
    Serve(#[from] belay_mesh::server::ServeError),
    /// A task died: a defect.
    #[error("a task of the coordinator ended unexpectedly ({message}): this is a defect, please report it")]
    Task {
        /// What it said.
        message: String,
    },
    /// Refused by a rule of the protocol.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<CoordinatorError> for Refusal {
    fn from(error: CoordinatorError) -> Self {
        let reason = match &error {
            CoordinatorError::Refused(refusal) => return refusal.clone(),
            CoordinatorError::Journal { .. } | CoordinatorError::StateDir { .. } => Reason::StorageIo,
            CoordinatorError::Superseded { .. } => Reason::StaleCoordinator,
            CoordinatorError::NoMembers { .. }
            | CoordinatorError::StateHeld { .. }
            | CoordinatorError::OtherDeployment { .. } => Reason::InvalidRequest,
            CoordinatorError::Serve(_) | CoordinatorError::Task { .. } => Reason::Internal,
        };
        Refusal::new(reason, error.to_string())
    }
}

impl From<tokio::task::JoinError> for CoordinatorError {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Task {
            message: error.to_string(),
        }
    }
}
