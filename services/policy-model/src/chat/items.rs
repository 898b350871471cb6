//! Responses items as chat messages.

use super::{
    ChatError,
    raw::{RawObject, array, is_array, is_string},
};

/// The messages of a chat request, as they grow.
#[derive(Default)]
pub(super) struct Messages {
    done: Vec<String>,
    /// The assistant's message that function calls still belong to.
    open: Option<Assistant>,
}

struct Assistant {
    content: String,
    calls: Vec<String>,
}

impl Messages {
    /// A message with content that is chat-form JSON already.
    pub(super) fn push(&mut self, role: &str, content: &str) {
        self.close();
        if role == "assistant" {
            self.open = Some(Assistant {
                content: content.into(),
                calls: Vec::new(),
            });
        } else {
            self.done
                .push(format!(r#"{{"role":"{role}","content":{content}}}"#));
        }
    }

    /// One Responses item.
    pub(super) fn item(&mut self, field: &str, json: &str) -> Result<(), ChatError> {
        let item = RawObject::parse(field, json)?;
        // The short form of a message has a role and no type.
        let kind = item.word(field, "type")?.unwrap_or_else(|| "message".into());
        match kind.as_str() {
            "message" => self.message(field, &item),
            "function_call" => self.function_call(field, &item),
            "function_call_output" => {
                self.close();
                let id = item.need(field, "call_id")?;
                let output = content(&format!("{field}.output"), item.need(field, "output")?)?;
                self.done.push(format!(
                    r#"{{"role":"tool","tool_call_id":{id},"content":{output}}}"#
                ));
                Ok(())
            }
            // What a model thought is not given back to it.
            "reasoning" => Ok(()),
            other => Err(ChatError::new(
                format!("{field}.type"),
                format!("{other:?} is not one of message, function_call, function_call_output, reasoning"),
            )),
        }
    }

    fn message(&mut self, field: &str, item: &RawObject<'_>) -> Result<(), ChatError> {
        let role = item.word(field, "role")?;
        let role = match role.as_deref() {
            Some("developer" | "system") => "system",
            Some("user") => "user",
            Some("assistant") => "assistant",
            other => {
                return Err(ChatError::new(
                    format!("{field}.role"),
                    format!(
                        "{:?} is not one of user, assistant, system, developer",
                        other.unwrap_or("")
                    ),
                ));
            }
        };
        let content = content(&format!("{field}.content"), item.need(field, "content")?)?;
        self.push(role, &content);
        Ok(())
    }

    /// All function calls of one reply, and its text, are one message.
    fn function_call(&mut self, field: &str, item: &RawObject<'_>) -> Result<(), ChatError> {
        let id = item.need(field, "call_id")?;
        let name = item.need(field, "name")?;
        let arguments = item.need(field, "arguments")?;
        let open = self.open.get_or_insert_with(|| Assistant {
            content: "null".into(),
            calls: Vec::new(),
        });
        open.calls.push(format!(
            r#"{{"id":{id},"type":"function","function":{{"name":{name},"arguments":{arguments}}}}}"#
        ));
        Ok(())
    }

    fn close(&mut self) {
        if let Some(Assistant { content, calls }) = self.open.take() {
            self.done.push(if calls.is_empty() {
                format!(r#"{{"role":"assistant","content":{content}}}"#)
            } else {
                format!(
                    r#"{{"role":"assistant","content":{content},"tool_calls":[{}]}}"#,
                    calls.join(",")
                )
            });
        }
    }

    /// The JSON array.
    pub(super) fn finish(mut self) -> String {
        self.close();
        format!("[{}]", self.done.join(","))
    }
}

/// Content in its chat form: a string stays what it is; parts become chat parts, and a single text part a string.
fn content(field: &str, json: &str) -> Result<String, ChatError> {
    if is_string(json) {
        return Ok(json.into());
    }
    if !is_array(json) {
        return Err(ChatError::new(
            field,
            "is neither a string nor an array of content parts",
        ));
    }
    let mut parts = Vec::new();
    let mut texts = Vec::new();
    for (index, json) in array(field, json)?.into_iter().enumerate() {
        let field = format!("{field}[{index}]");
        let part = RawObject::parse(&field, json)?;
        let kind = part.word(&field, "type")?;
        parts.push(match kind.as_deref() {
            Some("input_text" | "output_text" | "text") => {
                let text = part.need(&field, "text")?;
                texts.push(text);
                format!(r#"{{"type":"text","text":{text}}}"#)
            }
            Some("refusal") => format!(
                r#"{{"type":"refusal","refusal":{}}}"#,
                part.need(&field, "refusal")?
            ),
            Some("input_image") => {
                let url = part.need(&field, "image_url")?;
                match part.get("detail") {
                    Some(detail) => {
                        format!(r#"{{"type":"image_url","image_url":{{"url":{url},"detail":{detail}}}}}"#)
                    }
                    None => format!(r#"{{"type":"image_url","image_url":{{"url":{url}}}}}"#),
                }
            }
            other => {
                return Err(ChatError::new(
                    format!("{field}.type"),
                    format!(
                        "{:?} is not one of input_text, output_text, refusal, input_image",
                        other.unwrap_or("")
                    ),
                ));
            }
        });
    }
    match (&parts[..], &texts[..]) {
        ([_], [text]) if is_string(text) => Ok((*text).into()),
        _ => Ok(format!("[{}]", parts.join(","))),
    }
}
