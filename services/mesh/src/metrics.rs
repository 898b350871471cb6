//! What `/metrics` says: one registry a process, in OpenMetrics text.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::{encoding::text, metrics::gauge::Gauge, registry::Registry};

/// The process's metrics. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// With `belay_up`, labelled with the instance and the version.
    pub fn new(instance: &str) -> Self {
        let labels = [
            ("instance".into(), instance.to_owned().into()),
            ("version".into(), env!("CARGO_PKG_VERSION").into()),
        ];
        let mut registry = Registry::with_labels(labels.into_iter());
        let up = Gauge::<i64>::default();
        up.set(1);
        registry.register("belay_up", "The process runs", up);
        Self {
            registry: Arc::new(Mutex::new(registry)),
        }
    }

    /// Registers more.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// All of it, as text.
    pub fn encode(&self) -> String {
        let mut buffer = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = text::encode(&mut buffer, &registry) {
            tracing::error!("metrics could not be encoded: {error}");
        }
        buffer
    }
}
