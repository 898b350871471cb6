//! What `/metrics` says: one registry a process, in OpenMetrics text.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _, text},
    metrics::gauge::{ConstGauge, Gauge},
    registry::Registry,
};

/// The process's metrics. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// With `belay_up` and the process's files and memory, each labelled with the instance and the version.
    pub fn new(instance: &str) -> Self {
        let labels = [
            ("instance".into(), instance.to_owned().into()),
            ("version".into(), env!("CARGO_PKG_VERSION").into()),
        ];
        let mut registry = Registry::with_labels(labels.into_iter());
        let up = Gauge::<i64>::default();
        up.set(1);
        registry.register("belay_up", "The process runs", up);
        registry.register_collector(Box::new(Process));
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

/// What the operating system says of this process, read at each scrape. Where there is no /proc it says nothing.
#[derive(Debug)]
struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let values = [
            ("process_open_fds", "Open files and connections", open_files()),
            ("process_max_fds", "The most that may be open", limit),
            ("process_resident_memory_bytes", "Memory in use", resident_bytes()),
        ];
        for (name, help, value) in values {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

fn open_files() -> Option<u64> {
    // The listing itself is one of them.
    let listed = std::fs::read_dir("/proc/self/fd").ok()?.count() as u64;
    Some(listed.saturating_sub(1))
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
