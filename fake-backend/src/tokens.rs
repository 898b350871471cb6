//! The engine's tokenizer: no table, reversible, the same in every process.
//!
//! A text token is one to three bytes, packed into its id with their number. ASCII letters and digits go three to a token
//! (a space before them stays with them), every byte of a non-ASCII character is a token of its own: so a character can
//! lie across a cut. Markers have small ids of their own and can never be made from text, so no user's text can end a
//! message.

/// A token's id.
pub type TokenId = u32;

/// Ids that are not text.
pub mod marker {
    use super::TokenId;

    /// Ends a message; sampled as the last token of a reply.
    pub const END: TokenId = 1;
    /// Begins a system or developer message.
    pub const SYSTEM: TokenId = 2;
    /// Begins a user's message.
    pub const USER: TokenId = 3;
    /// Begins an assistant's message; the last one of a prompt is where the reply begins.
    pub const ASSISTANT: TokenId = 4;
    /// Begins a tool's output.
    pub const TOOL: TokenId = 5;
    /// Begins the definition of a tool.
    pub const TOOL_DEFINITION: TokenId = 6;
    /// Begins the reasoning of an assistant's message.
    pub const THINK: TokenId = 7;
    /// Ends the reasoning.
    pub const END_THINK: TokenId = 8;
    /// Begins a tool call.
    pub const CALL: TokenId = 9;
    /// Ends a tool call.
    pub const END_CALL: TokenId = 10;

    /// How a marker is written where text is asked for; the end is not written.
    pub fn text(id: TokenId) -> Option<&'static str> {
        Some(match id {
            END => "",
            SYSTEM => "<|system|>",
            USER => "<|user|>",
            ASSISTANT => "<|assistant|>",
            TOOL => "<|tool|>",
            TOOL_DEFINITION => "<|tool_definition|>",
            THINK => "<think>",
            END_THINK => "</think>",
            CALL => "<tool_call>",
            END_CALL => "</tool_call>",
            _ => return None,
        })
    }
}

const MOST_BYTES: usize = 3;

/// Appends the tokens of a text.
pub fn encode(text: &str, out: &mut Vec<TokenId>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&first) = bytes.get(at) {
        let mut len = 1;
        if first.is_ascii() {
            let word = |b: u8| b.is_ascii_alphanumeric();
            let next_is_word = bytes.get(at + 1).copied().is_some_and(word);
            let class = word(first) || (first == b' ' && next_is_word);
            while len < MOST_BYTES
                && bytes
                    .get(at + len)
                    .is_some_and(|b| b.is_ascii() && word(*b) == class && (class || *b != b' '))
            {
                len += 1;
            }
        }
        out.push(pack(&bytes[at..at + len]));
        at += len;
    }
}

/// The tokens of a text.
pub fn encoded(text: &str) -> Vec<TokenId> {
    let mut ids = Vec::with_capacity(text.len() / 2);
    encode(text, &mut ids);
    ids
}

fn pack(piece: &[u8]) -> TokenId {
    let mut packed = [0u8; 4];
    packed[0] = piece.len() as u8;
    packed[1..=piece.len()].copy_from_slice(piece);
    u32::from_be_bytes(packed)
}

/// Appends the bytes of a text token. False, and nothing appended, for an id that is not one.
pub fn push_bytes(id: TokenId, out: &mut Vec<u8>) -> bool {
    let [len, bytes @ ..] = id.to_be_bytes();
    let len = usize::from(len);
    let is_text = (1..=MOST_BYTES).contains(&len) && bytes[len..].iter().all(|b| *b == 0);
    if is_text {
        out.extend_from_slice(&bytes[..len]);
    }
    is_text
}

/// True for a text token or a marker.
pub fn is_known(id: TokenId) -> bool {
    marker::text(id).is_some() || push_bytes(id, &mut Vec::new())
}

/// The bytes of any tokens, markers as they are written, unknown ids passed over.
pub fn bytes_of(ids: &[TokenId]) -> Vec<u8> {
    let mut out = Vec::with_capacity(ids.len() * 2);
    for id in ids {
        match marker::text(*id) {
            Some(text) => out.extend_from_slice(text.as_bytes()),
            None => {
                push_bytes(*id, &mut out);
            }
        }
    }
    out
}

/// The text of any tokens; a character that is not whole reads as U+FFFD.
pub fn decode(ids: &[TokenId]) -> String {
    String::from_utf8_lossy(&bytes_of(ids)).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_go_three_bytes_to_a_token_and_other_characters_byte_by_byte() {
        let ids = encoded("add 10 → ok");
        let pieces: Vec<Vec<u8>> = ids
            .iter()
            .map(|id| {
                let mut piece = Vec::new();
                assert!(push_bytes(*id, &mut piece));
                piece
            })
            .collect();
        let expected: [&[u8]; 7] = [b"add", b" 10", b" ", b"\xe2", b"\x86", b"\x92", b" ok"];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn text_never_makes_a_marker() {
        for text in ["<|assistant|>", "</think>", "\u{1}", "\0\0\0"] {
            assert!(
                encoded(text).iter().all(|id| marker::text(*id).is_none()),
                "{text:?}"
            );
            assert_eq!(decode(&encoded(text)), text);
        }
    }

    #[test]
    fn ids_that_nobody_made_are_not_known() {
        for id in [0, 11, 0x0400_0000, 0x0161_6200, u32::MAX] {
            assert!(!is_known(id), "{id:#x}");
        }
    }

    proptest! {
        #[test]
        fn every_text_reads_back(text in any::<String>()) {
            prop_assert_eq!(decode(&encoded(&text)), text);
        }
    }
}
