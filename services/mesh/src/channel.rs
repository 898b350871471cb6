//! Channels to other processes: one place sets windows, limits, keepalive, TLS and the trace context.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tonic::{
    service::interceptor::InterceptedService,
    transport::{Channel, ClientTlsConfig, Endpoint},
};

pub use crate::telemetry::InjectContext;

/// A channel that carries the caller's W3C trace context.
pub type MeshChannel = InterceptedService<Channel, InjectContext>;

/// Flow-control window of streams and connections, in bytes: with the default, thousands of small calls at once end a
/// connection.
pub const WINDOW: u32 = 16 * 1024 * 1024;

/// How often a quiet connection is asked whether the peer is still there, and how long it may take to answer.
pub const KEEPALIVE: Duration = Duration::from_secs(10);

/// Connections to one data port: a connection is served by one task at each end.
const DATA_CONNECTIONS: usize = 2;

/// How long a connection may take to be made.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What all channels of a process have in common.
#[derive(Clone, Default, Debug)]
pub struct ChannelOptions {
    /// Mutual TLS; plain text where it is unset.
    pub tls: Option<ClientTlsConfig>,
}

/// The channels of one process, by address. Cheap to clone. Connects lazily and reconnects by itself.
#[derive(Clone, Default)]
pub struct Channels {
    options: Arc<ChannelOptions>,
    open: Arc<Mutex<HashMap<(Purpose, String), Pool>>>,
}

/// Calls that park and calls of the control plane never share a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Purpose {
    Data,
    Control,
}

struct Pool {
    channels: Vec<MeshChannel>,
    next: usize,
}

impl Channels {
    /// With TLS, or what else all have in common.
    pub fn new(options: ChannelOptions) -> Self {
        Self {
            options: Arc::new(options),
            open: Arc::default(),
        }
    }

    /// For long calls that may park: data ports. `address` is `host:port`.
    pub fn data(&self, address: &str) -> MeshChannel {
        self.get(Purpose::Data, address, DATA_CONNECTIONS)
    }

    /// For control calls: never shares a connection with data calls.
    pub fn control(&self, address: &str) -> MeshChannel {
        self.get(Purpose::Control, address, 1)
    }

    fn get(&self, purpose: Purpose, address: &str, connections: usize) -> MeshChannel {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = open.entry((purpose, address.to_owned())).or_insert_with(|| Pool {
            channels: (0..connections).map(|_| self.connect(address)).collect(),
            next: 0,
        });
        pool.next = (pool.next + 1) % pool.channels.len();
        pool.channels[pool.next].clone()
    }

    fn connect(&self, address: &str) -> MeshChannel {
        let scheme = if self.options.tls.is_some() {
            "https"
        } else {
            "http"
        };
        // An address that is no URI gives an endpoint that nobody answers: the call says so, with the address.
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .unwrap_or_else(|_| Endpoint::from_static("http://127.0.0.1:0"))
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        let endpoint = match &self.options.tls {
            Some(tls) => endpoint.clone().tls_config(tls.clone()).unwrap_or(endpoint),
            None => endpoint,
        };
        InterceptedService::new(endpoint.connect_lazy(), InjectContext)
    }
}
