//! The coordinator of a mesh: joins its servers, takes checkpoints of all rollouts in flight, and restores them.
//!
//! What is to be done next is decided in [`belay_core::coordinator`], without I/O. Here are the drivers that do it: they own
//! the calls, the clock, the journal and the checkpoint root. One thing is done at a time; whoever does it has the
//! [`Turn`](coordinator::Turn).
//!
//! | module | what |
//! | --- | --- |
//! | [`start`] | the journal, an epoch above all that was used, the end of what a coordinator before has begun |
//! | [`keeper`] | between runs: joins who is new, reopens what is closed without a run, pays what is owed |
//! | [`settle`] | what was decided is told, and tombstones that are owed are linked |
//! | [`checkpoint`] | a run of checkpoint |
//! | [`restore`] | a run of restore |
//! | [`retire`] | Retire and Forget |
//! | [`operator`] | Open, RemoveInstance, a controller's state |
//! | [`report`] | how runs and the mesh stand |
//! | [`journal`] | what was decided, crash-safe |
//! | [`catalogue`] | the checkpoints on disk |
//! | [`mesh`], [`peer`] | the members, and how they are called |
//! | [`grpc`] | the service |

pub mod catalogue;
pub mod checkpoint;
pub mod coordinator;
pub mod error;
pub mod events;
pub mod grpc;
pub mod journal;
pub mod keeper;
pub mod mesh;
pub mod operator;
pub mod peer;
pub mod report;
pub mod restore;
pub mod retire;
mod serve;
pub mod settle;
pub mod start;
pub mod superseded;
mod wire;

pub use coordinator::CoordinatorConfig;
pub use error::CoordinatorError;
pub use serve::serve;
