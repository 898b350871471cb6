//! One port for gRPC and HTTP, until the end of the process.

use belay_mesh::{
    server::{MAX_MESSAGE, MeshServer, ServeError},
    shutdown::Shutdown,
};
use belay_proto::worker::{
    inference_worker_server::InferenceWorkerServer, token_store_server::TokenStoreServer,
};
use tokio::net::TcpListener;

use crate::{
    engine::{BackendConfig, Engine},
    grpc::WorkerService,
    http,
};

/// Serves a bound listener until `shutdown`.
pub async fn serve(
    config: BackendConfig,
    listener: TcpListener,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
    let tls = config.tls.clone();
    let engine = Engine::new(config, shutdown.clone());
    let worker = WorkerService::new(engine.clone());
    let server = MeshServer::named("fake-backend")
        .control(
            InferenceWorkerServer::new(worker.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        )
        .control(
            TokenStoreServer::new(worker)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        )
        .http(http::router(engine, MAX_MESSAGE))
        .tls(tls);
    server.health().set(true);
    server.run_single(listener, shutdown).await
}
