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
use belay_proto::episode::environment_server::EnvironmentServer;
use tokio::sync::watch;

use crate::{config::EnvironmentConfig, environment::Environment, grpc::DataService};

/// Serves one replica until `shutdown`.
pub async fn serve(
    config: EnvironmentConfig,
    listeners: Listeners,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
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
    let environment = Arc::new(Environment::new(
        gate.clone(),
        peers,
        common.patience,
        config.max_unacknowledged,
    ));
    let participant = Participant::new(options, gate, environment.clone(), members);
    let data = EnvironmentServer::new(DataService(environment))
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
