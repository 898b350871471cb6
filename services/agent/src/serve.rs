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
use belay_proto::episode::{agent_server::AgentServer, environment_server::EnvironmentServer};

use crate::{agent::Agent, config::AgentConfig, grpc::DataService, own_sessions::OwnSessions, owner::Owner};

/// Serves one replica until `shutdown`.
pub async fn serve(config: AgentConfig, listeners: Listeners, shutdown: Shutdown) -> Result<(), ServeError> {
    let common = &config.common;
    let gate = common.gate();
    let (server, participant) = common.server();
    let members = Members::default();
    let peers = Peers::new(members.clone(), common.channels());
    let agent = Arc::new(Agent::new(gate.clone(), peers.clone(), &config));
    let options = RunnerOptions {
        patience: common.patience,
        max_unacknowledged: config.max_unacknowledged,
        boundaries: true,
    };
    let own = OwnSessions(agent.clone());
    let runner = Arc::new(Runner::new(gate.clone(), peers, own, options));
    let owner = Arc::new(Owner {
        agent: agent.clone(),
        runner: runner.clone(),
    });
    let participant = Participant::new(participant, gate, owner, members);
    let sessions = AgentServer::new(DataService(agent))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let episodes = EnvironmentServer::new(RunService(runner))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    server
        .data(sessions)
        .data(episodes)
        .control(participant.into_service())
        .run(listeners, shutdown)
        .await
}
