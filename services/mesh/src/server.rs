//! The server builder: two listeners, limits, health, reflection, metrics, TLS and the drain, set in one place.

use belay_core::ids::Instance;
use tokio::net::TcpListener;

use crate::shutdown::Shutdown;

/// Bound before anything else starts, so that the addresses can be printed.
pub struct Listeners {
    /// The episode API.
    pub data: TcpListener,
    /// The control plane.
    pub control: TcpListener,
}

/// Why a server could not start or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error(
        "{port} address {address} cannot be bound ({source}); stop what holds it, or choose another with --{port}"
    )]
    Bind {
        /// `data` or `control`.
        port: &'static str,
        /// As it was asked for.
        address: String,
        /// The system's word.
        source: std::io::Error,
    },
    /// The transport ended.
    #[error("the {port} port's server ended: {message}")]
    Transport {
        /// `data` or `control`.
        port: &'static str,
        /// What it said.
        message: String,
    },
}

impl Listeners {
    /// Binds both. `host:port`; port 0 takes a free one.
    pub async fn bind(_data: &str, _control: &str) -> Result<Self, ServeError> {
        todo!()
    }
}

/// A server of the mesh, before it runs.
pub struct MeshServer;

impl MeshServer {
    /// With health (NOT_SERVING until `serving`), reflection and `/metrics` on the control port.
    pub fn new(_instance: &Instance) -> Self {
        todo!()
    }

    /// Serves both ports until `shutdown`, then drains for at most ten seconds.
    pub async fn run(self, _listeners: Listeners, _shutdown: Shutdown) -> Result<(), ServeError> {
        todo!()
    }
}
