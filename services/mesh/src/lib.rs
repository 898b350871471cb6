//! What every Belay process shares: configuration, addresses, server builder, channels, telemetry, shutdown, errors.

pub mod channel;
pub mod config;
pub mod members;
pub mod peers;
pub mod server;
pub mod shutdown;
pub mod status;
pub mod wire;
