//! What the configuration of every server has in common.

use std::{path::PathBuf, sync::Arc, time::Duration};

use belay_core::ids::Instance;
use belay_mesh::{
    channel::{ChannelOptions, Channels},
    server::MeshServer,
    tls::Tls,
};
use belay_store::fs::{FileSystem, RealFs};

use crate::{
    gate::{Gate, GateOptions},
    participant::ParticipantOptions,
};

/// A record over this many bytes makes its episode a restart (protocol 3.2 rule 3).
pub const DEFAULT_RECORD_LIMIT: u64 = 256 << 20;
/// At most this many calls wait at a door (protocol 3.2 rule 11).
pub const DEFAULT_DOOR: usize = 100_000;
/// How long a peer is called before it counts as unreachable.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(60);

/// The part of a server's configuration that has nothing to do with what it serves.
#[derive(Clone, Debug)]
pub struct ServerCommon {
    /// Who this is.
    pub instance: Instance,
    /// The checkpoint root.
    pub root: PathBuf,
    /// The deployment below the root.
    pub deployment: String,
    /// A record over this many bytes makes its episode a restart.
    pub record_limit: u64,
    /// At most this many calls wait at the door.
    pub door: usize,
    /// No coordinator: serve from the start.
    pub standalone: bool,
    /// How long a peer is called before it counts as unreachable.
    pub patience: Duration,
    /// TLS on its ports and to its peers; plain text where it is unset.
    pub tls: Option<Tls>,
    /// Where the root lies.
    pub file_system: Arc<dyn FileSystem>,
}

impl ServerCommon {
    /// With the protocol's defaults, joined by a coordinator.
    pub fn new(instance: Instance, root: impl Into<PathBuf>, deployment: impl Into<String>) -> Self {
        Self {
            instance,
            root: root.into(),
            deployment: deployment.into(),
            record_limit: DEFAULT_RECORD_LIMIT,
            door: DEFAULT_DOOR,
            standalone: false,
            patience: DEFAULT_PATIENCE,
            tls: None,
            file_system: Arc::new(RealFs),
        }
    }

    /// The connections to its peers.
    pub fn channels(&self) -> Channels {
        Channels::new(ChannelOptions {
            tls: self.tls.as_ref().map(|tls| tls.client.clone()),
        })
    }

    /// The server's gate.
    pub fn gate(&self) -> Gate {
        Gate::new(GateOptions {
            instance: self.instance.clone(),
            door: self.door,
            standalone: self.standalone,
        })
    }

    /// The server's ports, and the options of its participant: health says SERVING while the participant is joined and open to calls.
    pub fn server(&self) -> (MeshServer, ParticipantOptions) {
        let server = MeshServer::new(&self.instance).tls(self.tls.as_ref().map(|tls| tls.server.clone()));
        let health = server.health();
        let options = ParticipantOptions {
            record_limit: self.record_limit,
            standalone: self.standalone,
            on_serving: Arc::new(move |serving| health.set(serving)),
            file_system: self.file_system.clone(),
            ..ParticipantOptions::new(&self.root, &self.deployment)
        };
        (server, options)
    }
}
