//! Writes a records file in one pass.

use std::{
    collections::HashSet,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use belay_core::ids::Digest;
use belay_proto::record as pb;

use super::{RecordToWrite, ShardHeader, footer};
use crate::{crash_safe::TempFile, error::StoreError, format::Format, frame, fs::FileSystem, wire};

/// Bytes gathered before they are hashed and written: large enough for BLAKE3 and the disk, whatever the records' size.
const BUFFER: usize = 1 << 20;

/// A records file that is written, and has no true name yet.
pub struct WrittenRecords<'a> {
    /// The file, not synced.
    pub file: TempFile<'a>,
    /// BLAKE3 of all of it.
    pub digest: Digest,
    /// Its bytes.
    pub bytes: u64,
    /// Its records.
    pub records: u64,
}

/// Writes all records to a new temporary file in `dir`. `stop` is looked at before each record.
pub fn write_records<'a>(
    fs: &'a dyn FileSystem,
    dir: &Path,
    header: &ShardHeader,
    records: &mut dyn Iterator<Item = RecordToWrite>,
    stop: &AtomicBool,
) -> Result<WrittenRecords<'a>, StoreError> {
    let mut out = Output::new(TempFile::create(fs, dir, "records")?);
    out.frame(&header_message(header), || "the header".into())?;
    let mut index = pb::FileIndex::default();
    let mut seen = HashSet::new();
    for record in records {
        if stop.load(Ordering::Acquire) {
            return Err(StoreError::Stopped { path: dir.into() });
        }
        let episode = wire::episode_to(&record.episode);
        let offset = out.offset;
        let message = pb::Record {
            episode: Some(episode.clone()),
            execution: record.execution.to_string(),
            payload: record.payload,
        };
        out.frame(&message, || format!("the record of {}", record.episode))?;
        index.entries.push(pb::IndexEntry {
            episode: Some(episode),
            offset,
            length: out.offset - offset,
        });
        if let Some(twice) = seen.replace(record.episode) {
            return Err(StoreError::Request(format!(
                "two records of {twice} in one capture of {}: each episode has one",
                header.instance
            )));
        }
    }
    let index_offset = out.offset;
    out.frame(&index, || "the index".into())?;
    out.put(&footer(index_offset, out.offset - index_offset))?;
    out.finish(index.entries.len() as u64)
}

fn header_message(header: &ShardHeader) -> pb::FileHeader {
    pb::FileHeader {
        format_major: Format::CURRENT.major,
        format_minor: Format::CURRENT.minor,
        instance: Some(wire::instance_to(&header.instance)),
        incarnation: header.incarnation.to_string(),
        checkpoint_id: header.id.to_string(),
    }
}

/// Gathers, hashes and counts on the way to the file.
struct Output<'a> {
    file: TempFile<'a>,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
    message: Vec<u8>,
    offset: u64,
}

impl<'a> Output<'a> {
    fn new(file: TempFile<'a>) -> Self {
        Self {
            file,
            hasher: blake3::Hasher::new(),
            buffer: Vec::with_capacity(BUFFER),
            message: Vec::new(),
            offset: 0,
        }
    }

    fn frame(
        &mut self,
        message: &impl prost::Message,
        what: impl FnOnce() -> String,
    ) -> Result<(), StoreError> {
        let size = message.encoded_len() as u64;
        let mut bytes = std::mem::take(&mut self.message);
        bytes.clear();
        let head = if size <= frame::MAX_PAYLOAD {
            message.encode(&mut bytes).expect("a vector grows as it must");
            frame::head(&bytes)
        } else {
            None
        };
        let Some(head) = head else {
            return Err(StoreError::TooLarge {
                what: what(),
                size,
                limit: frame::MAX_PAYLOAD,
            });
        };
        self.put(&head)?;
        self.put(&bytes)?;
        // Kept for the next record, but not at the size of the largest.
        if bytes.capacity() <= BUFFER {
            self.message = bytes;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.offset += bytes.len() as u64;
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush()?;
        }
        if bytes.len() >= BUFFER {
            self.hasher.update(bytes);
            return self.file.write_all(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        if !self.buffer.is_empty() {
            self.hasher.update(&self.buffer);
            self.file.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    fn finish(mut self, records: u64) -> Result<WrittenRecords<'a>, StoreError> {
        self.flush()?;
        Ok(WrittenRecords {
            digest: *self.hasher.finalize().as_bytes(),
            bytes: self.offset,
            file: self.file,
            records,
        })
    }
}
