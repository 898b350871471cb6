//! The mesh's own promises, over real sockets.

mod calling;
mod load;
mod serving;
mod support;
mod telemetry;
mod tls;
