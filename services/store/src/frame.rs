//! Frames: length (u32), CRC32C over length and payload (u32), payload; numbers little-endian.

use std::path::Path;

use crate::{error::StoreError, fs::ReadableFile};

/// Bytes before the payload.
pub const HEAD: u64 = 8;

/// The longest payload.
pub const MAX_PAYLOAD: u64 = u32::MAX as u64;

/// What goes before a payload. `None` when it is too long for a frame.
pub fn head(payload: &[u8]) -> Option<[u8; HEAD as usize]> {
    let length = u32::try_from(payload.len()).ok()?.to_le_bytes();
    let mut head = [0; HEAD as usize];
    head[..4].copy_from_slice(&length);
    head[4..].copy_from_slice(&checksum(length, payload).to_le_bytes());
    Some(head)
}

/// The length is under the checksum too, so that a run of zeros is no empty frame.
fn checksum(length: [u8; 4], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&length), payload)
}

/// Reads the frame of exactly `length` bytes at `offset`, of a file that is at least `offset + length` long.
pub fn read(file: &dyn ReadableFile, path: &Path, offset: u64, length: u64) -> Result<Vec<u8>, StoreError> {
    let altered = |what: &str| StoreError::invalid(path, format!("is altered at offset {offset}: {what}"));
    let (Some(payload_length), Ok(size)) = (length.checked_sub(HEAD), usize::try_from(length)) else {
        return Err(altered("no frame has that length"));
    };
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, offset)
        .map_err(StoreError::read(path))?;
    let (length, crc) = split_head(&bytes);
    if u64::from(u32::from_le_bytes(length)) != payload_length {
        return Err(altered("the frame's length is not the one in the index"));
    }
    if checksum(length, &bytes[HEAD as usize..]) != crc {
        return Err(altered("the frame's checksum does not match its content"));
    }
    bytes.drain(..HEAD as usize);
    Ok(bytes)
}

/// The length, head included, of the frame at `offset`, unchecked.
pub fn length_at(file: &dyn ReadableFile, path: &Path, offset: u64) -> Result<u64, StoreError> {
    let mut bytes = [0; HEAD as usize];
    file.read_exact_at(&mut bytes, offset)
        .map_err(StoreError::read(path))?;
    let (length, _) = split_head(&bytes);
    Ok(HEAD + u64::from(u32::from_le_bytes(length)))
}

fn split_head(bytes: &[u8]) -> ([u8; 4], u32) {
    let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    (word(0), u32::from_le_bytes(word(4)))
}
