//! The checkpoint control plane of a server, written once: core and store behind gRPC, with a few functions to fill in.

mod common;
mod control;
mod convert;
pub mod gate;
mod grpc;
pub mod owner;
pub mod participant;
mod persist;
mod prepare;
mod restore;
mod resume;
mod retire;
mod shared;
mod status;

pub use common::{DEFAULT_DOOR, DEFAULT_PATIENCE, DEFAULT_RECORD_LIMIT, ServerCommon};
pub use gate::{Gate, GateOptions, Permit};
pub use owner::{Capture, CapturedPart, EncodeRecord, StateOwner};
pub use participant::{Participant, ParticipantOptions};
