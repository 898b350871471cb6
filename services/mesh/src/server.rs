//! The server builder: limits, health, reflection, metrics, TLS, layers and the drain, set in one place.
//!
//! A server of the mesh has two ports. The control port never shares a listener with episode calls, so thousands of parked
//! calls cannot starve a resume. A layer that is to see every call of every server (as faults do) goes into `serve`.

mod health;
mod listeners;
mod reflection;

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
use tonic_health::{pb::health_server, server::HealthReporter};
use tower::Service;

pub use self::{
    health::HealthHandle,
    listeners::{Listeners, ServeError, bind},
};
use crate::{
    channel::{KEEPALIVE, WINDOW},
    fault::{CallFault, FaultLayer},
    metrics::Metrics,
    shutdown::Shutdown,
    telemetry,
};

/// The largest message, in bytes, both ways: a session, a list of a hundred thousand episodes.
pub const MAX_MESSAGE: usize = 256 * 1024 * 1024;

/// Episode calls on one connection: long ones park by the thousand.
const DATA_STREAMS: u32 = 100_000;

/// How long open calls may go on once the end is asked for, where nothing else is said.
const DRAIN: Duration = Duration::from_secs(5);

/// A server of the mesh, before it runs.
pub struct MeshServer {
    data: Port,
    control: Port,
    health: HealthHandle,
    reporter: HealthReporter,
    metrics: Metrics,
    options: Options,
}

/// What one port serves.
#[derive(Default)]
struct Port {
    routes: Routes,
    services: Vec<&'static str>,
}

/// What both ports have in common.
#[derive(Clone)]
struct Options {
    tls: Option<ServerTlsConfig>,
    faults: FaultLayer,
    drain: Duration,
}

impl Port {
    fn add<S>(&mut self, service: S)
    where
        S: Service<http::Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.services.push(S::NAME);
        self.routes = std::mem::take(&mut self.routes).add_service(service);
    }

    fn merge(&mut self, routes: Router) {
        self.routes = std::mem::take(&mut self.routes)
            .into_axum_router()
            .merge(routes)
            .into();
    }
}

impl MeshServer {
    /// With health (NOT_SERVING until told otherwise) and `/metrics` on the control port, and reflection on both.
    pub fn new(instance: &Instance) -> Self {
        Self::named(&instance.to_string())
    }

    /// For a process that is no participant: the coordinator, an engine.
    pub fn named(name: &str) -> Self {
        let (reporter, health_service) = tonic_health::server::health_reporter();
        let mut control = Port::default();
        control.add(health_service);
        Self {
            data: Port::default(),
            control,
            health: HealthHandle::new(),
            reporter,
            metrics: Metrics::new(name),
            options: Options {
                tls: None,
                faults: FaultLayer::default(),
                drain: DRAIN,
            },
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
        self.data.add(service);
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
        self.control.add(service);
        self
    }

    /// Serves HTTP routes beside the control port's services.
    #[must_use]
    pub fn http(mut self, routes: Router) -> Self {
        self.control.merge(routes);
        self
    }

    /// TLS on both ports.
    #[must_use]
    pub fn tls(mut self, tls: Option<ServerTlsConfig>) -> Self {
        self.options.tls = tls;
        self
    }

    /// Deliberate faults of incoming calls, on both ports.
    #[must_use]
    pub fn faults(mut self, faults: &[CallFault]) -> Self {
        self.options.faults = FaultLayer::new(faults);
        self
    }

    /// How long open calls may go on once the end is asked for; 5 s where it is not said.
    #[must_use]
    pub fn drain(mut self, limit: Duration) -> Self {
        self.options.drain = limit;
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

    /// Serves both ports until `shutdown`, then drains: calls that are open may go on for a few seconds.
    pub async fn run(self, listeners: Listeners, shutdown: Shutdown) -> Result<(), ServeError> {
        let health = self
            .health
            .report(self.reporter, self.data.services.clone(), shutdown.clone());
        let control = finish_control(self.control, self.metrics)?;
        let data = reflection::with_reflection(self.data.routes, &self.data.services)?;
        let control = serve(
            "control",
            listeners.control,
            control,
            None,
            self.options.clone(),
            shutdown.clone(),
        );
        let data = serve(
            "data",
            listeners.data,
            data,
            Some(DATA_STREAMS),
            self.options,
            shutdown.clone(),
        );
        tokio::select! {
            // First: whoever asks is told what was said before the start.
            biased;
            never = health => match never {},
            ended = async { tokio::try_join!(control, data) } => {
                shutdown.cancel();
                ended.map(|_| ())
            }
        }
    }

    /// Serves the control services and HTTP routes on one port until `shutdown`: for a process with a single port.
    pub async fn run_single(self, listener: TcpListener, shutdown: Shutdown) -> Result<(), ServeError> {
        let own = |name: &&str| *name != health_server::SERVICE_NAME;
        let services = self.control.services.iter().copied().filter(own).collect();
        let health = self.health.report(self.reporter, services, shutdown.clone());
        let routes = finish_control(self.control, self.metrics)?;
        let served = serve(
            "listen",
            listener,
            routes,
            Some(DATA_STREAMS),
            self.options,
            shutdown,
        );
        tokio::select! {
            biased;
            never = health => match never {},
            ended = served => ended,
        }
    }
}

async fn serve(
    port: &'static str,
    listener: TcpListener,
    routes: Routes,
    streams: Option<u32>,
    options: Options,
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
        // A caller that drops thousands of calls at once must not lose the others on its connection.
        .http2_max_pending_accept_reset_streams(Some(DATA_STREAMS as usize))
        .http2_max_local_error_reset_streams(Some(DATA_STREAMS as usize))
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .accept_http1(true)
        .trace_fn(|request| telemetry::server_span(request.uri().path(), request.headers()))
        .layer(options.faults);
    if let Some(tls) = options.tls {
        server = server.tls_config(tls).map_err(transport)?;
    }
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let running = server
        .add_routes(routes)
        .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
    let drained = async {
        shutdown.cancelled().await;
        tokio::time::sleep(options.drain).await;
    };
    tokio::select! {
        ended = running => ended.map_err(transport),
        () = drained => {
            tracing::warn!(port, "calls were still open {:?} after the end was asked for; they are dropped", options.drain);
            Ok(())
        }
    }
}

/// Reflection and `/metrics` beside what the control port serves.
fn finish_control(control: Port, metrics: Metrics) -> Result<Routes, ServeError> {
    let text = move || {
        let metrics = metrics.clone();
        async move {
            let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, content_type)], metrics.encode())
        }
    };
    let mut control = Port {
        routes: reflection::with_reflection(control.routes, &control.services)?,
        ..control
    };
    control.merge(Router::new().route("/metrics", get(text)));
    Ok(control.routes)
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
