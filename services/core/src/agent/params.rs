//! `responses_create_params`, and the request that it becomes with a conversation.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::items;
use crate::refusal::{Reason, Refusal};

/// The parameters of a task's model calls: raw JSON, cut once around the value of `input`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Params {
    raw: Bytes,
    /// All before the value of `input`, all after it.
    head: Bytes,
    tail: Bytes,
    /// The items of `input`, without the brackets around them.
    input: Bytes,
}

#[derive(Deserialize)]
struct View<'a> {
    #[serde(borrow, default, deserialize_with = "items::raw")]
    input: Option<&'a RawValue>,
}

impl Params {
    /// Takes a raw JSON object. INVALID_REQUEST when it is none, or when its `input` is neither text nor items.
    pub fn new(raw: Bytes) -> Result<Self, Refusal> {
        let wrong = |field: &'static str, what: String| {
            Refusal::new(
                Reason::InvalidRequest,
                format!("{field} {what}; send an OpenAI Responses request"),
            )
            .with("field", field)
        };
        if !items::is_object(&raw) {
            return Err(wrong("responses_create_params", "is not a JSON object".into()));
        }
        let view: View<'_> = serde_json::from_slice(&raw)
            .map_err(|error| wrong("responses_create_params", format!("does not read: {error}")))?;
        let Some(value) = view.input else {
            return Ok(Self::without_input(raw.clone()));
        };
        let value = raw.slice_ref(value.get().as_bytes());
        let start = value.as_ptr() as usize - raw.as_ptr() as usize;
        let (head, tail) = (raw.slice(..start), raw.slice(start + value.len()..));
        let input = match value.first() {
            Some(b'[') => value.slice_ref(value[1..value.len() - 1].trim_ascii()),
            Some(b'"') => {
                let mut item = BytesMut::with_capacity(value.len() + 32);
                item.put_slice(br#"{"role":"user","content":"#);
                item.put_slice(&value);
                item.put_u8(b'}');
                item.freeze()
            }
            Some(b'n') => Bytes::new(),
            _ => {
                return Err(wrong(
                    "responses_create_params.input",
                    "is neither a string nor an array".into(),
                ));
            }
        };
        Ok(Self {
            head,
            tail,
            input,
            raw,
        })
    }

    fn without_input(raw: Bytes) -> Self {
        let brace = raw.iter().position(|b| *b == b'{').unwrap_or_default();
        let rest = raw.slice(brace + 1..);
        let more = rest.trim_ascii_start().first() != Some(&b'}');
        let mut head = BytesMut::from(&raw[..=brace]);
        head.put_slice(br#""input":"#);
        let mut tail = BytesMut::with_capacity(rest.len() + 1);
        if more {
            tail.put_u8(b',');
        }
        tail.put_slice(&rest);
        Self {
            raw,
            head: head.freeze(),
            tail: tail.freeze(),
            input: Bytes::new(),
        }
    }

    /// As they arrived.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The request of a model call: every field as it arrived, `input` followed by the conversation. The same conversation
    /// gives the same bytes, so that a call that is made again has the same digest.
    pub fn request(&self, conversation: &[Bytes]) -> Bytes {
        let length: usize = conversation.iter().map(|item| item.len() + 1).sum();
        let mut request =
            BytesMut::with_capacity(self.head.len() + self.tail.len() + self.input.len() + length + 2);
        request.put_slice(&self.head);
        request.put_u8(b'[');
        let first = std::iter::once(&self.input).filter(|input| !input.is_empty());
        for (at, item) in first.chain(conversation).enumerate() {
            if at > 0 {
                request.put_u8(b',');
            }
            request.put_slice(item);
        }
        request.put_u8(b']');
        request.put_slice(&self.tail);
        request.freeze()
    }
}
