//! What every Belay process shares: configuration, addresses, server builder, channels, telemetry, shutdown, errors.
//!
//! | module | what, and where the next thing of its kind goes |
//! | --- | --- |
//! | [`config`] | `mesh.toml`, and the file that says where a running mesh is |
//! | [`server`] | listeners, limits, health, reflection, TLS, layers, the drain |
//! | [`channel`] | connections: windows, keepalive, TLS |
//! | [`members`], [`peers`] | who is in the mesh and where; typed clients; trying a call again |
//! | [`status`], [`wire`] | refusals and values on the wire and back |
//! | [`telemetry`], [`metrics`] | logs, spans with their context, counters |
//! | [`tls`] | certificates for both |
//! | [`fault`] | deliberate faults of incoming calls |
//! | [`limits`], [`shutdown`] | the process's limits and its end |

pub mod channel;
pub mod config;
pub mod fault;
pub mod limits;
pub mod members;
pub mod metrics;
pub mod peers;
pub mod server;
pub mod shutdown;
pub mod status;
pub mod telemetry;
pub mod tls;
pub mod wire;
