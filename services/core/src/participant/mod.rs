//! The participant: the state owner's side of a checkpoint (protocol section 3), as a plain value.
//!
//! [`Machine`] takes calls and times, replies or refuses, and leaves [`Effect`]s for its driver. It knows no thread, no
//! task and no clock: `now` is the time since the process started, on a clock that never goes back. What takes long (a
//! capture's write, the reading of shards, the stopping of an attempt) is the driver's; the machine is told how it went.
//!
//! | file | what |
//! | --- | --- |
//! | `phase` | the phases and their legal moves |
//! | `lease` | how long a closed participant waits for its coordinator |
//! | `marks` | which attempts are refused |
//! | `ended` | how earlier runs ended |
//! | `admission` | counted work, the door |
//! | `machine` | all of it together: what is held, fence, Join, time |
//! | `data_calls` | what data calls ask |
//! | `view` | what Status shows, and what must always hold |
//! | `checkpoint` | Prepare, Renew, Commit, Await |
//! | `resume` | Resume, Settle, every way in which a run ends |
//! | `restore` | Restore |
//! | `retire` | Retire, Forget |
//! | `refuse` | the words of refusals |
//!
//! A call that needs the owner comes in two halves, both in one turn of control calls: the first half says what to do
//! ([`CommitTurn::Capture`], [`ResumeTurn::Activate`], [`SettleTurn::Drop`]), the second takes the result. Between the two
//! the driver lets no other control call in, and the machine admits nothing.

mod admission;
mod calls;
mod checkpoint;
mod data_calls;
mod ended;
mod lease;
mod machine;
mod marks;
mod open_clock;
mod phase;
mod refuse;
mod restore;
mod resume;
mod retire;
mod view;

pub use admission::PermitId;
pub use calls::{
    Captured, Commit, CommitReport, CommitTurn, Decision, Effect, Fence, Join, MarkList, Outcome, Prepare,
    PrepareProgress, PrepareReport, Restore, RestoreReport, RestoreTurn, ResumeTurn, Settle, SettleTurn,
    Shard, Unsettled, View, Waiting,
};
pub use ended::{Durable, Ending, REMEMBERED, Resumed};
pub use machine::{Admit, DEFAULT_BLOCKERS, Machine, MachineOptions};
pub use marks::{MANY_MARKS, Marks};
pub use phase::{LEGAL, Phase};
