//! The episodes of an environment: their steps, their boundaries, and the table that says where each one stands.
//!
//! | module | what |
//! | --- | --- |
//! | [`step`] | the steps of a `single_agent_turn` episode, and what a checkpoint may do while one runs |
//! | [`boundary`] | which step is next, and all that it needs: an immutable value |
//! | [`work`] | what a Run asks for, what it comes to, how long it may take |
//! | [`table`] | every episode that was admitted and is not forgotten |
//! | [`admission`] | what a Run gets: started, joined, claimed, replied to or refused |
//! | [`snapshot`] | what a checkpoint takes, and the partition |

pub mod admission;
pub mod boundary;
pub mod snapshot;
pub mod step;
pub mod table;
#[cfg(test)]
mod tests;
pub mod work;

pub use admission::{Admission, Expect, Look, Request};
pub use boundary::{AgentOutcome, Boundary, SeededParts, StepDone, Verdict};
pub use snapshot::{SavedEpisode, Snapshot};
pub use step::{Step, StepMode};
pub use table::{Episodes, Freed, Restored};
pub use work::{Deadline, Finished, Life, Work};
