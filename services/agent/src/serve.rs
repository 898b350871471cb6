//! The server: its parts put together.

use std::{convert::Infallible, sync::Arc};

use belay_mesh::{
    channel::Channels,
    members::Members,
    peers::Peers,
    server::{HealthHandle, Listeners, MAX_MESSAGE, MeshServer, ServeError},
    shutdown::Shutdown,
};
use belay_participant::Participant;
use belay_proto::episode::agent_server::AgentServer;
use tokio::sync::watch;

use crate::{agent::Agent, config::AgentConfig, grpc::DataService};

/// Serves one replica until `shutdown`.
pub async fn serve(config: AgentConfig, listeners: Listeners, shutdown: Shutdown) -> Result<(), ServeError> {
    let common = &config.common;
    let gate = common.gate();
    let server = MeshServer::new(gate.instance());
    let health = server.health();
    let (tell, serving) = watch::channel(false);
    let options = common.participant(move |serving| {
        tell.send_replace(serving);
    });
    let members = Members::default();
    let peers = Peers::new(members.clone(), Channels::default());
    let agent = Arc::new(Agent::new(
        gate.clone(),
        peers,
        common.patience,
        config.max_steps,
        config.policy_model.clone(),
    ));
    let participant = Participant::new(options, gate, agent.clone(), members);
    let data = AgentServer::new(DataService(agent))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let running = server
        .data(data)
        .control(participant.into_service())
        .run(listeners, shutdown);
    tokio::select! {
        // First, because it begins with NOT_SERVING.
        biased;
        ended = running => ended,
        never = tell_health(serving, health) => match never {},
    }
}

async fn tell_health(mut serving: watch::Receiver<bool>, health: HealthHandle) -> Infallible {
    while serving.wait_for(|serving| *serving).await.is_ok() {
        health.serving(true).await;
        if serving.wait_for(|serving| !*serving).await.is_err() {
            break;
        }
        health.serving(false).await;
    }
    std::future::pending().await
}
