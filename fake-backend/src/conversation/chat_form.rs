//! The messages and tools of an OpenAI chat body.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Conversation, Message, Role, Tool, ToolCall};
use crate::error::BackendError;

impl Conversation {
    /// Reads the messages and tools of an OpenAI chat body.
    pub fn from_chat(messages: &[ChatMessage], tools: &[Box<RawValue>]) -> Result<Self, BackendError> {
        if messages.is_empty() {
            return Err(BackendError::bad(
                "messages",
                "is empty: send at least one message",
            ));
        }
        Ok(Self {
            tools: tools
                .iter()
                .map(|tool| read_tool(tool))
                .collect::<Result<_, _>>()?,
            messages: messages
                .iter()
                .enumerate()
                .map(read_message)
                .collect::<Result<_, _>>()?,
        })
    }
}

#[derive(Deserialize)]
struct ToolDefinition {
    function: Option<FunctionName>,
    name: Option<String>,
}

#[derive(Deserialize)]
struct FunctionName {
    name: String,
}

pub(super) fn tool_name(definition: &str) -> Option<String> {
    let tool: ToolDefinition = serde_json::from_str(definition).ok()?;
    tool.function.map(|f| f.name).or(tool.name)
}

fn read_tool(raw: &RawValue) -> Result<Tool, BackendError> {
    let name = tool_name(raw.get())
        .ok_or_else(|| BackendError::bad("tools", "has an entry without function.name"))?;
    Ok(Tool {
        name,
        definition: raw.get().to_owned(),
    })
}

/// One message of a chat body.
#[derive(Deserialize, Debug)]
pub struct ChatMessage {
    role: String,
    #[serde(default)]
    content: Option<Content>,
    #[serde(default, alias = "reasoning")]
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<ChatToolCall>>,
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize, Debug)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

#[derive(Deserialize, Debug)]
struct ChatToolCall {
    function: ChatFunction,
}

#[derive(Deserialize, Debug)]
struct ChatFunction {
    name: String,
    arguments: String,
}

fn read_message((at, message): (usize, &ChatMessage)) -> Result<Message, BackendError> {
    let role = match message.role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            return Err(BackendError::bad(
                format!("messages[{at}].role"),
                format!("is {other:?}, which is none of system, developer, user, assistant, tool"),
            ));
        }
    };
    let text = match &message.content {
        None => String::new(),
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            let mut whole = String::new();
            for part in parts {
                match &part.text {
                    Some(text) => whole.push_str(text),
                    None => {
                        return Err(BackendError::bad(
                            format!("messages[{at}].content"),
                            format!("has a part of type {:?}: this engine reads text alone", part.kind),
                        ));
                    }
                }
            }
            whole
        }
    };
    let calls = message.tool_calls.iter().flatten().map(|call| ToolCall {
        name: call.function.name.clone(),
        arguments: call.function.arguments.clone(),
    });
    Ok(Message {
        role,
        text,
        reasoning: message.reasoning_content.clone().unwrap_or_default(),
        calls: calls.collect(),
    })
}
