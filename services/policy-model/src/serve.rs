//! The server: its parts put together.

use std::sync::Arc;

use belay_mesh::{
    members::Members,
    server::{Listeners, MAX_MESSAGE, ServeError},
    shutdown::Shutdown,
};
use belay_participant::{Gate, Participant, ServerCommon};
use belay_proto::episode::policy_model_server::PolicyModelServer;

use crate::{
    config::{EngineConfig, PolicyModelConfig},
    engine::{Engine, OpenAi, StagingWorker},
    error::PolicyError,
    grpc::DataService,
    model::PolicyModel,
};

/// Why the server could not start or ended.
#[derive(Debug, thiserror::Error)]
pub enum PolicyModelError {
    /// Its ports.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Its engine's configuration. An engine that is not there yet is no reason not to start.
    #[error(transparent)]
    Engine(#[from] PolicyError),
}

/// Serves one replica until `shutdown`.
pub async fn serve(
    config: PolicyModelConfig,
    listeners: Listeners,
    shutdown: Shutdown,
) -> Result<(), PolicyModelError> {
    let common = &config.common;
    let gate = common.gate();
    let (patience, limit) = (config.engine_patience, config.generation_limit);
    match config.engine {
        EngineConfig::StagingWorker { address, model } => {
            let client = format!("{}@{}", gate.instance(), gate.incarnation());
            let engine = StagingWorker::new(&common.channels(), &address, client, patience, limit);
            run(common, gate, engine, model, listeners, shutdown).await
        }
        EngineConfig::OpenAi(openai) => {
            let model = openai.model.clone();
            let engine = OpenAi::new(openai, patience, limit)?;
            run(common, gate, engine, model, listeners, shutdown).await
        }
    }
}

async fn run<E: Engine>(
    common: &ServerCommon,
    gate: Gate,
    engine: E,
    model: Option<String>,
    listeners: Listeners,
    shutdown: Shutdown,
) -> Result<(), PolicyModelError> {
    let (server, options) = common.server();
    let owner = Arc::new(PolicyModel::new(gate.clone(), engine, model));
    let participant = Participant::new(options, gate, owner.clone(), Members::default());
    let data = PolicyModelServer::new(DataService::new(owner))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let server = server.data(data).control(participant.into_service());
    Ok(server.run(listeners, shutdown).await?)
}
