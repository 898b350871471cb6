//! Listeners: bound before anything else starts, so that the addresses can be printed.

use std::{io, net::SocketAddr};

use tokio::net::TcpListener;

/// Both ports of a server, bound.
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
        "the {port} address {address} cannot be bound ({source}); stop what holds it, or choose another with --{port}"
    )]
    Bind {
        /// `data`, `control` or `listen`.
        port: &'static str,
        /// As it was asked for.
        address: String,
        /// The system's word.
        source: io::Error,
    },
    /// The transport ended.
    #[error("the {port} port's server ended: {message}")]
    Transport {
        /// `data`, `control` or `listen`.
        port: &'static str,
        /// What it said.
        message: String,
    },
    /// The descriptors that are compiled in do not read: a defect of the build.
    #[error("gRPC reflection cannot be served: {0}; this is a defect of the build")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Binds one address, `host:port`; port 0 takes a free one. `port` is the flag that chose it.
pub async fn bind(port: &'static str, address: &str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Bind {
            port,
            address: address.into(),
            source,
        })
}

impl Listeners {
    /// Binds both. `host:port`; port 0 takes a free one.
    pub async fn bind(data: &str, control: &str) -> Result<Self, ServeError> {
        Ok(Self {
            data: bind("data", data).await?,
            control: bind("control", control).await?,
        })
    }

    /// What was bound: the data and the control address.
    pub fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.data.local_addr()?, self.control.local_addr()?))
    }
}
