//! TLS for every listener and every channel, both ways, from three PEM files.

use std::path::Path;

use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

use crate::config::{ConfigError, TlsConfig};

/// The name that every certificate of a mesh carries: addresses come and go, the mesh is one peer.
pub const SERVER_NAME: &str = "belay";

/// Both ends of a process's TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    /// For its listeners: they ask for the peer's certificate.
    pub server: ServerTlsConfig,
    /// For its channels.
    pub client: ClientTlsConfig,
}

impl Tls {
    /// Reads the files that the configuration names.
    pub fn load(config: &TlsConfig) -> Result<Self, ConfigError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| ConfigError::Read {
                path: path.into(),
                source,
            })
        };
        let ca = Certificate::from_pem(read(&config.ca)?);
        let identity = Identity::from_pem(read(&config.cert)?, read(&config.key)?);
        Ok(Self {
            server: ServerTlsConfig::new()
                .identity(identity.clone())
                .client_ca_root(ca.clone()),
            client: ClientTlsConfig::new()
                .ca_certificate(ca)
                .identity(identity)
                .domain_name(SERVER_NAME),
        })
    }
}
