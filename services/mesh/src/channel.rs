//! Channels to other processes: one place sets windows, limits, keepalive, TLS and the trace context.

use tonic::{service::interceptor::InterceptedService, transport::Channel};

/// A channel that carries the caller's W3C trace context.
pub type MeshChannel = InterceptedService<Channel, InjectContext>;

/// Puts the current span's context into outgoing metadata.
#[derive(Clone, Default, Debug)]
pub struct InjectContext;

impl tonic::service::Interceptor for InjectContext {
    fn call(&mut self, request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        Ok(request)
    }
}

/// The channels of one process, by address. Cheap to clone. Connects lazily and reconnects by itself.
#[derive(Clone)]
pub struct Channels;

impl Channels {
    /// For long calls that may park: data ports. `address` is `host:port`.
    pub fn data(&self, _address: &str) -> MeshChannel {
        todo!()
    }

    /// For control calls: never shares a connection with data calls.
    pub fn control(&self, _address: &str) -> MeshChannel {
        todo!()
    }
}
