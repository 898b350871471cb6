//! Tokens of a reply as pieces of text, for event streams.
//!
//! Text goes out when its characters are whole. Reasoning and tool calls go out when they are over, in one piece; until then
//! their ids flow with empty deltas. The pieces of a reply make up exactly its message.

use crate::{
    conversation::{Message, ToolCall},
    tokens::{TokenId, bytes_of, marker, push_bytes},
};

/// What one token adds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Delta {
    /// Text.
    pub text: String,
    /// Reasoning.
    pub reasoning: String,
    /// A tool call with its place.
    pub call: Option<(usize, ToolCall)>,
}

/// The state between two tokens.
#[derive(Debug, Default)]
pub struct Deltas {
    /// Markers are written as text, and nothing is told apart.
    raw: bool,
    section: Vec<TokenId>,
    /// The beginning of a character.
    partial: Vec<u8>,
    calls: usize,
}

impl Deltas {
    /// Of a chat's reply.
    pub fn chat() -> Self {
        Self::default()
    }

    /// Of plain text that goes on after `begun`, of which the last character may not be whole.
    pub fn raw_after(begun: &[TokenId]) -> Self {
        let mut deltas = Self {
            raw: true,
            ..Self::default()
        };
        for id in begun {
            deltas.push(*id);
        }
        deltas
    }

    /// The next token.
    pub fn push(&mut self, id: TokenId) -> Delta {
        if self.raw {
            return self.text(&bytes_of(&[id]));
        }
        if let Some(&begin) = self.section.first() {
            self.section.push(id);
            let over = match begin {
                marker::THINK => id == marker::END_THINK,
                _ => id == marker::END_CALL,
            };
            return if over {
                self.end_section()
            } else {
                Delta::default()
            };
        }
        if matches!(id, marker::THINK | marker::CALL) {
            self.section.push(id);
            return Delta::default();
        }
        let mut bytes = Vec::new();
        push_bytes(id, &mut bytes);
        self.text(&bytes)
    }

    /// What is left when no token comes any more.
    pub fn finish(&mut self) -> Delta {
        let mut rest = std::mem::take(&mut self.partial);
        rest.extend(bytes_of(&std::mem::take(&mut self.section)));
        Delta {
            text: String::from_utf8_lossy(&rest).into_owned(),
            ..Delta::default()
        }
    }

    fn end_section(&mut self) -> Delta {
        let message = Message::decode_body(&std::mem::take(&mut self.section));
        Delta {
            text: message.text,
            reasoning: message.reasoning,
            call: message.calls.into_iter().next().map(|call| {
                self.calls += 1;
                (self.calls - 1, call)
            }),
        }
    }

    fn text(&mut self, bytes: &[u8]) -> Delta {
        self.partial.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.partial) {
            Ok(_) => self.partial.len(),
            // Bytes that can never become a character go out as they are, to be replaced.
            Err(error) => match error.error_len() {
                None => error.valid_up_to(),
                Some(_) => self.partial.len(),
            },
        };
        let rest = self.partial.split_off(whole);
        let text = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial = rest;
        Delta {
            text,
            ..Delta::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Role;

    fn streamed(ids: &[TokenId]) -> Message {
        let mut deltas = Deltas::chat();
        let mut message = Message::text(Role::Assistant, "");
        let mut add = |delta: Delta| {
            message.text.push_str(&delta.text);
            message.reasoning.push_str(&delta.reasoning);
            if let Some((at, call)) = delta.call {
                assert_eq!(at, message.calls.len());
                message.calls.push(call);
            }
        };
        for id in ids {
            add(deltas.push(*id));
        }
        add(deltas.finish());
        message
    }

    #[test]
    fn the_pieces_make_the_message_wherever_it_ends() {
        let mut reply = Message::text(Role::Assistant, "größer → ok");
        reply.reasoning = "hm ü".into();
        reply.calls = vec![
            ToolCall {
                name: "a".into(),
                arguments: "{}".into(),
            },
            ToolCall {
                name: "b".into(),
                arguments: "{\"n\":".into(),
            },
        ];
        let mut ids = Vec::new();
        reply.encode_body(&mut ids);
        ids.push(marker::END);
        assert_eq!(streamed(&ids), reply);
        for end in 0..ids.len() {
            assert_eq!(
                streamed(&ids[..end]),
                Message::decode_body(&ids[..end]),
                "cut at {end}"
            );
        }
    }

    #[test]
    fn a_character_begun_before_is_told_whole() {
        let ids = crate::tokens::encoded("ä!");
        let mut deltas = Deltas::raw_after(&ids[..1]);
        assert_eq!(deltas.push(ids[1]).text, "ä");
        assert_eq!(deltas.push(ids[2]).text, "!");
    }
}
