//! Small JSON files that carry their own checksum.
//!
//! A sealed file is one JSON object whose last member is `"checksum"`: BLAKE3, in hexadecimal, over every byte before that
//! member. The checksum is taken of the bytes as they lie there, so a reader that does not know a field checks it all the same.

use std::path::Path;

use belay_core::ids::hex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{error::StoreError, format::Format};

const SEAL: &str = ",\"checksum\":\"";
const END: &str = "\"}\n";
const SEAL_LENGTH: usize = SEAL.len() + 64 + END.len();

#[derive(Deserialize)]
struct Head {
    format: Format,
}

/// The bytes of a sealed file.
pub fn seal(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(value).expect("the store's own structs are JSON objects");
    assert_eq!(bytes.pop(), Some(b'}'), "a sealed value is a JSON object");
    let digest = blake3::hash(&bytes);
    bytes.extend_from_slice(SEAL.as_bytes());
    bytes.extend_from_slice(hex(digest.as_bytes()).as_bytes());
    bytes.extend_from_slice(END.as_bytes());
    bytes
}

/// A sealed file whose checksum holds and whose format is known.
pub struct Unsealed<'a> {
    path: &'a Path,
    bytes: &'a [u8],
}

/// Checks checksum and format, in this order: an altered file is never taken for a newer one, unless its seal is another.
pub fn unseal<'a>(path: &'a Path, bytes: &'a [u8]) -> Result<Unsealed<'a>, StoreError> {
    let head = |bytes| serde_json::from_slice::<Head>(bytes);
    if !seal_holds(bytes) {
        // A newer format may be sealed in another way.
        if let Ok(Head { format }) = head(bytes) {
            format.check(path)?;
        }
        return Err(StoreError::invalid(
            path,
            "is cut short or altered: its checksum does not match its content",
        ));
    }
    let unsealed = Unsealed { path, bytes };
    let Head { format } = unsealed.parse()?;
    format.check(path)?;
    Ok(unsealed)
}

fn seal_holds(bytes: &[u8]) -> bool {
    let Some((body, seal)) = bytes
        .len()
        .checked_sub(SEAL_LENGTH)
        .and_then(|at| bytes.split_at_checked(at))
    else {
        return false;
    };
    let expected = format!("{SEAL}{}{END}", hex(blake3::hash(body).as_bytes()));
    seal == expected.as_bytes()
}

impl Unsealed<'_> {
    /// The content. Unknown fields are passed over.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, StoreError> {
        serde_json::from_slice(self.bytes).map_err(|error| {
            StoreError::invalid(
                self.path,
                format!("is whole, but not what its format asks for ({error})"),
            )
        })
    }
}
