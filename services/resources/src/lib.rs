//! The resources server.
