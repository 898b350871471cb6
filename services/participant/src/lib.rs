//! The checkpoint control plane of a server, written once: core and store behind gRPC, with a few functions to fill in.

pub mod gate;
pub mod owner;
pub mod participant;

pub use gate::{Gate, GateOptions, Permit};
pub use owner::{Capture, CapturedPart, EncodeRecord, StateOwner};
pub use participant::Participant;
