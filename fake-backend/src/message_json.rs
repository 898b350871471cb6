//! An assistant's message as OpenAI's chat JSON.

use serde_json::{Value, json};

use crate::{
    conversation::{Message, ToolCall},
    rows::Row,
};

/// The message; call ids are made from the prompt and the call's place, so the same conversation gets the same ids.
pub fn chat_message(message: &Message, row: &Row) -> Value {
    let mut json = json!({
        "role": "assistant",
        "content": if message.text.is_empty() { Value::Null } else { message.text.as_str().into() },
    });
    if !message.reasoning.is_empty() {
        json["reasoning_content"] = message.reasoning.as_str().into();
    }
    if !message.calls.is_empty() {
        let calls = message.calls.iter().enumerate();
        json["tool_calls"] = calls.map(|(at, call)| tool_call(call, at, &row.prompt)).collect();
    }
    json
}

/// One tool call.
pub fn tool_call(call: &ToolCall, at: usize, prompt: &[u32]) -> Value {
    json!({
        "id": call_id(prompt, at),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

fn call_id(prompt: &[u32], at: usize) -> String {
    let mut hasher = blake3::Hasher::new();
    for id in prompt {
        hasher.update(&id.to_le_bytes());
    }
    hasher.update(&(at as u64).to_le_bytes());
    format!("call_{}", &hasher.finalize().to_hex()[..24])
}
