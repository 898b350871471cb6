//! The end of a process: one token that everything watches.

pub use tokio_util::sync::CancellationToken as Shutdown;
