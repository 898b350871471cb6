//! A Responses request as a chat-completions body.

use bytes::Bytes;

use super::{
    ChatError,
    items::Messages,
    raw::{RawObject, array, is_string, quoted},
};

/// A chat-completions body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatRequest {
    /// Its fields in order, each value raw JSON.
    fields: Vec<(&'static str, String)>,
    /// A grammar constrains the reply (a response format, a forced tool): a generation that goes on after a cut prefix would start
    /// its grammar again at the root, so it is not cut.
    pub constrained: bool,
}

impl ChatRequest {
    /// Adds a field; the value is JSON.
    pub fn push(&mut self, name: &'static str, value: impl Into<String>) {
        self.fields.push((name, value.into()));
    }

    /// The body.
    pub fn to_bytes(&self) -> Bytes {
        let mut body = String::from("{");
        for (index, (name, value)) in self.fields.iter().enumerate() {
            if index > 0 {
                body.push(',');
            }
            body.push('"');
            body.push_str(name);
            body.push_str("\":");
            body.push_str(value);
        }
        body.push('}');
        body.into()
    }
}

/// Fields that mean the same in both forms.
const SAME: [&str; 8] = [
    "temperature",
    "top_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "parallel_tool_calls",
    "user",
];

/// Converts a request. `model` is the engine's name for its model and goes before the request's own.
pub fn to_chat(request: &[u8], model: Option<&str>) -> Result<ChatRequest, ChatError> {
    let json = std::str::from_utf8(request)
        .map_err(|_| ChatError::new("request", "is not UTF-8, so it is not JSON"))?;
    let request = RawObject::parse("request", json)?;
    for stored in ["previous_response_id", "conversation"] {
        if request.get(stored).is_some() {
            return Err(ChatError::new(
                stored,
                "no conversation is stored here; send all of it as `input`",
            ));
        }
    }
    let mut chat = ChatRequest {
        fields: Vec::new(),
        constrained: false,
    };
    if let Some(model) = model.map(quoted).or_else(|| request.get("model").map(Into::into)) {
        chat.push("model", model);
    }
    chat.push("messages", messages(&request)?);
    let tools = tools(&request)?;
    if !tools.is_empty() {
        chat.push("tools", format!("[{}]", tools.join(",")));
        if let Some((choice, forced)) = tool_choice(&request)? {
            chat.push("tool_choice", choice);
            chat.constrained |= forced;
        }
    }
    for name in SAME {
        // An engine refuses the field when there are no tools.
        if name == "parallel_tool_calls" && tools.is_empty() {
            continue;
        }
        if let Some(value) = request.get(name) {
            chat.push(name, value);
        }
    }
    if let Some(limit) = request.get("max_output_tokens") {
        chat.push("max_tokens", limit);
    }
    if let Some(format) = response_format(&request)? {
        chat.push("response_format", format);
        chat.constrained = true;
    }
    Ok(chat)
}

fn messages(request: &RawObject<'_>) -> Result<String, ChatError> {
    let mut messages = Messages::default();
    if let Some(instructions) = request.get("instructions") {
        if !is_string(instructions) {
            return Err(ChatError::new("instructions", "is not a string"));
        }
        messages.push("system", instructions);
    }
    let input = request.need("request", "input")?;
    if is_string(input) {
        messages.push("user", input);
    } else {
        for (index, item) in array("input", input)?.into_iter().enumerate() {
            messages.item(&format!("input[{index}]"), item)?;
        }
    }
    Ok(messages.finish())
}

/// Flat tools become nested ones; all keys but `type` move into `function` as they are.
fn tools(request: &RawObject<'_>) -> Result<Vec<String>, ChatError> {
    let Some(tools) = request.get("tools") else {
        return Ok(Vec::new());
    };
    let mut nested = Vec::new();
    for (index, json) in array("tools", tools)?.into_iter().enumerate() {
        let field = format!("tools[{index}]");
        let tool = RawObject::parse(&field, json)?;
        let kind = tool.word(&field, "type")?;
        if kind.as_deref() != Some("function") {
            return Err(ChatError::new(
                format!("{field}.type"),
                format!(
                    "{:?} is not \"function\"; other tools run outside the mesh",
                    kind.unwrap_or_default()
                ),
            ));
        }
        tool.need(&field, "name")?;
        let function: Vec<String> = tool
            .entries()
            .filter(|(key, _)| *key != "type")
            .map(|(key, value)| format!("{}:{value}", quoted(key)))
            .collect();
        nested.push(format!(
            r#"{{"type":"function","function":{{{}}}}}"#,
            function.join(",")
        ));
    }
    Ok(nested)
}

/// The choice in its chat form, and whether it forces a tool.
fn tool_choice(request: &RawObject<'_>) -> Result<Option<(String, bool)>, ChatError> {
    let Some(json) = request.get("tool_choice") else {
        return Ok(None);
    };
    if is_string(json) {
        return match request.word("request", "tool_choice")?.as_deref() {
            Some("auto" | "none") => Ok(Some((json.into(), false))),
            Some("required") => Ok(Some((json.into(), true))),
            other => Err(ChatError::new(
                "tool_choice",
                format!("{:?} is not one of auto, none, required", other.unwrap_or("")),
            )),
        };
    }
    let choice = RawObject::parse("tool_choice", json)?;
    let name = choice.need("tool_choice", "name")?;
    Ok(Some((
        format!(r#"{{"type":"function","function":{{"name":{name}}}}}"#),
        true,
    )))
}

/// `text.format`; plain text needs none.
fn response_format(request: &RawObject<'_>) -> Result<Option<String>, ChatError> {
    let Some(text) = request.get("text") else {
        return Ok(None);
    };
    let Some(json) = RawObject::parse("text", text)?.get("format") else {
        return Ok(None);
    };
    let format = RawObject::parse("text.format", json)?;
    match format.word("text.format", "type")?.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(r#"{"type":"json_object"}"#.into())),
        Some("json_schema") => {
            let inner: Vec<String> = format
                .entries()
                .filter(|(key, _)| *key != "type")
                .map(|(key, value)| format!("{}:{value}", quoted(key)))
                .collect();
            Ok(Some(format!(
                r#"{{"type":"json_schema","json_schema":{{{}}}}}"#,
                inner.join(",")
            )))
        }
        other => Err(ChatError::new(
            "text.format.type",
            format!(
                "{:?} is not one of text, json_object, json_schema",
                other.unwrap_or("")
            ),
        )),
    }
}
