//! The server: its parts put together.

use std::sync::Arc;

use belay_mesh::{
    members::Members,
    server::{Listeners, MAX_MESSAGE},
    shutdown::Shutdown,
};
use belay_participant::Participant;
use belay_proto::episode::resources_server::ResourcesServer;

use crate::{
    asking::Asking,
    config::ResourcesConfig,
    effects::EffectLog,
    environment::Environment,
    environments::{BUILT_IN, Counter, Synonyms, Weather, Workplace},
    error::ResourcesError,
    expiry::expire_sessions,
    grpc::DataService,
    resources::{Resources, Settings},
};

/// Serves one replica of a built-in environment until `shutdown`.
pub async fn serve(
    config: ResourcesConfig,
    listeners: Listeners,
    shutdown: Shutdown,
) -> Result<(), ResourcesError> {
    match config.builtin.as_str() {
        "workplace" => {
            let workplace = Workplace::new(config.tables.as_deref())?;
            serve_asking(config, workplace, listeners, shutdown).await
        }
        name if BUILT_IN.contains(&name) && config.tables.is_some() => {
            Err(ResourcesError::NoTables { name: config.builtin })
        }
        "counter" => serve_asking(config, Counter, listeners, shutdown).await,
        "synonyms" => serve_asking(config, Synonyms, listeners, shutdown).await,
        "weather" => serve_asking(config, Weather, listeners, shutdown).await,
        _ => Err(ResourcesError::UnknownEnvironment { name: config.builtin }),
    }
}

/// With the fault that its work asks first, if it is set.
async fn serve_asking<E: Environment>(
    config: ResourcesConfig,
    environment: E,
    listeners: Listeners,
    shutdown: Shutdown,
) -> Result<(), ResourcesError> {
    match config.work_asks.clone() {
        None => serve_environment(config, environment, listeners, shutdown).await,
        Some(url) => serve_environment(config, Asking::new(environment, &url)?, listeners, shutdown).await,
    }
}

/// Serves one replica of an environment of one's own until `shutdown`; `builtin` is not looked at.
pub async fn serve_environment<E: Environment>(
    config: ResourcesConfig,
    environment: E,
    listeners: Listeners,
    shutdown: Shutdown,
) -> Result<(), ResourcesError> {
    let common = &config.common;
    let gate = common.gate();
    let settings = Settings {
        mode: config.mode.unwrap_or(environment.mode()),
        verify: config.verify.unwrap_or(environment.verify_mode()),
        shared: config.shared || environment.shared(),
        session_ttl: config.session_ttl,
        restore_seeds_anew: config.restore_seeds_anew,
    };
    let effects = config.effect_log.as_deref().map(EffectLog::new).transpose()?;
    let (server, options) = common.server();
    let owner = Arc::new(Resources::new(gate.clone(), environment, settings, effects));
    let participant = Participant::new(options, gate, owner.clone(), Members::default());
    if let Some(ttl) = settings.session_ttl {
        let (owner, ended) = (owner.clone(), shutdown.clone());
        tokio::spawn(async move { ended.run_until_cancelled(expire_sessions(owner, ttl)).await });
    }
    let data = ResourcesServer::new(DataService(owner))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let server = server.data(data).control(participant.into_service());
    Ok(server.run(listeners, shutdown).await?)
}
