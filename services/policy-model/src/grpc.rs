//! The data port: converts and validates, nothing else.

use std::sync::Arc;

use belay_core::{
    calls::CallKey,
    ids::{Episode, ExecutionId},
    refusal::{Reason, Refusal},
};
use belay_mesh::{
    status::to_status,
    wire::{self as mesh_wire, ToWire},
};
use belay_proto::episode::{self as pb, policy_model_server::PolicyModel as Service};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::{
    engine::Engine,
    error::PolicyError,
    model::{Call, PolicyModel},
    trajectory, wire,
};

/// Rows that wait for a slow reader.
const ROWS_AHEAD: usize = 8;

/// The gRPC service of one policy model.
pub(crate) struct DataService<E>(Arc<PolicyModel<E>>);

impl<E: Engine> DataService<E> {
    pub(crate) fn new(model: Arc<PolicyModel<E>>) -> Self {
        Self(model)
    }

    /// Every refusal names this server.
    fn status(&self, error: impl Into<PolicyError>) -> Status {
        let refusal = Refusal::from(error.into());
        match refusal.get("instance") {
            Some(_) => to_status(&refusal),
            None => to_status(&refusal.instance(self.0.gate.instance())),
        }
    }
}

fn read_call(request: pb::GenerateRequest) -> Result<Call, Refusal> {
    let (episode, execution) = mesh_wire::episode_ref(request.r#ref)?;
    let operation = mesh_wire::operation(request.operation)?;
    let invalid = |field: &'static str, what: String| {
        Refusal::new(Reason::InvalidRequest, format!("{field}: {what}"))
            .episode(&episode)
            .with("field", field)
    };
    if operation.index != 0 {
        return Err(invalid(
            "operation.index",
            format!(
                "is {}; a model call has index 0, the others are tool calls",
                operation.index
            ),
        ));
    }
    let parent =
        wire::read_optional_digest("parent", &request.parent).map_err(|what| invalid("parent", what))?;
    Ok(Call {
        key: CallKey {
            episode,
            execution,
            operation,
        },
        parent,
        request: request.request,
    })
}

#[tonic::async_trait]
impl<E: Engine> Service for DataService<E> {
    async fn generate(
        &self,
        request: Request<pb::GenerateRequest>,
    ) -> Result<Response<pb::GenerateResponse>, Status> {
        let call = read_call(request.into_inner()).map_err(|r| self.status(r))?;
        let (answer, kept) = self.0.generate(call).await.map_err(|e| self.status(e))?;
        Ok(Response::new(pb::GenerateResponse {
            response: answer.reply.response.clone(),
            usage: Some(pb::Usage {
                input_tokens: answer.reply.input_tokens,
                output_tokens: answer.reply.output_tokens,
            }),
            chain_hash: wire::digest(&answer.row.chain),
            kept,
            finish_reason: wire::finish(answer.row.entry.finish),
            instance: Some(self.0.gate.instance().to_wire()),
        }))
    }

    type GetTrajectoryStream = ReceiverStream<Result<pb::PolicyModelGetTrajectoryResponse, Status>>;

    async fn get_trajectory(
        &self,
        request: Request<pb::PolicyModelGetTrajectoryRequest>,
    ) -> Result<Response<Self::GetTrajectoryStream>, Status> {
        let (episode, execution) =
            mesh_wire::episode_ref(request.into_inner().r#ref).map_err(|r| self.status(r))?;
        let ledger = self.0.ledger(&episode, execution).map_err(|r| self.status(r))?;
        let (send, receive) = mpsc::channel(ROWS_AHEAD);
        let service = Self(self.0.clone());
        tokio::spawn(async move {
            for rows in trajectory::batches(&ledger) {
                let rows = match trajectory::read(&*service.0.engine, rows).await {
                    Ok(rows) => rows,
                    Err(error) => {
                        let _ = send.send(Err(service.status(error))).await;
                        return;
                    }
                };
                for row in rows {
                    let row = pb::PolicyModelGetTrajectoryResponse { row: Some(row) };
                    if send.send(Ok(row)).await.is_err() {
                        return; // Nobody listens any more.
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receive)))
    }

    async fn end_episodes(
        &self,
        request: Request<pb::EndEpisodesRequest>,
    ) -> Result<Response<pb::EndEpisodesResponse>, Status> {
        let refs = request
            .into_inner()
            .refs
            .into_iter()
            .map(|r| mesh_wire::episode_ref(Some(r)));
        let refs: Vec<(Episode, ExecutionId)> = refs.collect::<Result<_, _>>().map_err(|r| self.status(r))?;
        let ended = self.0.end_episodes(refs).await.map_err(|e| self.status(e))?;
        Ok(Response::new(pb::EndEpisodesResponse { ended }))
    }
}
