//! Logs, spans and the trace context that travels with each call. Spans go out only where an exporter is configured.

use std::{
    io::IsTerminal as _,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use opentelemetry::{
    global,
    propagation::{Extractor, Injector},
    trace::TracerProvider as _,
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tonic::metadata::{MetadataKey, MetadataMap};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::{
    EnvFilter, Layer as _, Registry, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// What is logged and where spans go.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryOptions {
    /// A collector's OTLP gRPC address, for example `http://127.0.0.1:4317`. Unset: no spans.
    pub otlp: Option<String>,
    /// What is logged, as `tracing` filters are written. RUST_LOG overrides it.
    pub log: Option<String>,
}

/// Spans are on: the context travels, each call gets a span. Off, a call costs nothing for it.
static TRACING: AtomicBool = AtomicBool::new(false);

const DEFAULT_FILTER: &str = "warn,belay=info";
const FLUSH_LIMIT: Duration = Duration::from_secs(3);

/// Ends the exporter when it is dropped.
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("telemetry: {what} ({source}); see [telemetry] in mesh.toml")]
pub struct TelemetryError {
    what: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl Telemetry {
    /// Sets the process's logs and spans up, once. `service` names the process in spans.
    pub fn start(service: &str, options: &TelemetryOptions) -> Result<Self, TelemetryError> {
        let wanted = options.log.as_deref().unwrap_or(DEFAULT_FILTER);
        let filter = EnvFilter::try_from_default_env()
            .or_else(|_| EnvFilter::try_new(wanted))
            .map_err(|source| TelemetryError {
                what: format!("{wanted:?} is not a log filter"),
                source: source.into(),
            })?;
        let logs = tracing_subscriber::fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_filter(filter);
        let provider = options
            .otlp
            .as_deref()
            .map(|address| exporter(service, address))
            .transpose()?;
        let spans = provider.as_ref().map(|provider| {
            tracing_opentelemetry::layer()
                .with_tracer(provider.tracer("belay"))
                .with_filter(tracing_subscriber::filter::LevelFilter::INFO)
        });
        // A second start in one process (a test) keeps the first one's subscriber.
        let _ = Registry::default().with(spans).with(logs).try_init();
        if provider.is_some() {
            enable_propagation();
        }
        Ok(Self { provider })
    }
}

/// Lets the trace context travel with each call.
pub fn enable_propagation() {
    global::set_text_map_propagator(TraceContextPropagator::new());
    TRACING.store(true, Ordering::Relaxed);
}

fn exporter(service: &str, address: &str) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(address)
        .build()
        .map_err(|source| TelemetryError {
            what: format!("the collector at {address:?} cannot be used"),
            source: source.into(),
        })?;
    let resource = Resource::builder().with_service_name(service.to_owned()).build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .build())
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(provider) = self.provider.take() {
            // A collector that does not answer must not hold up the end; its exporter blocks, so it gets a thread.
            let flush = std::thread::spawn(move || provider.shutdown_with_timeout(FLUSH_LIMIT));
            if !matches!(flush.join(), Ok(Ok(()))) {
                tracing::warn!("the last spans could not be sent");
            }
        }
    }
}

/// Installs the cryptography that TLS uses, once, before the first channel or listener.
pub fn install_crypto() {
    // A second installation keeps the first.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Puts the current span's context into outgoing metadata.
pub(crate) fn inject_context(metadata: &mut MetadataMap) {
    if !TRACING.load(Ordering::Relaxed) {
        return;
    }
    let context = Span::current().context();
    global::get_text_map_propagator(|propagator| {
        propagator.inject_context(&context, &mut Outgoing(metadata));
    });
}

/// The span of an incoming call, a child of the caller's.
pub(crate) fn server_span(path: &str, headers: &http::HeaderMap) -> Span {
    if !TRACING.load(Ordering::Relaxed) {
        return Span::none();
    }
    let parent = global::get_text_map_propagator(|propagator| propagator.extract(&Incoming(headers)));
    let span = tracing::info_span!(
        "call",
        otel.name = path.trim_start_matches('/'),
        otel.kind = "server"
    );
    // Fails only where no span layer listens, and then nobody misses the parent.
    let _ = span.set_parent(parent);
    span
}

struct Outgoing<'a>(&'a mut MetadataMap);

impl Injector for Outgoing<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(key), Ok(value)) = (key.parse::<MetadataKey<_>>(), value.parse()) {
            self.0.insert(key, value);
        }
    }
}

struct Incoming<'a>(&'a http::HeaderMap);

impl Extractor for Incoming<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
