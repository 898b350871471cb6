//! The body of an OpenAI chat-completions request, as far as the engine reads it. Other fields are passed over.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    conversation::{ChatMessage, Conversation},
    error::BackendError,
};

/// What is asked for.
#[derive(Debug)]
pub struct ChatRequest {
    /// Messages and tools.
    pub conversation: Conversation,
    /// How many tokens there may be.
    pub budget: usize,
    /// The model named, if one is.
    pub model: Option<String>,
    /// How the reply is sent.
    pub form: ReplyForm,
}

/// How a reply is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplyForm {
    /// As server-sent events.
    pub stream: bool,
    /// With a last event that carries the usage.
    pub stream_usage: bool,
    /// With a logprob for each token.
    pub logprobs: bool,
    /// With the ids of prompt and reply, and weight versions.
    pub token_ids: bool,
}

#[derive(Deserialize)]
struct Body {
    messages: Vec<ChatMessage>,
    #[serde(default)]
    tools: Option<Vec<Box<RawValue>>>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    max_tokens: Option<i64>,
    #[serde(default)]
    max_completion_tokens: Option<i64>,
    #[serde(default)]
    n: Option<i64>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    return_token_ids: Option<bool>,
}

/// `stream_options`.
#[derive(Deserialize, Clone, Copy, Default, Debug)]
pub struct StreamOptions {
    /// With a last event that carries the usage.
    #[serde(default)]
    pub include_usage: bool,
}

impl ChatRequest {
    /// Reads a body.
    pub fn read(body: &[u8]) -> Result<Self, BackendError> {
        let body: Body = read_json(body)?;
        one_choice(body.n)?;
        Ok(Self {
            conversation: Conversation::from_chat(&body.messages, body.tools.as_deref().unwrap_or_default())?,
            budget: match body.max_completion_tokens {
                Some(_) => budget("max_completion_tokens", body.max_completion_tokens)?,
                None => budget("max_tokens", body.max_tokens)?,
            }
            .unwrap_or(usize::MAX),
            model: body.model,
            form: ReplyForm {
                stream: body.stream.unwrap_or_default(),
                stream_usage: body.stream_options.unwrap_or_default().include_usage,
                logprobs: body.logprobs.unwrap_or_default(),
                token_ids: body.return_token_ids.unwrap_or_default(),
            },
        })
    }
}

/// Reads JSON; the error says where it breaks.
pub fn read_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, BackendError> {
    serde_json::from_slice(body)
        .map_err(|error| BackendError::bad("body", format!("cannot be read: {error}")))
}

/// A budget must be at least 1.
pub fn budget(field: &'static str, given: Option<i64>) -> Result<Option<usize>, BackendError> {
    match given {
        None => Ok(None),
        Some(tokens) => match usize::try_from(tokens) {
            Ok(tokens) if tokens > 0 => Ok(Some(tokens)),
            _ => Err(BackendError::bad(
                field,
                format!("is {tokens}: it must be at least 1"),
            )),
        },
    }
}

/// `n` must be 1.
pub fn one_choice(n: Option<i64>) -> Result<(), BackendError> {
    match n {
        None | Some(1) => Ok(()),
        Some(n) => Err(BackendError::bad(
            "n",
            format!("is {n}: this engine makes one choice"),
        )),
    }
}
