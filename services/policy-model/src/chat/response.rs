//! An engine's assistant message as a Responses object.

use belay_core::{
    ids::{Episode, Operation, hex},
    ledger::FinishReason,
};
use bytes::Bytes;

use super::{
    ChatError,
    raw::{RawObject, array, is_array, is_string, quoted},
};

/// What a generation came to, beside its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome<'a> {
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens sampled.
    pub output_tokens: u64,
    /// The model's name.
    pub model: &'a str,
}

/// Converts an assistant's chat message to the Responses object of this operation.
pub fn to_response(
    episode: &Episode,
    operation: Operation,
    message: &[u8],
    outcome: &Outcome<'_>,
) -> Result<Bytes, ChatError> {
    let json = std::str::from_utf8(message).map_err(|_| ChatError::new("message", "is not UTF-8"))?;
    let message = RawObject::parse("message", json)?;
    let ids = Ids::new(episode, operation);
    let calls = tool_calls(&message, &ids)?;
    let mut output = Vec::new();
    let parts = content(&message)?;
    // A reply that only calls tools has no message; one that says nothing at all has an empty one.
    if !parts.is_empty() || calls.is_empty() {
        let parts = if parts.is_empty() {
            vec![text_part("\"\"")]
        } else {
            parts
        };
        output.push(format!(
            r#"{{"type":"message","id":"{}","role":"assistant","status":"completed","content":[{}]}}"#,
            ids.make("msg", 0),
            parts.join(",")
        ));
    }
    output.extend(calls);
    let status = match outcome.finish {
        FinishReason::Stop | FinishReason::ToolCalls => r#""completed""#,
        FinishReason::Length => r#""incomplete","incomplete_details":{"reason":"max_output_tokens"}"#,
    };
    let Outcome {
        input_tokens,
        output_tokens,
        model,
        ..
    } = outcome;
    Ok(format!(
        r#"{{"id":"{}","object":"response","status":{status},"model":{},"output":[{}],"usage":{{"input_tokens":{input_tokens},"output_tokens":{output_tokens},"total_tokens":{}}}}}"#,
        ids.make("resp", 0),
        quoted(model),
        output.join(","),
        input_tokens + output_tokens,
    )
    .into())
}

fn text_part(text: &str) -> String {
    format!(r#"{{"type":"output_text","text":{text},"annotations":[]}}"#)
}

/// The message's text as content parts; empty text is none.
fn content(message: &RawObject<'_>) -> Result<Vec<String>, ChatError> {
    let mut parts = Vec::new();
    match message.get("content") {
        None | Some("\"\"") => {}
        Some(text) if is_string(text) => parts.push(text_part(text)),
        Some(json) if is_array(json) => {
            for (index, json) in array("message.content", json)?.into_iter().enumerate() {
                let field = format!("message.content[{index}]");
                parts.push(text_part(RawObject::parse(&field, json)?.need(&field, "text")?));
            }
        }
        Some(_) => {
            return Err(ChatError::new(
                "message.content",
                "is neither a string nor an array",
            ));
        }
    }
    if let Some(refusal) = message.get("refusal") {
        parts.push(format!(r#"{{"type":"refusal","refusal":{refusal}}}"#));
    }
    Ok(parts)
}

fn tool_calls(message: &RawObject<'_>, ids: &Ids) -> Result<Vec<String>, ChatError> {
    let Some(json) = message.get("tool_calls") else {
        return Ok(Vec::new());
    };
    let mut items = Vec::new();
    for (index, json) in array("message.tool_calls", json)?.into_iter().enumerate() {
        let field = format!("message.tool_calls[{index}]");
        let call = RawObject::parse(&field, json)?;
        let function_field = format!("{field}.function");
        let function = RawObject::parse(&function_field, call.need(&field, "function")?)?;
        let name = function.need(&function_field, "name")?;
        let arguments = match function.get("arguments") {
            Some(text) if is_string(text) => text.to_owned(),
            // Some engines give the object itself; no arguments are an empty object.
            Some(object) => quoted(object),
            None => quoted("{}"),
        };
        let call_id = match call.get("id") {
            Some(id) if is_string(id) && id != "\"\"" => id.to_owned(),
            _ => quoted(&ids.make("call", index)),
        };
        items.push(format!(
            r#"{{"type":"function_call","id":"{}","call_id":{call_id},"name":{name},"arguments":{arguments},"status":"completed"}}"#,
            ids.make("fc", index)
        ));
    }
    Ok(items)
}

/// Ids of one operation's response: no clock and no chance in them.
struct Ids(String);

impl Ids {
    fn new(episode: &Episode, operation: Operation) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(episode.rollout.as_str().as_bytes());
        hasher.update(&operation.turn.to_le_bytes());
        hasher.update(&operation.index.to_le_bytes());
        Self(hex(&hasher.finalize().as_bytes()[..12]))
    }

    fn make(&self, prefix: &str, position: usize) -> String {
        if position == 0 {
            format!("{prefix}_{}", self.0)
        } else {
            format!("{prefix}_{}_{position}", self.0)
        }
    }
}
