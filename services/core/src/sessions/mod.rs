//! The sessions of a resources server (protocol 3.4, resources).
//!
//! A session is seeded once, and then changed by tool calls, one after another. The table keeps every reply of the latest
//! turn by operation and digest, so that a call whose reply was lost can be made again: it gets the same reply and is not
//! applied twice, before and after a restore. The state itself is the environment's: an immutable value that is cheap to
//! clone (an `Arc`), so that a capture copies references.
//!
//! ```text
//!   seed ──> idle ──begin──> in flight ──finish──> idle (revision + 1, reply kept) ──close──> closed
//!              ^                 │
//!              └─────abort───────┘        retire: idle and closed are freed at once, in flight when its call ends
//! ```
//!
//! A closed session leaves its execution behind until retire or forget: a seed that arrives late, after its episode is
//! over, must not make a session that nobody will ever close. So does one that expired: nobody called it for the server's
//! time to live, where that is set.

mod lifetime;
mod session;
mod table;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

pub use session::{Applied, Begin, KeptReply, SessionView, call_digest};
pub use table::{RestoredSession, Sessions};
