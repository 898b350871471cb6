//! Mutual TLS: both ends show a certificate of the mesh's authority, or nothing passes.

use std::path::{Path, PathBuf};

use belay_mesh::{
    channel::{ChannelOptions, Channels},
    config::TlsConfig,
    server::MeshServer,
    tls::{SERVER_NAME, Tls},
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tonic::transport::ClientTlsConfig;

use crate::support::{Running, Scripted, instance, tool_call, within};

/// An authority and one certificate of it, as files.
fn authority(folder: &Path, name: &str) -> TlsConfig {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).unwrap();
    let cert = params.signed_by(&key, &issuer).unwrap();
    let file = |what: &str, pem: String| -> PathBuf {
        let path = folder.join(format!("{name}-{what}.pem"));
        std::fs::write(&path, pem).unwrap();
        path
    };
    TlsConfig {
        ca: file("ca", ca.pem()),
        cert: file("cert", cert.pem()),
        key: file("key", key.serialize_pem()),
    }
}

fn channels(tls: Option<ClientTlsConfig>) -> Channels {
    Channels::new(ChannelOptions { tls })
}

#[tokio::test]
async fn only_those_with_a_certificate_of_the_mesh_are_served() {
    belay_mesh::telemetry::install_crypto();
    let folder = tempfile::tempdir().unwrap();
    let config = authority(folder.path(), "mesh");
    let ours = Tls::load(&config).unwrap();
    let theirs = Tls::load(&authority(folder.path(), "stranger")).unwrap();
    let service = Scripted::echo();
    let server = MeshServer::new(&instance())
        .data(service.service())
        .tls(Some(ours.server));
    let server = Running::start(server).await;

    let mut client = server
        .peers(channels(Some(ours.client)))
        .resources(&instance())
        .unwrap();
    let reply = within("the reply", client.call_tool(tool_call("x"))).await;
    assert_eq!(reply.unwrap().into_inner().output, "x");

    let ca = tonic::transport::Certificate::from_pem(std::fs::read(&config.ca).unwrap());
    let nameless = ClientTlsConfig::new().ca_certificate(ca).domain_name(SERVER_NAME);
    for (who, tls) in [
        ("plain text", None),
        ("no certificate", Some(nameless)),
        ("a stranger", Some(theirs.client)),
    ] {
        let mut client = server.peers(channels(tls)).resources(&instance()).unwrap();
        let refused = within(who, client.call_tool(tool_call("x"))).await;
        assert!(belay_mesh::status::is_transport(&refused.unwrap_err()), "{who}");
    }
    assert_eq!(service.calls(), 1);
    server.stop().await;
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let good = authority(folder.path(), "mesh");
    let other = authority(folder.path(), "other");
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "no PEM here").unwrap();
    let missing = folder.path().join("missing.pem");
    let cases = [
        (
            TlsConfig {
                ca: missing.clone(),
                ..good.clone()
            },
            "missing.pem: cannot be read",
        ),
        (
            TlsConfig {
                ca: empty.clone(),
                ..good.clone()
            },
            "empty.pem: holds no certificate in PEM; see [tls] ca",
        ),
        (
            TlsConfig {
                cert: empty.clone(),
                ..good.clone()
            },
            "see [tls] cert",
        ),
        (
            TlsConfig {
                key: empty,
                ..good.clone()
            },
            "empty.pem: is no private key",
        ),
        (
            TlsConfig {
                key: other.key,
                ..good
            },
            "mesh-cert.pem: cannot be used with its key",
        ),
    ];
    for (config, expected) in cases {
        let message = Tls::load(&config).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}
