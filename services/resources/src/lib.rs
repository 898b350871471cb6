//! The resources server.

pub mod environment;
pub mod environments;
