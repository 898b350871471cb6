//! The data port: converts and validates, nothing else.

use std::sync::Arc;

use belay_core::{agent::Params, refusal::Refusal};
use belay_episodes::record::usage_to_wire;
use belay_mesh::{
    status::to_status,
    wire::{self, ToWire as _},
};
use belay_proto::episode::{self as pb, agent_server::Agent as Service};
use tonic::{Request, Response, Status};

use crate::{
    agent::{Agent, Seed},
    error::AgentError,
};

/// The gRPC service of one agent.
pub(crate) struct DataService(pub(crate) Arc<Agent>);

impl DataService {
    /// Every refusal names a server: the one that refused, else this one.
    fn status(&self, error: impl Into<AgentError>) -> Status {
        let refusal = Refusal::from(error.into());
        match refusal.get("instance") {
            Some(_) => to_status(&refusal),
            None => to_status(&refusal.instance(self.0.gate.instance())),
        }
    }
}

fn read_seed(request: pb::SeedSessionRequest) -> Result<Seed, Refusal> {
    let (episode, execution) = wire::episode_ref(request.r#ref)?;
    Ok(Seed {
        episode,
        execution,
        params: Params::new(request.params)?,
        resources: wire::instance(request.resources)?,
        resources_mode: wire::checkpoint_mode(request.resources_mode)?,
        revision: request.revision,
        max_steps: request.max_steps,
    })
}

#[tonic::async_trait]
impl Service for DataService {
    async fn seed_session(
        &self,
        request: Request<pb::SeedSessionRequest>,
    ) -> Result<Response<pb::SeedSessionResponse>, Status> {
        let seed = read_seed(request.into_inner()).map_err(|e| self.status(e))?;
        let session = self.0.seed(seed).await.map_err(|e| self.status(e))?;
        Ok(Response::new(pb::SeedSessionResponse {
            instance: Some(self.0.gate.instance().to_wire()),
            mode: self.0.state().sessions.mode().to_wire(),
            policy_model: Some(session.parts().policy_model.to_wire()),
        }))
    }

    async fn invoke(
        &self,
        request: Request<pb::InvokeRequest>,
    ) -> Result<Response<pb::InvokeResponse>, Status> {
        let request = request.into_inner();
        let (episode, execution) = wire::episode_ref(request.r#ref).map_err(|e| self.status(e))?;
        let (session, completed) = self
            .0
            .invoke(&episode, execution, request.activation, &request.input)
            .await
            .map_err(|e| self.status(e))?;
        let parts = session.parts();
        Ok(Response::new(pb::InvokeResponse {
            response: completed.response.clone(),
            usage: Some(usage_to_wire(parts.usage)),
            cursor: Some(parts.cursor.to_wire()),
            model_calls: parts.model_calls,
            tool_calls: parts.tool_calls,
        }))
    }

    async fn close_session(
        &self,
        request: Request<pb::CloseSessionRequest>,
    ) -> Result<Response<pb::CloseSessionResponse>, Status> {
        let (episode, execution) =
            wire::episode_ref(request.into_inner().r#ref).map_err(|e| self.status(e))?;
        self.0
            .close(&episode, execution)
            .await
            .map_err(|e| self.status(e))?;
        Ok(Response::new(pb::CloseSessionResponse {}))
    }
}
