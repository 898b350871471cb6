//! JSON objects whose values stay raw and whose keys stay in order.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::ChatError;

/// An object: its entries as they came.
pub(super) struct RawObject<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for RawObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vec<(String, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Entries).map(RawObject)
    }
}

impl<'a> RawObject<'a> {
    pub(super) fn parse(field: &str, json: &'a str) -> Result<Self, ChatError> {
        serde_json::from_str(json).map_err(|e| ChatError::new(field, format!("is not a JSON object ({e})")))
    }

    /// The value of a key; `null` reads as not there.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.0
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value.get())
            .filter(|value| *value != "null")
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.get()))
    }

    /// A value that must be there.
    pub(super) fn need(&self, field: &str, key: &str) -> Result<&'a str, ChatError> {
        self.get(key)
            .ok_or_else(|| ChatError::new(format!("{field}.{key}"), "is missing"))
    }

    /// A value that is a plain string, such as a type or a role.
    pub(super) fn word(&self, field: &str, key: &str) -> Result<Option<String>, ChatError> {
        self.get(key)
            .map(|json| {
                serde_json::from_str(json).map_err(|_| {
                    ChatError::new(format!("{field}.{key}"), format!("{json:.60} is not a string"))
                })
            })
            .transpose()
    }
}

/// The elements of an array, raw.
pub(super) fn array<'a>(field: &str, json: &'a str) -> Result<Vec<&'a str>, ChatError> {
    let elements: Vec<&'a RawValue> = serde_json::from_str(json)
        .map_err(|e| ChatError::new(field, format!("is not a JSON array ({e})")))?;
    Ok(elements.into_iter().map(RawValue::get).collect())
}

pub(super) fn is_string(json: &str) -> bool {
    json.starts_with('"')
}

pub(super) fn is_array(json: &str) -> bool {
    json.starts_with('[')
}

/// Text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
