//! OpenAI Responses in, chat completions out, and back: a new envelope around unchanged contents.
//!
//! Every value that a model or a tool wrote is copied as the raw JSON that arrived: key order, 64-bit integers, `1e400` and lone
//! surrogates come through as they are. Ids that are made here are derived from the operation, so the same call has
//! the same ids in every life.

mod items;
mod raw;
mod request;
mod response;

pub use request::{ChatRequest, to_chat};
pub use response::{Outcome, to_response};

/// A request or an engine's message that cannot be converted: where, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct ChatError {
    /// The place, for example `input[3].content`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl ChatError {
    fn new(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            what: what.into(),
        }
    }
}

#[cfg(test)]
mod tests;
