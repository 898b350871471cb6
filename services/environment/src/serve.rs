//! The server: its parts put together.

use std::sync::Arc;

use belay_episodes::{RunService, Runner, RunnerOptions};
use belay_mesh::{
    members::Members,
    peers::Peers,
    server::{Listeners, MAX_MESSAGE, ServeError},
    shutdown::Shutdown,
};
use belay_participant::Participant;
use belay_proto::episode::environment_server::EnvironmentServer;

use crate::{agents::RemoteAgents, config::EnvironmentConfig};

/// Serves one replica until `shutdown`.
pub async fn serve(
    config: EnvironmentConfig,
    listeners: Listeners,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
    let common = &config.common;
    let gate = common.gate();
    let (server, participant) = common.server();
    let members = Members::default();
    let peers = Peers::new(members.clone(), common.channels());
    let agents = RemoteAgents {
        peers: peers.clone(),
        patience: common.patience,
    };
    let options = RunnerOptions {
        patience: common.patience,
        max_unacknowledged: config.max_unacknowledged,
        boundaries: config.boundaries,
    };
    let runner = Arc::new(Runner::new(gate.clone(), peers, agents, options));
    let participant = Participant::new(participant, gate, runner.clone(), members);
    let data = EnvironmentServer::new(RunService(runner))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    server
        .data(data)
        .control(participant.into_service())
        .run(listeners, shutdown)
        .await
}
