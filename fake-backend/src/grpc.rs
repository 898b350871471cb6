//! The gRPC edge: converts and validates, nothing else.

use std::pin::Pin;

use belay_core::{
    ids::{CheckpointId, Digest, RolloutId},
    refusal::Refusal,
};
use belay_mesh::{status::to_status, wire};
use belay_proto::{
    episode as pe,
    worker::{
        self as pb, cut_answer::Outcome as WireOutcome, inference_worker_server::InferenceWorker,
        token_store_server::TokenStore,
    },
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tonic::{Request, Response, Status};

use crate::{
    call::{CallKey, Finish, message_of},
    chat::ChatRequest,
    engine::Engine,
    error::BackendError,
    message_json::chat_message,
    rows::{Coordinate, Found, Stored},
    sampling::WeightRun,
    staging::Outcome,
    worker::{Generate, Generated, PrefixSpan},
};

/// Serves the worker's and the token store's calls.
#[derive(Clone)]
pub struct WorkerService {
    engine: Engine,
}

impl WorkerService {
    /// On an engine.
    pub fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

#[tonic::async_trait]
impl InferenceWorker for WorkerService {
    async fn generate(
        &self,
        request: Request<pb::GenerateRequest>,
    ) -> Result<Response<pb::GenerateResponse>, Status> {
        let wanted = read_generate(request.into_inner()).map_err(status)?;
        let generated = self.engine.generate(wanted).await.map_err(status)?;
        Ok(Response::new(self.generate_response(&generated)))
    }

    async fn cut(&self, request: Request<pb::CutRequest>) -> Result<Response<pb::CutResponse>, Status> {
        let request = request.into_inner();
        let checkpoint = checkpoint_id(&request.checkpoint_id).map_err(status)?;
        let calls = request.calls.into_iter().map(|key| read_key(Some(key)));
        let calls = calls.collect::<Result<Vec<_>, _>>().map_err(status)?;
        let answers = self
            .engine
            .cut(checkpoint, &request.client, calls)
            .await
            .map_err(status)?;
        let answers = answers.into_iter().map(|(key, outcome)| pb::CutAnswer {
            key: Some(write_key(&key)),
            outcome: Some(write_outcome(outcome)),
        });
        Ok(Response::new(pb::CutResponse {
            answers: answers.collect(),
        }))
    }

    async fn release(
        &self,
        request: Request<pb::ReleaseRequest>,
    ) -> Result<Response<pb::ReleaseResponse>, Status> {
        let checkpoint = checkpoint_id(&request.into_inner().checkpoint_id).map_err(status)?;
        let freed = self.engine.release_checkpoint(checkpoint);
        Ok(Response::new(pb::ReleaseResponse { freed }))
    }

    async fn check_coordinates(
        &self,
        request: Request<pb::CheckCoordinatesRequest>,
    ) -> Result<Response<pb::CheckCoordinatesResponse>, Status> {
        let spans = request.into_inner().spans;
        let state = self.engine.state();
        let states = spans.into_iter().map(|span| {
            let at = read_coordinate(span.coordinate.unwrap_or_default());
            let found = match state.rows.check(&at, span.tokens, &span.digest) {
                Found::Whole => pb::SpanState::Whole,
                Found::Missing => pb::SpanState::Missing,
                Found::Altered => pb::SpanState::Altered,
            };
            found.into()
        });
        Ok(Response::new(pb::CheckCoordinatesResponse {
            states: states.collect(),
        }))
    }

    async fn cancel(
        &self,
        request: Request<pb::CancelRequest>,
    ) -> Result<Response<pb::CancelResponse>, Status> {
        let key = read_key(request.into_inner().key).map_err(status)?;
        let was_running = self.engine.cancel(key);
        Ok(Response::new(pb::CancelResponse { was_running }))
    }

    async fn free_rows(
        &self,
        request: Request<pb::FreeRowsRequest>,
    ) -> Result<Response<pb::FreeRowsResponse>, Status> {
        let rollouts = request.into_inner().rollouts.into_iter();
        let rollouts = rollouts.map(|free| Ok((RolloutId::new(&free.rollout_id)?, free.through_attempt)));
        let rollouts = rollouts
            .collect::<Result<Vec<_>, Refusal>>()
            .map_err(|r| to_status(&r))?;
        let freed = self.engine.free_rows(&rollouts);
        Ok(Response::new(pb::FreeRowsResponse { freed }))
    }
}

#[tonic::async_trait]
impl TokenStore for WorkerService {
    type ReadTokensStream = Pin<Box<dyn Stream<Item = Result<pb::ReadTokensResponse, Status>> + Send>>;

    async fn read_tokens(
        &self,
        request: Request<pb::ReadTokensRequest>,
    ) -> Result<Response<Self::ReadTokensStream>, Status> {
        let coordinates = request.into_inner().coordinates.into_iter().map(read_coordinate);
        // All rows are looked up before the first is sent: they never change, and a missing one is told at once.
        let rows = {
            let state = self.engine.state();
            coordinates
                .map(|at| state.rows.get(&at))
                .collect::<Result<Vec<_>, _>>()
        };
        let rows = rows.map_err(status)?;
        Ok(Response::new(
            stream::iter(rows).map(|stored| Ok(write_tokens(&stored))).boxed(),
        ))
    }
}

impl WorkerService {
    fn generate_response(&self, generated: &Generated) -> pb::GenerateResponse {
        let row = &generated.stored.row;
        pb::GenerateResponse {
            message: Bytes::from(chat_message(&message_of(&row.tokens), row).to_string()),
            finish_reason: match generated.finish {
                Finish::Stop => pe::FinishReason::Stop,
                Finish::Length => pe::FinishReason::Length,
                Finish::ToolCalls => pe::FinishReason::ToolCalls,
            }
            .into(),
            prompt_tokens: row.prompt.len() as u32,
            tokens: Some(write_span(&generated.stored)),
            prefix_tokens: generated.prefix_tokens as u32,
            model: self.engine.config().model.clone(),
        }
    }
}

fn status(error: BackendError) -> Status {
    match &error {
        BackendError::RowMissing { .. } => Status::not_found(error.to_string()),
        _ => to_status(&error.into()),
    }
}

fn checkpoint_id(text: &str) -> Result<CheckpointId, BackendError> {
    Ok(text.parse::<CheckpointId>()?)
}

fn read_generate(request: pb::GenerateRequest) -> Result<Generate, BackendError> {
    let digest = Digest::try_from(&request.request_digest[..])
        .map_err(|_| BackendError::bad("request_digest", "must be 32 bytes"))?;
    Ok(Generate {
        key: read_key(request.key)?,
        request_digest: digest,
        chat: ChatRequest::read(&request.chat_request)?,
        prefix: request.prefix.map(|span| PrefixSpan {
            at: read_coordinate(span.coordinate.unwrap_or_default()),
            tokens: span.tokens,
            digest: span.digest.to_vec(),
        }),
    })
}

fn read_key(key: Option<pb::CallKey>) -> Result<CallKey, BackendError> {
    let key = key.ok_or_else(|| BackendError::bad("key", "is missing"))?;
    let (episode, execution) = wire::episode_ref(key.r#ref)?;
    Ok(CallKey {
        episode,
        execution,
        operation: wire::operation(key.operation)?,
    })
}

fn write_key(key: &CallKey) -> pb::CallKey {
    use wire::ToWire as _;
    pb::CallKey {
        r#ref: Some((&key.episode, key.execution).to_wire()),
        operation: Some(key.operation.to_wire()),
    }
}

fn read_coordinate(at: pb::Coordinate) -> Coordinate {
    Coordinate {
        store: at.store,
        row: at.row,
    }
}

fn write_coordinate(at: &Coordinate) -> pb::Coordinate {
    pb::Coordinate {
        store: at.store.clone(),
        row: at.row.clone(),
    }
}

fn write_span(stored: &Stored) -> pb::TokenSpan {
    pb::TokenSpan {
        coordinate: Some(write_coordinate(&stored.at)),
        tokens: stored.row.tokens.len() as u32,
        digest: Bytes::copy_from_slice(&stored.row.digest),
        weights: write_weights(&stored.row.weights),
    }
}

fn write_weights(runs: &[WeightRun]) -> Vec<pe::WeightSpan> {
    let runs = runs.iter().map(|run| pe::WeightSpan {
        tokens: run.tokens,
        version: run.version.clone(),
    });
    runs.collect()
}

fn write_outcome(outcome: Outcome) -> WireOutcome {
    match outcome {
        Outcome::Staged(stored) => WireOutcome::Staged(write_span(&stored)),
        Outcome::Finished => WireOutcome::Finished(pb::CutFinished {}),
        Outcome::Failed(reason) => WireOutcome::Failed(pb::CutFailed { reason }),
    }
}

fn write_tokens(stored: &Stored) -> pb::ReadTokensResponse {
    let row = &stored.row;
    pb::ReadTokensResponse {
        coordinate: Some(write_coordinate(&stored.at)),
        prompt_token_ids: row.prompt.to_vec(),
        token_ids: row.tokens.iter().map(|token| token.id).collect(),
        logprobs: row.tokens.iter().map(|token| token.logprob).collect(),
        weights: write_weights(&row.weights),
    }
}
