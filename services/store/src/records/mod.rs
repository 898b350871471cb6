//! A participant's records file: a header frame, a frame for each record, an index frame, and a footer that says where
//! the index is. Written in one pass; read by index, after the digest of the whole was checked.

mod reader;
mod writer;

use belay_core::ids::{CheckpointId, Episode, ExecutionId, Incarnation, Instance};
use bytes::Bytes;

pub use reader::RecordsReader;
pub use writer::{WrittenRecords, write_records};

/// Whose records a file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShardHeader {
    /// The checkpoint.
    pub id: CheckpointId,
    /// Whose records.
    pub instance: Instance,
    /// The process that writes them.
    pub incarnation: Incarnation,
}

/// One record, to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordToWrite {
    /// Which episode.
    pub episode: Episode,
    /// In which life.
    pub execution: ExecutionId,
    /// The owner's message.
    pub payload: Bytes,
}

/// One record, as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredRecord {
    /// Which episode.
    pub episode: Episode,
    /// In which life.
    pub execution: ExecutionId,
    /// The owner's message.
    pub payload: Bytes,
}

/// The end of a records file: offset and length of the index frame (u64 each), CRC32C of those 16 bytes (u32), magic.
const FOOTER: usize = 28;

/// The last bytes of a records file.
const MAGIC: [u8; 8] = *b"BELAYREC";

fn footer(index_offset: u64, index_length: u64) -> [u8; FOOTER] {
    let mut footer = [0; FOOTER];
    footer[..8].copy_from_slice(&index_offset.to_le_bytes());
    footer[8..16].copy_from_slice(&index_length.to_le_bytes());
    let crc = crc32c::crc32c(&footer[..16]);
    footer[16..20].copy_from_slice(&crc.to_le_bytes());
    footer[20..].copy_from_slice(&MAGIC);
    footer
}
