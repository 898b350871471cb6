//! The agent server.
