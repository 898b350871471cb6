//! What the engine answers: a pure function of the conversation, so the same conversation gets the same answer in any
//! process.
//!
//! Only what was said from the last user's message on counts as done; the first rule that fits decides.
//!
//! | rule | when | answer |
//! | --- | --- | --- |
//! | `script` | the last user's text begins with `script:` | the next step of the script |
//! | `counter` | a tool `increment_counter`, and the user says `add N` or `get the count` | one `increment_counter` a turn in the order of the text, then `get_counter_value`, then a sentence with the count of its output |
//! | `synonyms` | tools `get_synonym_value` and `extract_synonym_values`, and instructions that list synonyms | `get_synonym_value` for each synonym of the term in question, one a turn, then `extract_synonym_values`, then a sentence |
//! | `weather` | a tool `get_weather` | one `get_weather` with the city that the user names, then a sentence with its output |
//! | plain | otherwise | the beginning of the user's text, said back |

mod counter;
mod script;
mod synonyms;
mod weather;

use crate::{
    conversation::{Conversation, Message, Role, ToolCall},
    tokens::{TokenId, marker},
};

/// The assistant's whole reply.
pub fn answer(conversation: &Conversation) -> Message {
    let turn = Turn::of(conversation);
    script::answer(&turn)
        .or_else(|| counter::answer(&turn))
        .or_else(|| synonyms::answer(&turn))
        .or_else(|| weather::answer(&turn))
        .unwrap_or_else(|| plain(&turn))
}

/// The tokens of the whole reply, with its end.
pub fn answer_tokens(conversation: &Conversation) -> Vec<TokenId> {
    let mut ids = Vec::new();
    answer(conversation).encode_body(&mut ids);
    ids.push(marker::END);
    ids
}

/// What the rules look at: the last user's text, and what was done since.
struct Turn<'a> {
    conversation: &'a Conversation,
    user: &'a str,
    since: &'a [Message],
}

impl<'a> Turn<'a> {
    fn of(conversation: &'a Conversation) -> Self {
        let messages = conversation.messages.as_slice();
        let asked = messages.iter().rposition(|m| m.role == Role::User);
        Self {
            conversation,
            user: asked.map_or("", |at| messages[at].text.as_str()),
            since: asked.map_or(messages, |at| &messages[at + 1..]),
        }
    }

    fn has_tool(&self, name: &str) -> bool {
        self.conversation.tools.iter().any(|tool| tool.name == name)
    }

    fn calls(&self) -> impl Iterator<Item = &'a ToolCall> {
        self.since.iter().flat_map(|m| &m.calls)
    }

    /// The calls of a tool, each with its output: the output in the same place among all outputs.
    fn outputs_of(&self, tool: &str) -> impl Iterator<Item = &'a str> {
        let outputs = self.since.iter().filter(|m| m.role == Role::Tool);
        self.calls()
            .zip(outputs)
            .filter(move |(call, _)| call.name == tool)
            .map(|(_, output)| output.text.as_str())
    }

    fn last_output(&self) -> Option<&'a str> {
        self.since
            .iter()
            .rfind(|m| m.role == Role::Tool)
            .map(|m| m.text.as_str())
    }
}

fn say(text: impl Into<String>) -> Message {
    Message::text(Role::Assistant, text)
}

fn call(name: &str, arguments: impl Into<String>) -> Message {
    let mut message = say("");
    message.calls.push(ToolCall {
        name: name.into(),
        arguments: arguments.into(),
    });
    message
}

/// The integer in a tool's output: the output itself, or the first integer among an object's values.
fn integer_in(output: &str) -> Option<i64> {
    match serde_json::from_str(output).ok()? {
        serde_json::Value::Number(number) => number.as_i64(),
        serde_json::Value::Object(fields) => fields.values().find_map(serde_json::Value::as_i64),
        _ => None,
    }
}

fn plain(turn: &Turn<'_>) -> Message {
    const WORDS: usize = 12;
    let words: Vec<&str> = turn.user.split_whitespace().take(WORDS).collect();
    if words.is_empty() {
        say("Nothing was asked.")
    } else {
        say(format!("Noted: {}", words.join(" ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn tool(name: &str) -> crate::conversation::Tool {
        crate::conversation::Tool {
            name: name.into(),
            definition: format!(r#"{{"type":"function","function":{{"name":"{name}"}}}}"#),
        }
    }

    pub(super) fn asked(tools: &[&str], system: &str, user: &str) -> Conversation {
        Conversation {
            tools: tools.iter().copied().map(tool).collect(),
            messages: vec![
                Message::text(Role::System, system),
                Message::text(Role::User, user),
            ],
        }
    }

    /// Plays the loop: every tool call is answered by `tools`, until a reply has none.
    pub(super) fn play(
        mut conversation: Conversation,
        mut tools: impl FnMut(&ToolCall) -> String,
    ) -> Vec<Message> {
        let mut replies = Vec::new();
        while replies.len() < 50 {
            let reply = answer(&conversation);
            replies.push(reply.clone());
            let calls = reply.calls.clone();
            conversation.messages.push(reply);
            if calls.is_empty() {
                return replies;
            }
            for call in &calls {
                conversation.messages.push(Message::text(Role::Tool, tools(call)));
            }
        }
        panic!("the loop does not end: {replies:?}");
    }

    #[test]
    fn without_a_rule_the_users_words_are_said_back() {
        let reply = answer(&asked(&["send_email", "list_events"], "", "größe  der\nWelt"));
        assert_eq!(reply, say("Noted: größe der Welt"));
        assert_eq!(answer(&Conversation::default()), say("Nothing was asked."));
    }
}
