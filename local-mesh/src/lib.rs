//! A mesh of processes on this machine: spec, start, kill, wait for the exit, last log lines.
//!
//! `belay up`, `belay demo` and the end-to-end tests bring their meshes up with it. Nothing in it sleeps: it waits for ready
//! lines, exits and answers, each with a bound.

pub mod error;
pub mod logs;
pub mod mesh;
pub mod process;
pub mod ready;
pub mod spec;

pub use error::LocalMeshError;
pub use mesh::LocalMesh;
pub use process::{Died, Exit};
pub use spec::Spec;
