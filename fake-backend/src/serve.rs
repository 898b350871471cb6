//! One port for gRPC and HTTP, until the end of the process.

use std::time::Duration;

use belay_mesh::shutdown::Shutdown;
use belay_proto::worker::{
    inference_worker_server::InferenceWorkerServer, token_store_server::TokenStoreServer,
};
use tokio::net::TcpListener;
use tonic::{
    service::Routes,
    transport::{Server, server::TcpIncoming},
};

use crate::{
    engine::{BackendConfig, Engine},
    grpc::WorkerService,
    http,
};

/// What may be sent at once: a prompt of a long conversation, a cut of many calls.
const MESSAGE_LIMIT: usize = 64 << 20;
/// Many small calls at once on one connection need room, or HTTP/2 ends the connection.
const WINDOW: u32 = 16 << 20;
/// How long open calls may take to end at a shutdown.
const DRAIN: Duration = Duration::from_secs(5);

/// Why the engine cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The transport ended.
    #[error("the engine's server ended: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// The reflection service cannot be made.
    #[error("the descriptors of the contracts cannot be read: {0}; this is a defect of the build")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves a bound listener until `shutdown`.
pub async fn serve(
    config: BackendConfig,
    listener: TcpListener,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
    let engine = Engine::new(config, shutdown.clone());
    let worker = WorkerService::new(engine.clone());
    let descriptors = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(belay_proto::FILE_DESCRIPTOR_SET)
            .with_service_name("belay.worker.v1.InferenceWorker")
            .with_service_name("belay.worker.v1.TokenStore")
    };
    let http = http::router(engine, MESSAGE_LIMIT);
    let grpc = Routes::from(http)
        .add_service(
            InferenceWorkerServer::new(worker.clone())
                .max_decoding_message_size(MESSAGE_LIMIT)
                .max_encoding_message_size(MESSAGE_LIMIT),
        )
        .add_service(TokenStoreServer::new(worker).max_encoding_message_size(MESSAGE_LIMIT))
        .add_service(descriptors().build_v1()?)
        .add_service(descriptors().build_v1alpha()?);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = Server::builder()
        .accept_http1(true)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(WINDOW)
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .add_routes(grpc)
        .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
    let drained = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        ended = server => Ok(ended?),
        () = drained => {
            tracing::warn!("calls were still open {DRAIN:?} after the shutdown began; they are cut off");
            Ok(())
        }
    }
}
