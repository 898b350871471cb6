//! The agent's loop: model call, tool calls, until the model answers without a tool, or `max_steps`.
//!
//! | module | what |
//! | --- | --- |
//! | [`items`] | Responses items as raw JSON: what a call says, what its output looks like |
//! | [`params`] | `responses_create_params`, and the request that it becomes with a conversation |
//! | [`session`] | a session at a boundary: what is next, and what a reply makes of it |
//! | [`response`] | the Responses object that an activation ends with |
//! | [`table`] | all sessions of a server, by rollout and attempt |
//!
//! Payloads stay the bytes that arrived: only envelopes are built around them.

pub mod items;
pub mod params;
pub mod response;
pub mod session;
pub mod table;
#[cfg(test)]
mod tests;

pub use params::Params;
pub use session::{Activated, Completed, ModelReply, Next, Parts, Session, Terms, ToolReply};
pub use table::{Activation, Sessions};

/// Tokens of model calls, summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Tokens of all prompts.
    pub input_tokens: u64,
    /// Tokens sampled.
    pub output_tokens: u64,
}

impl Usage {
    /// Both, added.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
        }
    }
}
