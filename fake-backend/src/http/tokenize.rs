//! Text to token ids and back, as vLLM serves it.

use axum::{Json, body::Bytes};
use serde::Deserialize;
use serde_json::{Value, json};

use super::HttpError;
use crate::{
    chat::{ChatRequest, read_json},
    error::BackendError,
    tokens::{decode, encoded, is_known},
};

#[derive(Deserialize)]
struct Tokenize {
    prompt: Option<String>,
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<u32>,
}

/// Of `prompt`, or of a chat's `messages` and `tools`.
pub async fn tokenize(body: Bytes) -> Result<Json<Value>, HttpError> {
    let tokens = match read_json::<Tokenize>(&body)?.prompt {
        Some(text) => encoded(&text),
        None => ChatRequest::read(&body)?.conversation.prompt(),
    };
    Ok(Json(json!({ "count": tokens.len(), "tokens": tokens })))
}

/// Of `tokens`.
pub async fn detokenize(body: Bytes) -> Result<Json<Value>, HttpError> {
    let tokens = read_json::<Detokenize>(&body)?.tokens;
    if let Some(unknown) = tokens.iter().find(|id| !is_known(**id)) {
        return Err(BackendError::bad(
            "tokens",
            format!("has {unknown}, which is no token of this engine"),
        )
        .into());
    }
    Ok(Json(json!({ "prompt": decode(&tokens) })))
}
