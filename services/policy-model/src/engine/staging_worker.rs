//! A staging worker: gRPC `InferenceWorker` and `TokenStore`. Its calls are keyed, so each may be made again.

use std::{collections::HashMap, time::Duration};

use belay_core::{
    calls::{CallKey, CutAnswer},
    ids::{Attempt, CheckpointId, RolloutId},
    ledger::{Coordinate, TokenSpan, Tokens},
};
use belay_mesh::{
    channel::{Channels, MeshChannel},
    status,
};
use belay_proto::worker::{
    self as pb, inference_worker_client::InferenceWorkerClient, token_store_client::TokenStoreClient,
};
use tonic::{Code, Status};

use super::{
    Engine, Generated, Generation,
    persist::{Failure, Persist},
};
use crate::{error::PolicyError, wire};

/// No reply or receipt is larger.
const MESSAGE_LIMIT: usize = 64 << 20;
/// The longest that a call which does not sample may take before it is made again.
const SHORT_CALL: Duration = Duration::from_secs(10);
/// Spans in one CheckCoordinates.
const CHECK_BATCH: usize = 2_000;
/// Rollouts in one FreeRows.
const FREE_BATCH: usize = 1_000;

/// The client of one staging worker.
pub struct StagingWorker {
    /// Generations park here; short calls have a connection of their own, so that a cut never queues behind them.
    long: InferenceWorkerClient<MeshChannel>,
    short: InferenceWorkerClient<MeshChannel>,
    tokens: TokenStoreClient<MeshChannel>,
    /// Who cuts: instance and incarnation.
    client: String,
    persist: Persist,
    generation_limit: Duration,
}

impl StagingWorker {
    /// A client; connects when it is first used. `client` names this process.
    pub fn new(
        channels: &Channels,
        address: &str,
        client: String,
        patience: Duration,
        generation_limit: Duration,
    ) -> Self {
        let long = InferenceWorkerClient::new(channels.data(address));
        let short = InferenceWorkerClient::new(channels.control(address));
        let tokens = TokenStoreClient::new(channels.control(address));
        Self {
            long: long
                .max_decoding_message_size(MESSAGE_LIMIT)
                .max_encoding_message_size(MESSAGE_LIMIT),
            short: short
                .max_decoding_message_size(MESSAGE_LIMIT)
                .max_encoding_message_size(MESSAGE_LIMIT),
            tokens: tokens.max_decoding_message_size(MESSAGE_LIMIT),
            client,
            persist: Persist {
                engine: address.into(),
                patience,
            },
            generation_limit,
        }
    }

    fn failure(&self, what: &'static str, status: Status) -> Failure {
        if let Some(refusal) = status::from_status(&status) {
            return match refusal.retry_after {
                Some(_) => Failure::Transient(refusal.to_string()),
                None => Failure::Final(refusal.into()),
            };
        }
        let message = format!("{:?}: {}", status.code(), status.message());
        match status.code() {
            Code::NotFound | Code::DataLoss => Failure::Final(PolicyError::Missing {
                engine: self.persist.engine.clone(),
                what,
                message: status.message().into(),
            }),
            Code::InvalidArgument
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::Unauthenticated => Failure::Final(PolicyError::Failed {
                engine: self.persist.engine.clone(),
                what,
                message,
            }),
            // What is left is the transport, or a worker that asks for time.
            _ => Failure::Transient(message),
        }
    }

    fn bad(&self, what: &'static str, message: impl Into<String>) -> PolicyError {
        PolicyError::BadAnswer {
            engine: self.persist.engine.clone(),
            what,
            message: message.into(),
        }
    }

    async fn generate_after(
        &self,
        call: &Generation,
        prefix: Option<&TokenSpan>,
    ) -> Result<pb::GenerateResponse, PolicyError> {
        let request = pb::GenerateRequest {
            key: Some(wire::call_key(&call.key)),
            request_digest: wire::digest(&call.digest),
            chat_request: call.chat.to_bytes(),
            prefix: prefix.map(wire::token_span),
        };
        self.persist
            .until_done("generate", self.generation_limit, || {
                let (mut client, request) = (self.long.clone(), request.clone());
                async move {
                    let reply = client.generate(request).await;
                    reply
                        .map(tonic::Response::into_inner)
                        .map_err(|s| self.failure("generate", s))
                }
            })
            .await
    }
}

impl Engine for StagingWorker {
    async fn generate(&self, call: &Generation) -> Result<Generated, PolicyError> {
        let prefix = call.prefix.as_ref();
        let mut reply = self.generate_after(call, prefix).await;
        if prefix.is_some() && matches!(reply, Err(PolicyError::Missing { .. })) {
            tracing::warn!(key = ?call.key, "the worker lost a cut prefix; its call is generated anew");
            reply = self.generate_after(call, None).await;
        }
        let reply = reply?;
        let span = reply
            .tokens
            .ok_or_else(|| self.bad("generate", "the token span is missing"))?;
        let span = wire::read_token_span(span).map_err(|e| self.bad("generate", e))?;
        if !span.aligned() {
            return Err(self.bad("generate", "the weight spans do not add up to the tokens"));
        }
        Ok(Generated {
            message: reply.message,
            finish: wire::read_finish(reply.finish_reason).map_err(|e| self.bad("generate", e))?,
            prompt_tokens: reply.prompt_tokens,
            output_tokens: span.tokens,
            span: Some(span),
            carried: None,
            model: reply.model,
        })
    }

    async fn cut(&self, id: CheckpointId, calls: &[CallKey]) -> Result<Vec<CutAnswer>, PolicyError> {
        let request = pb::CutRequest {
            checkpoint_id: id.to_string(),
            client: self.client.clone(),
            calls: calls.iter().map(wire::call_key).collect(),
        };
        let reply = self
            .persist
            .until_done("cut", SHORT_CALL, || {
                let (mut client, request) = (self.short.clone(), request.clone());
                async move { client.cut(request).await.map_err(|s| self.failure("cut", s)) }
            })
            .await?;
        // An answer that does not read belongs to no call.
        Ok(reply
            .into_inner()
            .answers
            .into_iter()
            .filter_map(wire::read_cut_answer)
            .collect())
    }

    async fn release(&self, id: CheckpointId) -> Result<(), PolicyError> {
        let request = pb::ReleaseRequest {
            checkpoint_id: id.to_string(),
        };
        self.persist
            .until_done("release", SHORT_CALL, || {
                let (mut client, request) = (self.short.clone(), request.clone());
                async move {
                    client
                        .release(request)
                        .await
                        .map_err(|s| self.failure("release", s))
                }
            })
            .await?;
        Ok(())
    }

    async fn check(&self, spans: &[TokenSpan]) -> Result<Vec<bool>, PolicyError> {
        let mut whole = Vec::with_capacity(spans.len());
        for batch in spans.chunks(CHECK_BATCH) {
            let request = pb::CheckCoordinatesRequest {
                spans: batch.iter().map(wire::token_span).collect(),
            };
            let reply = self
                .persist
                .until_done("check coordinates", SHORT_CALL, || {
                    let (mut client, request) = (self.short.clone(), request.clone());
                    async move {
                        let reply = client.check_coordinates(request).await;
                        reply.map_err(|s| self.failure("check coordinates", s))
                    }
                })
                .await?;
            let states = reply.into_inner().states;
            if states.len() != batch.len() {
                return Err(self.bad("check coordinates", "not one state for each span"));
            }
            whole.extend(
                states
                    .into_iter()
                    .map(|state| state == pb::SpanState::Whole as i32),
            );
        }
        Ok(whole)
    }

    async fn cancel(&self, key: &CallKey) -> Result<(), PolicyError> {
        let request = pb::CancelRequest {
            key: Some(wire::call_key(key)),
        };
        self.persist
            .until_done("cancel", SHORT_CALL, || {
                let (mut client, request) = (self.short.clone(), request.clone());
                async move {
                    client
                        .cancel(request)
                        .await
                        .map_err(|s| self.failure("cancel", s))
                }
            })
            .await?;
        Ok(())
    }

    async fn free(&self, rollouts: &[(RolloutId, Attempt)]) -> Result<(), PolicyError> {
        for batch in rollouts.chunks(FREE_BATCH) {
            let rollouts = batch.iter().map(|(rollout, attempt)| pb::FreeRollout {
                rollout_id: rollout.as_str().into(),
                through_attempt: *attempt,
            });
            let request = pb::FreeRowsRequest {
                rollouts: rollouts.collect(),
            };
            self.persist
                .until_done("free rows", SHORT_CALL, || {
                    let (mut client, request) = (self.short.clone(), request.clone());
                    async move {
                        client
                            .free_rows(request)
                            .await
                            .map_err(|s| self.failure("free rows", s))
                    }
                })
                .await?;
        }
        Ok(())
    }

    async fn read(&self, coordinates: &[Coordinate]) -> Result<Vec<Option<Tokens>>, PolicyError> {
        match self.read_all(coordinates).await? {
            Some(mut found) => Ok(coordinates
                .iter()
                .map(|coordinate| found.remove(coordinate))
                .collect()),
            // One of them is not there, and the store names it for people only: ask for each alone.
            None => {
                let mut tokens = Vec::with_capacity(coordinates.len());
                for coordinate in coordinates {
                    let found = self.read_all(std::slice::from_ref(coordinate)).await?;
                    tokens.push(found.and_then(|mut found| found.remove(coordinate)));
                }
                Ok(tokens)
            }
        }
    }
}

impl StagingWorker {
    /// `None` when a coordinate is not there.
    async fn read_all(
        &self,
        coordinates: &[Coordinate],
    ) -> Result<Option<HashMap<Coordinate, Tokens>>, PolicyError> {
        let request = pb::ReadTokensRequest {
            coordinates: coordinates.iter().map(wire::coordinate).collect(),
        };
        self.persist
            .until_done("read tokens", SHORT_CALL, || {
                let (mut client, request) = (self.tokens.clone(), request.clone());
                async move {
                    match read_stream(&mut client, request).await {
                        Ok(found) => Ok(Some(found)),
                        Err(status) => match self.failure("read tokens", status) {
                            Failure::Final(PolicyError::Missing { .. }) => Ok(None),
                            failure => Err(failure),
                        },
                    }
                }
            })
            .await
    }
}

async fn read_stream(
    client: &mut TokenStoreClient<MeshChannel>,
    request: pb::ReadTokensRequest,
) -> Result<HashMap<Coordinate, Tokens>, Status> {
    let mut stream = client.read_tokens(request).await?.into_inner();
    let mut found = HashMap::new();
    while let Some(message) = stream.message().await? {
        if let Some(coordinate) = message.coordinate {
            let tokens = Tokens {
                prompt: message.prompt_token_ids,
                sampled: message.token_ids,
                logprobs: message.logprobs,
            };
            found.insert(wire::read_coordinate(coordinate), tokens);
        }
    }
    Ok(found)
}
