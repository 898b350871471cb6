//! A conversation as the engine reads it, and its two forms: an OpenAI chat body, and the tokens of a prompt.
//!
//! The prompt reads back into the same conversation, so a prompt given as token ids (a continuation) is answered as the
//! chat was. Call ids are in neither: a tool's output belongs to the call in the same place.

mod chat_form;

pub use chat_form::ChatMessage;
use chat_form::tool_name;

use crate::tokens::{TokenId, decode, encode, marker};

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Instructions (also `developer`).
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool's output.
    Tool,
}

/// A call of a tool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// As the model wrote them: JSON, if it made no mistake.
    pub arguments: String,
}

/// What one side said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Who.
    pub role: Role,
    /// The text.
    pub text: String,
    /// An assistant's reasoning.
    pub reasoning: String,
    /// An assistant's tool calls.
    pub calls: Vec<ToolCall>,
}

/// A tool that may be called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its definition, JSON.
    pub definition: String,
}

/// Everything that the engine decides from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Conversation {
    /// What may be called.
    pub tools: Vec<Tool>,
    /// What was said, in order.
    pub messages: Vec<Message>,
}

/// A prompt split into what was said before and what was already sampled of the reply.
#[derive(Debug)]
pub struct ReadPrompt {
    /// What was said before.
    pub conversation: Conversation,
    /// Length of the prompt without the reply's tokens.
    pub reply_starts: usize,
}

impl Message {
    /// A message of text alone.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            text: text.into(),
            reasoning: String::new(),
            calls: Vec::new(),
        }
    }

    /// Appends the tokens of an assistant's message, without its begin and end.
    pub fn encode_body(&self, out: &mut Vec<TokenId>) {
        if !self.reasoning.is_empty() {
            out.push(marker::THINK);
            encode(&self.reasoning, out);
            out.push(marker::END_THINK);
        }
        encode(&self.text, out);
        for call in &self.calls {
            out.push(marker::CALL);
            // serde_json cannot fail on a string.
            let name = serde_json::Value::from(call.name.as_str()).to_string();
            encode(
                &format!("{{\"name\":{name},\"arguments\":{}}}", call.arguments),
                out,
            );
            out.push(marker::END_CALL);
        }
    }

    /// Reads an assistant's message from its tokens; a part that is not whole, as after a budget's end, reads as text.
    pub fn decode_body(ids: &[TokenId]) -> Self {
        let mut message = Self::text(Role::Assistant, "");
        let mut plain: Vec<TokenId> = Vec::new();
        let mut rest = ids.strip_suffix(&[marker::END]).unwrap_or(ids);
        while let Some((&first, after)) = rest.split_first() {
            let section = |end: TokenId| {
                let len = after.iter().position(|id| *id == end)?;
                Some((decode(&after[..len]), &after[len + 1..]))
            };
            let taken = match first {
                marker::THINK => section(marker::END_THINK).map(|(text, rest)| {
                    message.reasoning.push_str(&text);
                    rest
                }),
                marker::CALL => section(marker::END_CALL).and_then(|(body, rest)| {
                    message.calls.push(read_call(&body)?);
                    Some(rest)
                }),
                _ => None,
            };
            rest = taken.unwrap_or_else(|| {
                plain.push(first);
                after
            });
        }
        message.text = decode(&plain);
        message
    }
}

fn read_call(body: &str) -> Option<ToolCall> {
    let after_key = body.strip_prefix("{\"name\":")?;
    let mut names = serde_json::Deserializer::from_str(after_key).into_iter::<String>();
    let name = names.next()?.ok()?;
    let arguments = after_key[names.byte_offset()..]
        .strip_prefix(",\"arguments\":")?
        .strip_suffix('}')?;
    Some(ToolCall {
        name,
        arguments: arguments.to_owned(),
    })
}

impl Conversation {
    /// The prompt: every message, then the begin of the reply.
    pub fn prompt(&self) -> Vec<TokenId> {
        let mut ids = Vec::new();
        for tool in &self.tools {
            ids.push(marker::TOOL_DEFINITION);
            encode(&tool.definition, &mut ids);
            ids.push(marker::END);
        }
        for message in &self.messages {
            ids.push(match message.role {
                Role::System => marker::SYSTEM,
                Role::User => marker::USER,
                Role::Assistant => marker::ASSISTANT,
                Role::Tool => marker::TOOL,
            });
            message.encode_body(&mut ids);
            ids.push(marker::END);
        }
        ids.push(marker::ASSISTANT);
        ids
    }

    /// Reads a prompt back. One that has no begin of a reply is taken as one user's text.
    pub fn read_prompt(ids: &[TokenId]) -> ReadPrompt {
        // A reply whose end was sampled too is a prefix as well: nothing is left to sample of it.
        let begin = ids
            .iter()
            .rposition(|id| *id == marker::ASSISTANT)
            .filter(|begin| {
                let after = &ids[*begin..];
                let end = after.iter().position(|id| *id == marker::END);
                end.is_none_or(|end| end + 1 == after.len())
            });
        let Some(begin) = begin else {
            return ReadPrompt {
                conversation: Self {
                    tools: Vec::new(),
                    messages: vec![Message::text(Role::User, decode(ids))],
                },
                reply_starts: ids.len(),
            };
        };
        let mut conversation = Self::default();
        for said in ids[..begin].split(|id| *id == marker::END) {
            let Some((&first, body)) = said.split_first() else {
                continue;
            };
            let role = match first {
                marker::TOOL_DEFINITION => {
                    let definition = decode(body);
                    if let Some(name) = tool_name(&definition) {
                        conversation.tools.push(Tool { name, definition });
                    }
                    continue;
                }
                marker::SYSTEM => Role::System,
                marker::USER => Role::User,
                marker::TOOL => Role::Tool,
                marker::ASSISTANT => {
                    conversation.messages.push(Message::decode_body(body));
                    continue;
                }
                _ => {
                    conversation
                        .messages
                        .push(Message::text(Role::User, decode(said)));
                    continue;
                }
            };
            conversation.messages.push(Message::text(role, decode(body)));
        }
        ReadPrompt {
            conversation,
            reply_starts: begin + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        let call =
            (any::<String>(), any::<String>()).prop_map(|(name, arguments)| ToolCall { name, arguments });
        (
            0..4,
            any::<String>(),
            any::<String>(),
            prop::collection::vec(call, 0..3),
        )
            .prop_map(|(role, text, reasoning, calls)| match role {
                0 => Message::text(Role::System, text),
                1 => Message::text(Role::User, text),
                2 => Message::text(Role::Tool, text),
                _ => Message {
                    role: Role::Assistant,
                    text,
                    reasoning,
                    calls,
                },
            })
    }

    proptest! {
        #[test]
        fn a_prompt_reads_back_with_any_prefix_of_a_reply(
            messages in prop::collection::vec(message(), 0..5),
            reply in message(),
            cut in any::<prop::sample::Index>(),
        ) {
            let said = Conversation {
                tools: vec![Tool { name: "t".into(), definition: r#"{"function":{"name":"t"}}"#.into() }],
                messages,
            };
            let mut ids = said.prompt();
            let starts = ids.len();
            let mut body = Vec::new();
            reply.encode_body(&mut body);
            body.push(marker::END);
            ids.extend_from_slice(&body[..cut.index(body.len() + 1)]);
            let read = Conversation::read_prompt(&ids);
            prop_assert_eq!(read.conversation, said);
            prop_assert_eq!(read.reply_starts, starts);
        }

        #[test]
        fn an_assistants_message_reads_back(reply in message()) {
            let mut body = Vec::new();
            reply.encode_body(&mut body);
            let mut read = Message::decode_body(&body);
            read.role = reply.role;
            prop_assert_eq!(read, reply);
        }
    }

    #[test]
    fn a_call_that_was_cut_reads_as_text() {
        let mut whole = Message::text(Role::Assistant, "so: ");
        whole.calls.push(ToolCall {
            name: "add".into(),
            arguments: r#"{"n":1}"#.into(),
        });
        let mut ids = Vec::new();
        whole.encode_body(&mut ids);
        let cut = Message::decode_body(&ids[..ids.len() - 1]);
        assert_eq!(cut.calls, []);
        assert_eq!(cut.text, r#"so: <tool_call>{"name":"add","arguments":{"n":1}}"#);
    }
}
