//! Checkpoints on disk (protocol section 5): files that are there whole or not at all, and that say so when they are not.
//!
//! | module | what |
//! | --- | --- |
//! | [`fs`] | the few operations of a file system that a checkpoint needs, as a trait |
//! | [`crash_safe`] | the vocabulary: a synced directory, a file that is published once |
//! | [`format`](mod@format) | the version of the format |
//! | [`frame`] | length, CRC32C, payload |
//! | [`records`] | a participant's records file: written in one pass, read by index |
//! | [`sealed`] | small JSON files that carry their own checksum |
//! | [`manifest`] | what makes a participant's share of a checkpoint durable |
//! | [`checkpoint_file`] | `checkpoint.json`: the decision, or its tombstone |
//! | [`store`] | the directory of a deployment's checkpoints |
//! | [`error`] | what can go wrong, and what to do |
//! | [`testing`] | a file system that fails when told to |
//!
//! Every call blocks: an asynchronous caller uses a thread for it.

pub mod checkpoint_file;
pub mod crash_safe;
pub mod error;
pub mod format;
pub mod frame;
pub mod fs;
mod hex_serde;
pub mod manifest;
pub mod records;
pub mod sealed;
pub mod store;
pub mod testing;
mod wire;

pub use checkpoint_file::{CheckpointFile, ControllerStateRef, Decided, SavedEpisode, ShardRef, Tombstone};
pub use error::StoreError;
pub use format::Format;
pub use records::{RecordToWrite, ShardHeader, StoredRecord};
pub use store::{CheckpointStore, Published};
