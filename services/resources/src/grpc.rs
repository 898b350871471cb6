//! The data port: converts and validates, nothing else.

use std::sync::Arc;

use belay_core::{
    ids::Operation,
    refusal::{Reason, Refusal},
};
use belay_mesh::{
    status::to_status,
    wire::{self, ToWire as _},
};
use belay_proto::episode::{self as pb, resources_server::Resources as Service};
use tonic::{Request, Response, Status};

use crate::{
    environment::Environment,
    resources::{CallKey, Resources},
};

/// The gRPC service of one server.
pub(crate) struct DataService<E: Environment>(pub(crate) Arc<Resources<E>>);

impl<E: Environment> DataService<E> {
    /// Every refusal names a server: the one that refused, else this one.
    fn status(&self, refusal: Refusal) -> Status {
        match refusal.get("instance") {
            Some(_) => to_status(&refusal),
            None => to_status(&refusal.instance(self.0.gate.instance())),
        }
    }
}

/// A tool call's place: index 0 is the turn's model call.
fn tool_operation(operation: Option<pb::Operation>) -> Result<Operation, Refusal> {
    let operation = wire::operation(operation)?;
    if operation.index == 0 {
        return Err(Refusal::new(
            Reason::InvalidRequest,
            format!("operation {operation} is a model call's place; a tool call's index is 1 or more"),
        )
        .with("field", "operation"));
    }
    Ok(operation)
}

fn read_call(request: pb::CallToolRequest) -> Result<(CallKey, String, bytes::Bytes), Refusal> {
    let (episode, execution) = wire::episode_ref(request.r#ref)?;
    let operation = tool_operation(request.operation)?;
    let key = CallKey {
        episode,
        execution,
        operation,
    };
    Ok((key, request.name, request.arguments))
}

#[tonic::async_trait]
impl<E: Environment> Service for DataService<E> {
    async fn seed(&self, request: Request<pb::SeedRequest>) -> Result<Response<pb::SeedResponse>, Status> {
        let request = request.into_inner();
        let (episode, execution) = wire::episode_ref(request.r#ref).map_err(|e| self.status(e))?;
        let seeded = self.0.seed(&episode, execution, request.task).await;
        Ok(Response::new(pb::SeedResponse {
            instance: Some(self.0.gate.instance().to_wire()),
            mode: self.0.settings.mode.to_wire(),
            verify: self.0.settings.verify.to_wire(),
            revision: seeded.map_err(|e| self.status(e))?,
        }))
    }

    async fn call_tool(
        &self,
        request: Request<pb::CallToolRequest>,
    ) -> Result<Response<pb::CallToolResponse>, Status> {
        let (key, name, arguments) = read_call(request.into_inner()).map_err(|e| self.status(e))?;
        let called = self
            .0
            .call_tool(key, name, arguments)
            .await
            .map_err(|e| self.status(e))?;
        Ok(Response::new(pb::CallToolResponse {
            output: called.reply.output,
            is_error: called.reply.is_error,
            revision: called.reply.revision,
            kept: called.kept,
        }))
    }

    async fn verify(
        &self,
        request: Request<pb::VerifyRequest>,
    ) -> Result<Response<pb::VerifyResponse>, Status> {
        let request = request.into_inner();
        let (episode, execution) = wire::episode_ref(request.r#ref).map_err(|e| self.status(e))?;
        let verdict = self.0.verify(&episode, execution, request.response).await;
        let verdict = verdict.map_err(|e| self.status(e))?;
        Ok(Response::new(pb::VerifyResponse {
            reward: verdict.reward,
            details: verdict.details,
        }))
    }

    async fn close(&self, request: Request<pb::CloseRequest>) -> Result<Response<pb::CloseResponse>, Status> {
        let (episode, execution) =
            wire::episode_ref(request.into_inner().r#ref).map_err(|e| self.status(e))?;
        self.0
            .close(&episode, execution)
            .await
            .map_err(|e| self.status(e))?;
        Ok(Response::new(pb::CloseResponse {}))
    }
}
