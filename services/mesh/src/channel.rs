//! Channels to other processes: one place sets windows, limits, keepalive, TLS and the trace context.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use belay_core::refusal::{Reason, Refusal};
use tonic::{
    Request, Status,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, ClientTlsConfig, Endpoint},
};

use crate::{status, telemetry};

/// A channel that carries the caller's W3C trace context.
pub type MeshChannel = InterceptedService<Channel, Outgoing>;

/// What happens to a call before it leaves: it gets the current span's context, or a refusal where the channel's address is
/// none.
#[derive(Clone, Default, Debug)]
pub struct Outgoing {
    unusable: Option<Arc<str>>,
}

impl Interceptor for Outgoing {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(why) = &self.unusable {
            return Err(status::to_status(&Refusal::new(
                Reason::InvalidRequest,
                why.as_ref(),
            )));
        }
        telemetry::inject_context(request.metadata_mut());
        Ok(request)
    }
}

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
        match self.endpoint(address) {
            Ok(endpoint) => InterceptedService::new(endpoint.connect_lazy(), Outgoing::default()),
            // Nobody waits for a channel, so its calls say it.
            Err(why) => {
                let unusable = Some(why.into());
                let nowhere = Endpoint::from_static("http://0.0.0.0").connect_lazy();
                InterceptedService::new(nowhere, Outgoing { unusable })
            }
        }
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint, String> {
        check_address(address)?;
        let scheme = if self.options.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| format!("{address:?} is not an address: {error}"))?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        match &self.options.tls {
            Some(tls) => endpoint
                .tls_config(tls.clone())
                .map_err(|error| format!("the TLS of the channel to {address} cannot be set up: {error}")),
            None => Ok(endpoint),
        }
    }
}

/// The rule of every address: `host:port`. Says what is wrong with it.
pub fn check_address(address: &str) -> Result<(), String> {
    let port = address
        .parse::<http::uri::Authority>()
        .ok()
        .filter(|authority| !authority.host().is_empty() && !address.contains('@'))
        .and_then(|authority| authority.port_u16());
    match port {
        Some(_) => Ok(()),
        None => Err(format!(
            "{address:?} is not an address: host:port, for example 127.0.0.1:7000"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        for good in ["127.0.0.1:0", "[::1]:7000", "belay-agent-0.belay:7001"] {
            assert_eq!(check_address(good), Ok(()));
        }
        for bad in [
            "",
            "127.0.0.1",
            ":7000",
            "a b:1",
            "a:70000",
            "http://a:1",
            "u@a:1",
            "a:1/x",
        ] {
            let message = check_address(bad).unwrap_err();
            assert!(message.contains(&format!("{bad:?}")), "{message}");
        }
    }
}
