//! The end-to-end suite: real processes, killed for real. docs/scenarios.md says which test shows which scenario.

#![allow(clippy::unwrap_used, missing_docs)]

mod bad_input;
mod demo;
mod s01_crash_and_restore;
mod s03_the_reward_needs_the_session;
mod s07_no_crash;
mod s13_restored_twice;
mod world;
