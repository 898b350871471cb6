//! The coordinator's decisions (protocol 4): what is asked of whom in which order, what of a capture is whole, where a
//! restore puts things, and how a run ends.
//!
//! | module | what |
//! | --- | --- |
//! | [`orders`] | which kinds of server are asked together, in which order |
//! | [`budget`] | what a stage may take of a run's time |
//! | [`attempts`] | marks, attempts handed out, what is forgotten; their version |
//! | [`closure`] | which captured episodes are whole |
//! | [`partition`] | where every admitted episode stands |
//! | [`plan`] | a restore's attempts, executions and places |
//! | [`checkpoint_run`] | a run of checkpoint, from begin to its end |
//! | [`restore_run`] | a run of restore, from begin to its end |
//! | [`opening`] | whether a mesh may open by itself |

pub mod attempts;
pub mod budget;
pub mod checkpoint_run;
pub mod closure;
pub mod opening;
pub mod orders;
pub mod partition;
pub mod plan;
pub mod restore_run;
#[cfg(test)]
mod test_support;
