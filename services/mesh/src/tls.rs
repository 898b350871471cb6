//! TLS for every listener and every channel, both ways, from three PEM files.

use std::path::{Path, PathBuf};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};

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
    /// Reads and checks the files that the configuration names.
    pub fn load(config: &TlsConfig) -> Result<Self, ConfigError> {
        let ca = certificates("ca", &config.ca)?;
        let certificate = certificates("cert", &config.cert)?;
        let key = read(&config.key)?;
        PrivateKeyDer::from_pem_slice(&key).map_err(|error| {
            rule(
                &config.key,
                format!("is no private key in PEM ({error}); see [tls] key"),
            )
        })?;
        let ca = Certificate::from_pem(ca);
        let identity = Identity::from_pem(certificate, key);
        let tls = Self {
            server: ServerTlsConfig::new()
                .identity(identity.clone())
                .client_ca_root(ca.clone()),
            client: ClientTlsConfig::new()
                .ca_certificate(ca)
                .identity(identity)
                .domain_name(SERVER_NAME),
        };
        tls.check()
            .map_err(|what| rule(&config.cert, format!("cannot be used with its key: {what}")))?;
        Ok(tls)
    }

    /// What a listener and a channel would only find later, and say less well.
    fn check(&self) -> Result<(), String> {
        let innermost = |error: tonic::transport::Error| {
            let mut cause: &dyn std::error::Error = &error;
            while let Some(inner) = cause.source() {
                cause = inner;
            }
            cause.to_string()
        };
        Server::builder()
            .tls_config(self.server.clone())
            .map_err(innermost)?;
        Endpoint::from_static("https://belay")
            .tls_config(self.client.clone())
            .map_err(innermost)?;
        Ok(())
    }
}

/// The file's bytes, once they are known to hold a certificate.
fn certificates(key: &str, path: &Path) -> Result<Vec<u8>, ConfigError> {
    let pem = read(path)?;
    match CertificateDer::pem_slice_iter(&pem).next() {
        Some(Ok(_)) => Ok(pem),
        Some(Err(error)) => Err(rule(
            path,
            format!("is no certificate in PEM ({error}); see [tls] {key}"),
        )),
        None => Err(rule(
            path,
            format!("holds no certificate in PEM; see [tls] {key}"),
        )),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(path).map_err(|source| ConfigError::Read {
        path: path.into(),
        source,
    })
}

fn rule(path: &Path, rule: String) -> ConfigError {
    ConfigError::Rule {
        path: PathBuf::from(path),
        rule,
    }
}
