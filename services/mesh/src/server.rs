//! The server builder: listeners, limits, health, reflection, metrics, TLS and the drain, set in one place.
//!
//! A server of the mesh has two ports. The control port never shares a listener with episode calls, so thousands of parked
//! calls cannot starve a resume. A layer that is to see every call of every server (faults, authorization) goes into
//! [`MeshServer::run`].

use std::{convert::Infallible, time::Duration};

use axum::{Router, http::header, response::IntoResponse, routing::get};
use belay_core::ids::Instance;
use tokio::net::TcpListener;
use tonic::{
    body::Body,
    server::NamedService,
    service::Routes,
    transport::{Server, ServerTlsConfig, server::TcpIncoming},
};
use tonic_health::{ServingStatus, server::HealthReporter};
use tower::Service;

use crate::{
    channel::{KEEPALIVE, WINDOW},
    metrics::Metrics,
    shutdown::Shutdown,
    telemetry,
};

/// The largest message, in bytes, both ways: a session, a list of a hundred thousand episodes.
pub const MAX_MESSAGE: usize = 256 * 1024 * 1024;

/// Episode calls on one connection: long ones park by the thousand.
const DATA_STREAMS: u32 = 100_000;

/// How long open calls may go on once the end is asked for.
const DRAIN: Duration = Duration::from_secs(5);

/// Bound before anything else starts, so that the addresses can be printed.
pub struct Listeners {
    /// The episode API.
    pub data: TcpListener,
    /// The control plane.
    pub control: TcpListener,
}

/// Why a server could not start or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error(
        "the {port} address {address} cannot be bound ({source}); stop what holds it, or choose another with --{port}"
    )]
    Bind {
        /// `data`, `control` or `listen`.
        port: &'static str,
        /// As it was asked for.
        address: String,
        /// The system's word.
        source: std::io::Error,
    },
    /// The transport ended.
    #[error("the {port} port's server ended: {message}")]
    Transport {
        /// `data`, `control` or `listen`.
        port: &'static str,
        /// What it said.
        message: String,
    },
}

/// Binds one address, `host:port`; port 0 takes a free one. `port` is the flag that chose it.
pub async fn bind(port: &'static str, address: &str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Bind {
            port,
            address: address.into(),
            source,
        })
}

impl Listeners {
    /// Binds both. `host:port`; port 0 takes a free one.
    pub async fn bind(data: &str, control: &str) -> Result<Self, ServeError> {
        Ok(Self {
            data: bind("data", data).await?,
            control: bind("control", control).await?,
        })
    }

    /// What was bound: the data and the control address.
    pub fn addresses(&self) -> std::io::Result<(std::net::SocketAddr, std::net::SocketAddr)> {
        Ok((self.data.local_addr()?, self.control.local_addr()?))
    }
}

/// Says through gRPC health whether the server serves.
#[derive(Clone)]
pub struct HealthHandle {
    reporter: HealthReporter,
}

impl HealthHandle {
    /// SERVING or NOT_SERVING, for the whole server (the service named "").
    pub async fn serving(&self, serving: bool) {
        let status = if serving {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        self.reporter.set_service_status("", status).await;
    }
}

/// A server of the mesh, before it runs.
pub struct MeshServer {
    data: Routes,
    control: Routes,
    health: HealthHandle,
    metrics: Metrics,
    tls: Option<ServerTlsConfig>,
}

impl MeshServer {
    /// With health (NOT_SERVING until told otherwise), reflection and `/metrics` on the control port.
    pub fn new(instance: &Instance) -> Self {
        Self::named(&instance.to_string())
    }

    /// For a process that is no participant: the coordinator, an engine.
    pub fn named(name: &str) -> Self {
        let (reporter, health_service) = tonic_health::server::health_reporter();
        let control = with_reflection(Routes::default()).add_service(health_service);
        Self {
            data: with_reflection(Routes::default()),
            control,
            health: HealthHandle { reporter },
            metrics: Metrics::new(name),
            tls: None,
        }
    }

    /// Serves a gRPC service on the data port.
    #[must_use]
    pub fn data<S>(mut self, service: S) -> Self
    where
        S: Service<http::Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.data = self.data.add_service(service);
        self
    }

    /// Serves a gRPC service on the control port.
    #[must_use]
    pub fn control<S>(mut self, service: S) -> Self
    where
        S: Service<http::Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.control = self.control.add_service(service);
        self
    }

    /// Serves HTTP routes beside the control port's services.
    #[must_use]
    pub fn http(mut self, routes: Router) -> Self {
        let control = self.control.into_axum_router().merge(routes);
        self.control = control.into();
        self
    }

    /// TLS on both ports.
    #[must_use]
    pub fn tls(mut self, tls: Option<ServerTlsConfig>) -> Self {
        self.tls = tls;
        self
    }

    /// To say whether it serves.
    pub fn health(&self) -> HealthHandle {
        self.health.clone()
    }

    /// To count with.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Serves both ports until `shutdown`, then drains for a few seconds at most.
    pub async fn run(self, listeners: Listeners, shutdown: Shutdown) -> Result<(), ServeError> {
        self.health.serving(false).await;
        let control = with_metrics(self.control, self.metrics);
        let control = serve(
            "control",
            listeners.control,
            control,
            None,
            self.tls.clone(),
            shutdown.clone(),
        );
        let data = serve(
            "data",
            listeners.data,
            self.data,
            Some(DATA_STREAMS),
            self.tls,
            shutdown.clone(),
        );
        let ended = tokio::try_join!(control, data).map(|_| ());
        shutdown.cancel();
        ended
    }

    /// Serves the control services and HTTP routes on one port until `shutdown`: for a process with a single port.
    pub async fn run_single(self, listener: TcpListener, shutdown: Shutdown) -> Result<(), ServeError> {
        let routes = with_metrics(self.control, self.metrics);
        serve("listen", listener, routes, Some(DATA_STREAMS), self.tls, shutdown).await
    }
}

async fn serve(
    port: &'static str,
    listener: TcpListener,
    routes: Routes,
    streams: Option<u32>,
    tls: Option<ServerTlsConfig>,
    shutdown: Shutdown,
) -> Result<(), ServeError> {
    let transport = |error: tonic::transport::Error| ServeError::Transport {
        port,
        message: chain(&error),
    };
    let mut server = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(streams)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .accept_http1(true)
        .trace_fn(|request| telemetry::server_span(request.uri().path(), request.headers()));
    if let Some(tls) = tls {
        server = server.tls_config(tls).map_err(transport)?;
    }
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let running = server
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
    tokio::select! {
        ended = running => ended.map_err(transport),
        () = async { shutdown.cancelled().await; tokio::time::sleep(DRAIN).await } => {
            tracing::warn!(port, "calls were still open {DRAIN:?} after the end was asked for; they are dropped");
            Ok(())
        }
    }
}

fn with_metrics(routes: Routes, metrics: Metrics) -> Routes {
    let text = move || {
        let metrics = metrics.clone();
        async move {
            let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, content_type)], metrics.encode())
        }
    };
    routes.into_axum_router().route("/metrics", get(text)).into()
}

/// Reflection in both versions, with the descriptors of the error details: older clients need v1alpha and both.
fn with_reflection(routes: Routes) -> Routes {
    let configure = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(belay_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // The descriptors are compiled in: a test builds them once, so these cannot fail at run time.
    let routes = match configure().build_v1() {
        Ok(service) => routes.add_service(service),
        Err(_) => routes,
    };
    match configure().build_v1alpha() {
        Ok(service) => routes.add_service(service),
        Err(_) => routes,
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
