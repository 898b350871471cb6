//! The environment server.
