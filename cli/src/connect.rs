//! Where the mesh is, and what a refusal reads like on a terminal.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use belay_mesh::{
    channel::{Channels, MeshChannel},
    config::ResolvedMesh,
    server::MAX_MESSAGE,
    status,
};
use belay_proto::checkpoint::coordinator_client::CoordinatorClient;
use clap::Args;
use tonic::Status;

/// Which mesh a command is for.
#[derive(Args, Clone, Debug)]
pub struct MeshArg {
    /// The file that `belay up` writes: who is in the mesh, and where.
    #[arg(
        long,
        env = "BELAY_MESH",
        default_value = ".belay/mesh.json",
        value_name = "FILE"
    )]
    pub mesh: PathBuf,
    /// The coordinator's address, host:port, instead of the one in the mesh's file.
    #[arg(long, env = "BELAY_COORDINATOR", value_name = "ADDRESS")]
    pub coordinator: Option<String>,
}

impl MeshArg {
    /// The coordinator's address.
    pub fn coordinator_address(&self) -> anyhow::Result<String> {
        match &self.coordinator {
            Some(address) => Ok(address.clone()),
            None => Ok(ResolvedMesh::read(&self.mesh)?.coordinator),
        }
    }

    /// A client of the coordinator. Connects at the first call.
    pub fn coordinator(&self) -> anyhow::Result<Coordinator> {
        let address = self.coordinator_address()?;
        let client = CoordinatorClient::new(Channels::default().control(&address))
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        Ok(Coordinator { client, address })
    }
}

/// The coordinator, and the address it was looked for at.
pub struct Coordinator {
    /// Its client.
    pub client: CoordinatorClient<MeshChannel>,
    /// host:port.
    pub address: String,
}

impl Coordinator {
    /// A status as one line: the refusal's own words, or that nobody answers there and what to do.
    pub fn explain(&self, status: Status) -> anyhow::Error {
        match status::from_status(&status) {
            Some(refusal) => anyhow!("{refusal}"),
            None if status.code() == tonic::Code::NotFound => anyhow!("{}", status.message()),
            None => anyhow!(
                "the coordinator at {} does not answer ({}); is the mesh up? `belay up` starts one, --mesh or \
                 --coordinator names another",
                self.address,
                root_cause(&status)
            ),
        }
    }
}

/// The innermost reason that a transport gives: "Connection refused" says more than "transport error".
fn root_cause(status: &Status) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    let mut text = status.message().to_owned();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

/// A duration as people write it: `90s`, `5m`, `250ms`.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write for example 250ms, 30s or 5m"))
}

/// For the wire.
pub fn wire_duration(duration: std::time::Duration) -> anyhow::Result<prost_types::Duration> {
    prost_types::Duration::try_from(duration).context("the duration is too long")
}
