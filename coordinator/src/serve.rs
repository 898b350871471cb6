//! The coordinator as a process: one port for its service, gRPC health, reflection and metrics.

use std::time::Duration;

use belay_mesh::{
    server::{MAX_MESSAGE, MeshServer},
    shutdown::Shutdown,
};
use belay_proto::checkpoint::coordinator_server::CoordinatorServer;
use tokio::{net::TcpListener, time::timeout};

use crate::{coordinator::CoordinatorConfig, error::CoordinatorError, grpc::Service, keeper, start};

/// What the keeper is doing when the end is asked for may take so long.
const KEEPER_BOUND: Duration = Duration::from_secs(5);

/// Starts, and serves until `shutdown`; or ends with an error when a newer coordinator is heard of. A run that is open when the
/// process ends is brought to its end by the next start.
pub async fn serve(
    config: CoordinatorConfig,
    listener: TcpListener,
    shutdown: Shutdown,
) -> Result<(), CoordinatorError> {
    let tls = config.tls.clone();
    let coordinator = start::start(config).await?;
    let stop = shutdown.child_token();
    let keeper = tokio::spawn(keeper::keep(coordinator.clone(), stop.clone()));
    let service = CoordinatorServer::new(Service(coordinator.clone()))
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let server = MeshServer::named("coordinator").tls(tls).control(service);
    server.health().serving(true).await;
    let served = tokio::select! {
        served = server.run_single(listener, stop.clone()) => served.map_err(CoordinatorError::from),
        () = coordinator.superseded.token().cancelled() => Ok(()),
    };
    stop.cancel();
    if timeout(KEEPER_BOUND, keeper).await.is_err() {
        tracing::warn!("the coordinator's keeper did not end in time");
    }
    coordinator.end()?;
    served
}
