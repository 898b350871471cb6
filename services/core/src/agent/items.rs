//! Responses items as raw JSON.
//!
//! An item is looked into, never taken apart and put together again: what goes back to the model is the bytes that it wrote.

use std::fmt;

use bytes::Bytes;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, Visitor},
};
use serde_json::value::RawValue;

/// A tool call in a model's reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FunctionCall {
    /// Raw JSON: it is written into the output's envelope as it is.
    pub call_id: Bytes,
    /// The tool's name. `None`: the model gave none.
    pub name: Option<String>,
    /// The arguments as the model wrote them. `None`: the model gave none, or not as a string.
    pub arguments: Option<Bytes>,
}

impl FunctionCall {
    /// What is wrong with it, for the model to read; `None` if it can be made: it has a name, and its arguments are a JSON object.
    pub fn malformed(&self) -> Option<String> {
        let Some(name) = &self.name else {
            return Some("this function call has no name, so no tool was called".to_owned());
        };
        let wrong = match &self.arguments {
            None => "it has no arguments",
            Some(arguments) if !is_object(arguments) => "its arguments are not a JSON object",
            Some(_) => return None,
        };
        Some(format!(
            "the tool {name} was not called: {wrong}; call it again with a JSON object"
        ))
    }
}

#[derive(Deserialize)]
struct ItemView<'a> {
    #[serde(rename = "type", borrow, default, deserialize_with = "raw")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "raw")]
    call_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "raw")]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "raw")]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ReplyView<'a> {
    #[serde(borrow)]
    output: Vec<&'a RawValue>,
}

/// A raw value that tells an explicit `null` from a field that is not there.
pub(super) fn raw<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// A JSON string's content. Bytes and not text, for a lone surrogate is legal JSON and no Unicode.
struct StringBytes(Vec<u8>);

impl<'de> Deserialize<'de> for StringBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Content;
        impl Visitor<'_> for Content {
            type Value = StringBytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_bytes<E>(self, content: &[u8]) -> Result<StringBytes, E> {
                Ok(StringBytes(content.to_vec()))
            }
            fn visit_str<E>(self, content: &str) -> Result<StringBytes, E> {
                Ok(StringBytes(content.as_bytes().to_vec()))
            }
        }
        from.deserialize_bytes(Content)
    }
}

fn content(value: Option<&RawValue>) -> Option<Vec<u8>> {
    let text = value?.get();
    // Bytes are also read from an array of numbers: only a string counts here.
    text.starts_with('"')
        .then(|| serde_json::from_str::<StringBytes>(text).ok().map(|s| s.0))?
}

/// True for one JSON object, with nothing behind it.
pub fn is_object(json: &[u8]) -> bool {
    let first = json.iter().find(|b| !b.is_ascii_whitespace());
    first == Some(&b'{') && serde_json::from_slice::<IgnoredAny>(json).is_ok()
}

/// The item's `type`, if it has one.
pub fn kind(item: &[u8]) -> Option<String> {
    let view: ItemView<'_> = serde_json::from_slice(item).ok()?;
    String::from_utf8(content(view.kind)?).ok()
}

/// The call that an item makes; `None` for other items.
pub fn function_call(item: &[u8]) -> Option<FunctionCall> {
    let view: ItemView<'_> = serde_json::from_slice(item).ok()?;
    if content(view.kind)?.as_slice() != b"function_call" {
        return None;
    }
    Some(FunctionCall {
        call_id: view.call_id.map_or(Bytes::from_static(b"\"\""), |id| {
            Bytes::copy_from_slice(id.get().as_bytes())
        }),
        name: content(view.name)
            .and_then(|name| String::from_utf8(name).ok())
            .filter(|name| !name.is_empty()),
        arguments: content(view.arguments).map(Bytes::from),
    })
}

/// The item that tells the model what a call came to.
pub fn function_call_output(call_id: &[u8], output: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(output);
    let quoted = quoted(&text);
    let mut item = Vec::with_capacity(call_id.len() + quoted.len() + 64);
    item.extend_from_slice(br#"{"type":"function_call_output","call_id":"#);
    item.extend_from_slice(call_id);
    item.extend_from_slice(br#","output":"#);
    item.extend_from_slice(quoted.as_bytes());
    item.push(b'}');
    item.into()
}

/// The output that the model reads for a call that was not made: the form of the built-in tools' errors.
pub fn error_output(message: &str) -> Bytes {
    format!(r#"{{"error":{}}}"#, quoted(message)).into()
}

/// Text as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("text has a JSON form")
}

/// The items of a Responses object's `output`, each a slice of it; or why it is none.
pub fn output_items(response: &Bytes) -> Result<Vec<Bytes>, String> {
    if !is_object(response) {
        return Err("it is not a JSON object".to_owned());
    }
    let view: ReplyView<'_> = serde_json::from_slice(response).map_err(|error| error.to_string())?;
    Ok(view
        .output
        .iter()
        .map(|item| response.slice_ref(item.get().as_bytes()))
        .collect())
}

/// The items of a JSON array, each a slice of it; or why it is none.
pub fn array_items(array: &Bytes) -> Result<Vec<Bytes>, String> {
    let items: Vec<&RawValue> = serde_json::from_slice(array).map_err(|error| error.to_string())?;
    Ok(items
        .iter()
        .map(|item| array.slice_ref(item.get().as_bytes()))
        .collect())
}
