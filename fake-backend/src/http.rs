//! The HTTP edge: an OpenAI-compatible API, and `/_ctl`.

mod chat_completions;
mod completions;
mod control;
mod errors;
mod reply;
mod tokenize;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    routing::{any, get, post},
};
use http::{HeaderMap, Method, Uri};
use serde_json::{Value, json};

use crate::{
    engine::{Engine, Origin},
    error::BackendError,
};
use errors::HttpError;

/// All routes.
pub fn router(engine: Engine, body_limit: usize) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat_completions::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models))
        .route("/health", get(|| async { "ok" }))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .merge(control::routes())
        // Not a fallback: what else is asked for on this port is a gRPC call, and is answered as one.
        .route("/v1/{*rest}", any(not_found))
        .route("/_ctl/{*rest}", any(not_found))
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(body_limit))
        .with_state(engine)
}

async fn models(State(engine): State<Engine>) -> Json<Value> {
    Json(json!({
        "object": "list",
        "data": [{ "id": engine.config().model, "object": "model", "created": 0, "owned_by": "belay" }],
    }))
}

async fn not_found(uri: Uri) -> HttpError {
    HttpError::not_found(format!("there is nothing at {}", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> HttpError {
    HttpError::wrong_method(format!("{method} is not served at {}", uri.path()))
}

/// A request may name the model that is served, or none.
fn check_model(engine: &Engine, asked: Option<String>) -> Result<(), BackendError> {
    match asked {
        Some(asked) if asked != engine.config().model => Err(BackendError::UnknownModel {
            asked,
            served: engine.config().model.clone(),
        }),
        _ => Ok(()),
    }
}

/// Whose call it is, as the headers say.
fn origin(door: &'static str, headers: &HeaderMap) -> Origin {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &str| text(name).and_then(|value| value.parse().ok());
    Origin {
        door,
        rollout: text("x-belay-rollout").unwrap_or_default().into(),
        attempt: number("x-belay-attempt"),
        execution: text("x-belay-execution").map(Into::into),
        turn: number("x-belay-turn"),
        index: number("x-belay-index"),
    }
}
