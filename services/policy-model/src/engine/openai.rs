//! An engine with OpenAI-compatible chat completions, such as vLLM or llama.cpp, asked for whole replies.
//!
//! It knows no keys and keeps no tokens: dropping a request stops it, and the token ids of its replies are carried with the ledger's
//! rows. It cuts nothing, so a generation in flight at a checkpoint is made anew after a restore.

mod reply;

use std::{error::Error as _, time::Duration};

use belay_core::{
    calls::{CallKey, CutAnswer},
    ids::{Attempt, CheckpointId, RolloutId},
    ledger::{Coordinate, TokenSpan, Tokens},
};
use bytes::Bytes;
use reqwest::{Client, RequestBuilder, StatusCode};
use tokio::sync::Semaphore;

use super::{
    Engine, Generated, Generation,
    persist::{Failure, Persist},
};
use crate::{config::OpenAiConfig, error::PolicyError};

const WHAT: &str = "chat completions";
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// As much of an error's body as a message shows.
const SHOWN: usize = 300;

/// The client of one engine.
pub struct OpenAi {
    client: Client,
    config: OpenAiConfig,
    url: String,
    /// A connection carries one request at a time, and the number of files is limited.
    slots: Semaphore,
    persist: Persist,
    generation_limit: Duration,
}

impl OpenAi {
    /// A client; connects when it is first used.
    pub fn new(
        config: OpenAiConfig,
        patience: Duration,
        generation_limit: Duration,
    ) -> Result<Self, PolicyError> {
        // TLS needs a provider, also for addresses without it; an error says that the process has installed one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let base = config.base_url.trim_end_matches('/').to_owned();
        let scheme = reqwest::Url::parse(&base).ok().map(|url| url.scheme().to_owned());
        if !matches!(scheme.as_deref(), Some("http" | "https")) {
            return Err(PolicyError::BadAddress { engine: base });
        }
        let client = Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .tcp_keepalive(Duration::from_secs(30))
            .build()
            .map_err(|e| PolicyError::Failed {
                engine: base.clone(),
                what: "its client",
                message: words(&e),
            })?;
        Ok(Self {
            client,
            url: format!("{base}/chat/completions"),
            slots: Semaphore::new(config.max_concurrent.max(1)),
            persist: Persist {
                engine: base,
                patience,
            },
            generation_limit,
            config,
        })
    }

    /// The request, with the names of the call as headers: engines pass them over, logs and proxies may not.
    fn request(&self, key: &CallKey, body: &Bytes) -> RequestBuilder {
        let request = self
            .client
            .post(&self.url)
            .header("content-type", "application/json")
            .header("x-belay-rollout", key.episode.rollout.as_str())
            .header("x-belay-attempt", key.episode.attempt)
            .header("x-belay-execution", key.execution.to_string())
            .header("x-belay-turn", key.operation.turn)
            .header("x-belay-index", key.operation.index)
            .body(body.clone());
        match &self.config.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn ask(&self, key: &CallKey, body: &Bytes) -> Result<Bytes, Failure> {
        let _slot = self.slots.acquire().await.expect("the slots are never closed");
        let transient = |e: reqwest::Error| Failure::Transient(words(&e.without_url()));
        let response = self.request(key, body).send().await.map_err(transient)?;
        let status = response.status();
        let body = response.bytes().await.map_err(transient)?;
        if status.is_success() {
            return Ok(body);
        }
        let shown: String = String::from_utf8_lossy(&body).chars().take(SHOWN).collect();
        let message = format!("status {status}: {}", shown.replace(['\n', '\r'], " "));
        let later = status.is_server_error()
            || matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
            );
        Err(if later {
            Failure::Transient(message)
        } else {
            Failure::Final(PolicyError::Failed {
                engine: self.persist.engine.clone(),
                what: WHAT,
                message,
            })
        })
    }
}

impl Engine for OpenAi {
    async fn generate(&self, call: &Generation) -> Result<Generated, PolicyError> {
        let mut chat = call.chat.clone();
        if self.config.token_ids {
            chat.push("logprobs", "true");
            chat.push("return_token_ids", "true");
        }
        let body = chat.to_bytes();
        self.persist
            .until_done(WHAT, self.generation_limit, || async {
                let reply = self.ask(&call.key, &body).await?;
                reply::read(&reply, self.config.weights.as_deref()).map_err(|problem| match problem {
                    reply::Problem::Aborted => Failure::Transient("the engine aborted the reply".into()),
                    reply::Problem::Unreadable(message) => Failure::Final(PolicyError::BadAnswer {
                        engine: self.persist.engine.clone(),
                        what: WHAT,
                        message,
                    }),
                })
            })
            .await
    }

    async fn cut(&self, _id: CheckpointId, _calls: &[CallKey]) -> Result<Vec<CutAnswer>, PolicyError> {
        Ok(Vec::new())
    }

    async fn release(&self, _id: CheckpointId) -> Result<(), PolicyError> {
        Ok(())
    }

    /// Tokens that are carried are whole; a place in a store is none of this engine's.
    async fn check(&self, spans: &[TokenSpan]) -> Result<Vec<bool>, PolicyError> {
        Ok(spans.iter().map(|span| span.coordinate.is_none()).collect())
    }

    async fn cancel(&self, _key: &CallKey) -> Result<(), PolicyError> {
        Ok(())
    }

    async fn free(&self, _rollouts: &[(RolloutId, Attempt)]) -> Result<(), PolicyError> {
        Ok(())
    }

    async fn read(&self, coordinates: &[Coordinate]) -> Result<Vec<Option<Tokens>>, PolicyError> {
        Ok(vec![None; coordinates.len()])
    }
}

/// An error with its causes: reqwest's own words leave out the interesting one.
fn words(error: &reqwest::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
