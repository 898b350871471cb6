//! The engines behind the policy model, and what it asks of one.

mod openai;
mod persist;
mod staging_worker;

use std::{future::Future, sync::Arc};

use belay_core::{
    calls::{CallKey, CutAnswer},
    ids::{Attempt, CheckpointId, Digest, RolloutId},
    ledger::{Coordinate, FinishReason, TokenSpan, Tokens},
};
use bytes::Bytes;

pub use self::{openai::OpenAi, staging_worker::StagingWorker};
use crate::{chat::ChatRequest, error::PolicyError};

/// One reply to sample.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The idempotency key.
    pub key: CallKey,
    /// BLAKE3 of the request as the agent sent it.
    pub digest: Digest,
    /// What to ask.
    pub chat: ChatRequest,
    /// Sampled earlier: go on after it, with what is left of the budget.
    pub prefix: Option<TokenSpan>,
}

/// A reply that was sampled.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The assistant's chat message, raw JSON.
    pub message: Bytes,
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens sampled, those of a prefix too.
    pub output_tokens: u32,
    /// Where the tokens lie. `None`: the engine gives no token ids.
    pub span: Option<TokenSpan>,
    /// The tokens themselves, where the engine keeps none.
    pub carried: Option<Arc<Tokens>>,
    /// The model's name.
    pub model: String,
}

/// An engine. Every call tries again within bounds by itself, and ends; a caller that goes away cancels nothing but its wait,
/// except where a method says otherwise.
pub trait Engine: Send + Sync + 'static {
    /// Samples one reply. Where the engine knows no keys, dropping the future stops it.
    fn generate(&self, call: &Generation) -> impl Future<Output = Result<Generated, PolicyError>> + Send;

    /// Makes a prefix of each listed generation durable without stopping it. The answers are the engine's promise; a call without
    /// exactly one answer is generated anew. Engines that cannot cut answer nothing.
    fn cut(
        &self,
        id: CheckpointId,
        calls: &[CallKey],
    ) -> impl Future<Output = Result<Vec<CutAnswer>, PolicyError>> + Send;

    /// Frees what was cut under a checkpoint's id.
    fn release(&self, id: CheckpointId) -> impl Future<Output = Result<(), PolicyError>> + Send;

    /// Whether each span is there, whole, in the order asked for.
    fn check(&self, spans: &[TokenSpan]) -> impl Future<Output = Result<Vec<bool>, PolicyError>> + Send;

    /// Stops a generation, and replies when it has stopped.
    fn cancel(&self, key: &CallKey) -> impl Future<Output = Result<(), PolicyError>> + Send;

    /// Frees all rows of rollouts up to an attempt.
    fn free(&self, rollouts: &[(RolloutId, Attempt)])
    -> impl Future<Output = Result<(), PolicyError>> + Send;

    /// The tokens at each coordinate, in the order asked for; `None` where nothing is.
    fn read(
        &self,
        coordinates: &[Coordinate],
    ) -> impl Future<Output = Result<Vec<Option<Tokens>>, PolicyError>> + Send;
}
