//! Digests in JSON: lower-case hexadecimal, 64 characters.

use belay_core::ids::{Digest, hex};
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

/// Reads exactly what [`hex`] writes.
pub fn parse(text: &str) -> Option<Digest> {
    let nibble = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut digest = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(digest)
}

pub fn serialize<S: Serializer>(digest: &Digest, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&hex(digest))
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Digest, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| D::Error::custom("a digest is 64 hexadecimal characters"))
}

/// The same for a digest that need not be there.
pub mod option {
    use super::{Deserializer, Digest, Serializer, hex, parse};
    use serde::{Deserialize as _, de::Error as _};

    pub fn serialize<S: Serializer>(digest: &Option<Digest>, out: S) -> Result<S::Ok, S::Error> {
        match digest {
            Some(digest) => out.serialize_some(&hex(digest)),
            None => out.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Digest>, D::Error> {
        Option::<String>::deserialize(from)?
            .map(|text| parse(&text).ok_or_else(|| D::Error::custom("a digest is 64 hexadecimal characters")))
            .transpose()
    }
}

/// A cursor whose chain hash is a digest like the others.
pub mod cursor {
    use super::{Deserializer, Digest, Serializer};
    use belay_core::{ids::Operation, parts::Cursor};
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Written {
        operation: Option<Operation>,
        #[serde(default, with = "super::option")]
        chain: Option<Digest>,
        revision: u64,
    }

    pub fn serialize<S: Serializer>(cursor: &Cursor, out: S) -> Result<S::Ok, S::Error> {
        Written {
            operation: cursor.operation,
            chain: cursor.chain,
            revision: cursor.revision,
        }
        .serialize(out)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Cursor, D::Error> {
        let written = Written::deserialize(from)?;
        Ok(Cursor {
            operation: written.operation,
            chain: written.chain,
            revision: written.revision,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_hex_writes_is_read() {
        let digest: Digest = std::array::from_fn(|i| (i as u8).wrapping_mul(9));
        let text = hex(&digest);
        assert_eq!(parse(&text), Some(digest));
        for bad in [
            &text[1..],
            &text.to_uppercase(),
            &format!("{text}0"),
            &text.replace('0', "g"),
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
