//! The coordinator.

pub mod error;
pub mod journal;
