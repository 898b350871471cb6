//! Reads a records file: the digest of the whole first, then what is wanted, by index.

use std::path::{Path, PathBuf};

use belay_core::ids::Episode;
use belay_proto::record as pb;
use bytes::Bytes;
use prost::Message;

use super::{FOOTER, StoredRecord, footer};
use crate::{
    error::StoreError,
    format::Format,
    frame,
    fs::{FileSystem, ReadableFile},
    manifest::Manifest,
    wire,
};

/// Bytes read at once while the digest is taken.
const CHUNK: usize = 1 << 20;

/// An open records file whose digest is the manifest's.
pub struct RecordsReader {
    file: Box<dyn ReadableFile>,
    path: PathBuf,
    index: Vec<Entry>,
}

struct Entry {
    episode: Episode,
    offset: u64,
    length: u64,
}

impl RecordsReader {
    /// Opens the file that a manifest names, in the manifest's directory, and checks that it is that file, whole.
    pub fn open(fs: &dyn FileSystem, dir: &Path, manifest: &Manifest) -> Result<Self, StoreError> {
        let path = dir.join(manifest.records_name());
        let file = fs.open(&path).map_err(StoreError::read(&path))?;
        check_whole(file.as_ref(), &path, manifest)?;
        check_header(file.as_ref(), &path, manifest)?;
        let index = read_index(file.as_ref(), &path, manifest)?;
        Ok(Self { file, path, index })
    }

    /// Calls `each` with the wanted records, in the order of the file. Reads nothing of the others.
    pub fn for_each(
        &self,
        wanted: &dyn Fn(&Episode) -> bool,
        each: &mut dyn FnMut(StoredRecord),
    ) -> Result<(), StoreError> {
        for entry in self.index.iter().filter(|entry| wanted(&entry.episode)) {
            each(self.record(entry)?);
        }
        Ok(())
    }

    fn record(&self, entry: &Entry) -> Result<StoredRecord, StoreError> {
        let invalid =
            |what: String| StoreError::invalid(&self.path, format!("at offset {}: {what}", entry.offset));
        let message: pb::Record = read_message(self.file.as_ref(), &self.path, entry.offset, entry.length)?;
        let episode = wire::episode_from(message.episode).map_err(|r| invalid(r.message))?;
        if episode != entry.episode {
            return Err(invalid(format!(
                "the record is of {episode}, and the index says {}",
                entry.episode
            )));
        }
        let execution = message
            .execution
            .parse()
            .map_err(|r: belay_core::refusal::Refusal| invalid(r.message))?;
        Ok(StoredRecord {
            episode,
            execution,
            payload: message.payload,
        })
    }
}

fn check_whole(file: &dyn ReadableFile, path: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    let size = file.size().map_err(StoreError::read(path))?;
    if size != manifest.bytes {
        return Err(StoreError::invalid(
            path,
            format!("is {size} bytes long, and its manifest says {}", manifest.bytes),
        ));
    }
    let mut hasher = blake3::Hasher::new();
    let mut chunk = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK))];
    let mut offset = 0;
    while offset < size {
        let length = usize::try_from(size - offset).map_or(CHUNK, |left| left.min(CHUNK));
        let part = &mut chunk[..length];
        file.read_exact_at(part, offset).map_err(StoreError::read(path))?;
        hasher.update(part);
        offset += length as u64;
    }
    if *hasher.finalize().as_bytes() != manifest.records_digest {
        return Err(StoreError::invalid(
            path,
            format!("is altered: {}", what_differs(file, path, size)),
        ));
    }
    Ok(())
}

/// Looks for the first frame that is not right, so that the message can say where.
fn what_differs(file: &dyn ReadableFile, path: &Path, size: u64) -> String {
    let end = size.saturating_sub(FOOTER as u64);
    let mut offset = 0;
    while offset < end {
        let whole = frame::length_at(file, path, offset)
            .ok()
            .filter(|length| *length <= end - offset)
            .and_then(|length| frame::read(file, path, offset, length).ok().map(|_| length));
        let Some(length) = whole else {
            return format!("the first frame that is not right begins at offset {offset}");
        };
        offset += length;
    }
    "its digest is not the one in its name, though every frame is right".into()
}

fn check_header(file: &dyn ReadableFile, path: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    let length = frame::length_at(file, path, 0)?;
    if length > manifest.bytes {
        return Err(StoreError::invalid(path, "has no header"));
    }
    let header: pb::FileHeader = read_message(file, path, 0, length)?;
    Format {
        major: header.format_major,
        minor: header.format_minor,
    }
    .check(path)?;
    let same = header.instance == Some(wire::instance_to(&manifest.instance))
        && header.incarnation == manifest.incarnation.to_string()
        && header.checkpoint_id == manifest.id.to_string();
    if same {
        Ok(())
    } else {
        Err(StoreError::invalid(
            path,
            format!(
                "is foreign: its header names checkpoint {:?} and incarnation {:?}, and its manifest {} and {}",
                header.checkpoint_id, header.incarnation, manifest.id, manifest.incarnation
            ),
        ))
    }
}

fn read_index(file: &dyn ReadableFile, path: &Path, manifest: &Manifest) -> Result<Vec<Entry>, StoreError> {
    let wrong = |what: &str| StoreError::invalid(path, what);
    let footer_offset = manifest
        .bytes
        .checked_sub(FOOTER as u64)
        .ok_or_else(|| wrong("is cut short"))?;
    let mut bytes = [0; FOOTER];
    file.read_exact_at(&mut bytes, footer_offset)
        .map_err(StoreError::read(path))?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let (offset, length) = (word(0), word(8));
    if footer(offset, length) != bytes || offset.checked_add(length) != Some(footer_offset) {
        return Err(wrong("has no index where its end says"));
    }
    let index: pb::FileIndex = read_message(file, path, offset, length)?;
    if index.entries.len() as u64 != manifest.records {
        return Err(StoreError::invalid(
            path,
            format!(
                "has {} records in its index, and its manifest says {}",
                index.entries.len(),
                manifest.records
            ),
        ));
    }
    let mut after = 0;
    index
        .entries
        .into_iter()
        .map(|entry| {
            let end = entry.offset.checked_add(entry.length);
            if entry.offset < after || end.is_none_or(|end| end > offset) {
                return Err(wrong("has an index that leads out of the file"));
            }
            after = entry.offset + entry.length;
            Ok(Entry {
                episode: wire::episode_from(entry.episode)
                    .map_err(|r| StoreError::invalid(path, r.message))?,
                offset: entry.offset,
                length: entry.length,
            })
        })
        .collect()
}

fn read_message<M: Message + Default>(
    file: &dyn ReadableFile,
    path: &Path,
    offset: u64,
    length: u64,
) -> Result<M, StoreError> {
    // Decoded from `Bytes`, so that a payload is a view of the frame and not a copy.
    let payload = Bytes::from(frame::read(file, path, offset, length)?);
    M::decode(payload).map_err(|error| {
        StoreError::invalid(
            path,
            format!("is whole, but not what its format asks for at offset {offset} ({error})"),
        )
    })
}
