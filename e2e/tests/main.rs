//! The end-to-end suite: real processes, killed for real. docs/scenarios.md says which test shows which scenario.

#![allow(clippy::unwrap_used, missing_docs)]

mod bad_input;
mod checkpointing;
mod deadlines;
mod demo;
mod s01_crash_and_restore;
mod s02_legacy_run;
mod s03_the_reward_needs_the_session;
mod s07_no_crash;
mod s08_verify_that_replays;
mod s09_verify_that_waits;
mod s10_finishes_during_prepare;
mod s11_lost_reply;
mod s12_second_crash;
mod s13_restored_twice;
mod s14_s15_restarts_beside_saved;
mod s16_s17_retire;
mod s18_duplicates;
mod s19_slow_tool;
mod s28_reply_on_the_wire;
mod s29_one_server_alone;
mod s30_late_run;
mod s31_lost_before_the_checkpoint;
mod s32_full_disk;
mod s33_controller_state;
mod sessions;
mod workplace;
mod world;
