//! The pure part of Belay: every decision of the protocol, without I/O and without a clock.
//!
//! Each module is a state machine or a value of the protocol's vocabulary: an event comes in, a new state and effects come
//! out, times and ids arrive in the events. Drivers in the other crates own sockets, clocks and disks. Nothing here knows
//! tokio, tonic or the wire form.
//!
//! | module | what |
//! | --- | --- |
//! | [`agent`] | an agent's sessions and their loop |
//! | [`calls`] | a policy model's calls: kept replies, cuts, what a capture takes |
//! | [`coordinator`] | a checkpoint's and a restore's decisions (protocol 4) |
//! | [`episode`] | an environment's episodes: steps, boundaries, admission, the partition |
//! | [`ids`] | rollouts, episodes, executions, operations, instances, checkpoint ids |
//! | [`invariants`] | names for what must always hold (protocol 6) |
//! | [`ledger`] | the capture ledger: rows in a chain |
//! | [`participant`] | the state owner's side of a checkpoint: phases, admission, lease, marks |
//! | [`parts`] | modes, cursors, what a capture holds, where an episode stands |
//! | [`placement`] | where a rollout's parts live |
//! | [`refusal`] | the reasons a call is refused for (protocol 3.3) |
//! | [`sessions`] | the sessions of a resources server: seeds, calls, kept replies |

pub mod agent;
pub mod calls;
pub mod coordinator;
pub mod episode;
pub mod ids;
pub mod invariants;
pub mod ledger;
pub mod participant;
pub mod parts;
pub mod placement;
pub mod refusal;
pub mod sessions;
