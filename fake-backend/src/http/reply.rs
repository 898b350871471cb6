//! A call by HTTP: whole, or token by token; it ends with its connection.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{HttpError, errors};
use crate::{
    call::{CallState, Finish, Plan},
    engine::{Engine, Origin, Progress},
    error::BackendError,
    faults::FaultKind,
    holds::CallId,
    log::RecordState,
    rows::Row,
    sampling::{Sampled, WeightRun},
    tokens::{TokenId, bytes_of},
};

/// A call that is stopped when this is dropped.
pub struct OwnedCall {
    engine: Engine,
    id: CallId,
    progress: watch::Receiver<Progress>,
}

impl Drop for OwnedCall {
    fn drop(&mut self) {
        self.engine.end(self.id);
    }
}

/// A call that is over.
pub struct Done {
    /// Why.
    pub finish: Finish,
    /// The reply with its prefix.
    pub row: Arc<Row>,
}

impl OwnedCall {
    /// Starts it.
    pub async fn start(engine: &Engine, plan: Plan, origin: Origin) -> Result<Self, BackendError> {
        engine.pass_faults().await?;
        let id = engine.start(plan, origin);
        let progress = engine.watch(id).ok_or(BackendError::Stopping)?;
        Ok(Self {
            engine: engine.clone(),
            id,
            progress,
        })
    }

    /// An id for the reply.
    pub fn number(&self) -> CallId {
        self.id
    }

    /// Waits for its end.
    pub async fn done(&self) -> Result<Done, BackendError> {
        self.engine.ended(self.progress.clone()).await?;
        self.over().ok_or(BackendError::Stopping)
    }

    /// Hands the reply out.
    fn over(&self) -> Option<Done> {
        self.engine.change(|state| {
            let CallState::Finished(finish, row, _) = &state.calls.get(&self.id)?.call.state else {
                return None;
            };
            let done = Done {
                finish: *finish,
                row: row.clone(),
            };
            state.log.becomes(self.id, RecordState::Returned);
            Some(done)
        })
    }

    /// The tokens from a place on, with the weights of each, and whether these are the last.
    async fn next(&mut self, from: usize) -> Result<(Vec<(Sampled, String)>, bool), BackendError> {
        let shutdown = self.engine.shutdown().clone();
        let seen = tokio::select! {
            progress = self.progress.wait_for(|p| p.ended || p.tokens > from) => progress.map(|p| *p),
            () = shutdown.cancelled() => return Err(BackendError::Stopping),
        };
        let ended = seen.map_or(true, |progress| progress.ended);
        let state = self.engine.state();
        let call = &state.calls.get(&self.id).ok_or(BackendError::Stopping)?.call;
        let weights = call.weights().iter().flat_map(each_weight).skip(from);
        let tokens = call.tokens()[from..].iter().copied();
        Ok((tokens.zip(weights.map(str::to_owned)).collect(), ended))
    }
}

fn each_weight(run: &WeightRun) -> impl Iterator<Item = &str> {
    std::iter::repeat_n(run.version.as_str(), run.tokens as usize)
}

/// Writes the events of one API.
pub trait Events: Send + 'static {
    /// Before the first token.
    fn begin(&mut self) -> Vec<Value>;
    /// For one token.
    fn token(&mut self, token: Sampled, weights: &str) -> Value;
    /// After the last token.
    fn end(&mut self, done: &Done) -> Vec<Value>;
}

struct Streaming<E> {
    call: OwnedCall,
    events: E,
    from: usize,
    first: usize,
    break_after: Option<usize>,
    stage: Stage,
}

#[derive(PartialEq)]
enum Stage {
    Begin,
    Tokens,
    Over,
}

/// Sends a call as server-sent events.
pub fn stream_events<E: Events>(call: OwnedCall, events: E, prefix: usize) -> Response {
    let break_after = call.engine.change(|state| {
        let cut = state
            .faults
            .take(|kind| matches!(kind, FaultKind::StreamCut { .. }));
        cut.and_then(|kind| match kind {
            FaultKind::StreamCut { after_tokens } => Some(after_tokens),
            _ => None,
        })
    });
    let streaming = Streaming {
        call,
        events,
        from: prefix,
        first: prefix,
        break_after,
        stage: Stage::Begin,
    };
    let body = stream::unfold(streaming, |mut streaming| async {
        let chunk = streaming.chunk().await?;
        Some((chunk, streaming))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(body)).into_response()
}

impl<E: Events> Streaming<E> {
    async fn chunk(&mut self) -> Option<Result<Bytes, std::io::Error>> {
        match self.stage {
            Stage::Over => return None,
            Stage::Begin => {
                self.stage = Stage::Tokens;
                return Some(Ok(written(&self.events.begin())));
            }
            Stage::Tokens => {}
        }
        let (tokens, ended) = match self.call.next(self.from).await {
            Ok(next) => next,
            Err(error) => {
                self.stage = Stage::Over;
                return Some(Ok(written(&[errors::HttpError::from(error).body()])));
            }
        };
        let mut events = Vec::with_capacity(tokens.len() + 3);
        for (token, weights) in tokens {
            if self.break_after.is_some_and(|n| self.from - self.first >= n) {
                break;
            }
            self.from += 1;
            events.push(self.events.token(token, &weights));
        }
        if self.break_after.is_some_and(|n| self.from - self.first >= n) {
            // What was sampled is sent; the next poll breaks the connection.
            if events.is_empty() {
                self.stage = Stage::Over;
                // A body that waits is flushed: what was sent must arrive before the connection breaks.
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                }
                return Some(Err(std::io::Error::other(
                    "the stream breaks off, as ordered at /_ctl/faults",
                )));
            }
            return Some(Ok(written(&events)));
        }
        let mut bytes = Vec::new();
        if ended {
            self.stage = Stage::Over;
            match self.call.over() {
                Some(done) => {
                    events.extend(self.events.end(&done));
                    bytes.extend_from_slice(&written(&events));
                    bytes.extend_from_slice(b"data: [DONE]\n\n");
                }
                None => return Some(Ok(written(&[HttpError::from(BackendError::Stopping).body()]))),
            }
        } else {
            bytes.extend_from_slice(&written(&events));
        }
        Some(Ok(bytes.into()))
    }
}

fn written(events: &[Value]) -> Bytes {
    let mut text = String::new();
    for event in events {
        text.push_str("data: ");
        text.push_str(&event.to_string());
        text.push_str("\n\n");
    }
    text.into()
}

/// `usage`.
pub fn usage(prompt: usize, completion: usize) -> Value {
    json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion })
}

/// One entry of a chat's `logprobs.content`.
pub fn logprob_entry(token: Sampled) -> Value {
    let bytes = bytes_of(&[token.id]);
    json!({
        "token": String::from_utf8_lossy(&bytes),
        "logprob": token.logprob,
        "bytes": bytes,
        "top_logprobs": [],
    })
}

/// The ids of tokens.
pub fn ids(tokens: &[Sampled]) -> Vec<TokenId> {
    tokens.iter().map(|token| token.id).collect()
}
