//! The mesh's own promises, over real sockets.

#![allow(clippy::unwrap_used)]

mod calling;
mod load;
mod serving;
mod support;
mod telemetry;
mod tls;
