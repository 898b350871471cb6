//! The server: its parts put together.

use std::sync::Arc;

use belay_mesh::{
    members::Members,
    peers::Peers,
    server::{Listeners, MAX_MESSAGE, ServeError},
    shutdown::Shutdown,
};
use belay_participant::Participant;
use belay_proto::episode::environment_server::EnvironmentServer;

use crate::{config::EnvironmentConfig, environment::Environment, grpc::DataService};

/// Serves one replica until `shutdown`.
pub async fn serve(
    config: EnvironmentConfig,
    listeners: Listeners,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
    let common = &config.common;
    let gate = common.gate();
    let (server, options) = common.server();
    let members = Members::default();
    let peers = Peers::new(members.clone(), common.channels());
    let owner = Arc::new(Environment::new(
        gate.clone(),
        peers,
        common.patience,
        config.max_unacknowledged,
    ));
    let participant = Participant::new(options, gate, owner.clone(), members);
    let data = EnvironmentServer::new(DataService(owner))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    server
        .data(data)
        .control(participant.into_service())
        .run(listeners, shutdown)
        .await
}
