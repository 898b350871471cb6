//! What the loop asks of the policy model and of the resources server.
//!
//! Each call is named by its operation and idempotent: one that was cut by a checkpoint or lost on its way is made again as it
//! was, and gets the reply that is kept.

use std::{future::Future, time::Duration};

use belay_core::{
    agent::{ModelReply, Session, ToolReply},
    ids::{Digest, Episode, ExecutionId, Instance, Operation},
    refusal::Refusal,
};
use belay_mesh::{
    peers::{self, Peers},
    wire::{self, ToWire as _},
};
use belay_proto::episode as pb;
use bytes::Bytes;
use tracing::Instrument as _;

use crate::{error::AgentError, record::usage_from_wire};

/// Runs a call in a task of its own: who stops waiting for it leaves it to its end. A session that is retired ends at once; its
/// calls are answered by servers that retire it as well, and thousands of calls dropped at one moment would end their connection.
async fn outliving<T: Send + 'static>(call: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(call.in_current_span()).await {
        Ok(answer) => answer,
        Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
        // The runtime is going down, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

/// The calls of one life of an episode.
pub(crate) struct Calls<'a> {
    pub(crate) peers: &'a Peers,
    pub(crate) patience: Duration,
    pub(crate) episode: &'a Episode,
    pub(crate) execution: ExecutionId,
}

impl Calls<'_> {
    /// Asks the policy model: a long call, through checkpoints.
    pub(crate) async fn model(
        &self,
        session: &Session,
        operation: Operation,
        parent: Option<Digest>,
    ) -> Result<ModelReply, AgentError> {
        let policy_model = session.parts().policy_model.clone();
        let request = pb::GenerateRequest {
            r#ref: Some(self.wire_ref()),
            operation: Some(operation.to_wire()),
            parent: parent
                .map(|parent| Bytes::copy_from_slice(&parent))
                .unwrap_or_default(),
            request: session.request(),
        };
        let client = self.peers.policy_model(&policy_model)?;
        let reply = self
            .call(&policy_model, "Generate", move || {
                let (mut client, request) = (client.clone(), request.clone());
                async move { client.generate(request).await }
            })
            .await?;
        let chain =
            wire::digest("chain_hash", &reply.chain_hash).map_err(|refusal| AgentError::BadAnswer {
                instance: policy_model,
                call: "Generate",
                what: refusal.message,
            })?;
        Ok(ModelReply {
            truncated: reply.finish_reason() == pb::FinishReason::Length,
            usage: usage_from_wire(reply.usage),
            response: reply.response,
            chain,
        })
    }

    /// Calls a tool. A failure of the tool's own is a reply for the model to read.
    pub(crate) async fn tool(
        &self,
        session: &Session,
        operation: Operation,
        name: String,
        arguments: Bytes,
    ) -> Result<ToolReply, AgentError> {
        let resources = session.parts().resources.clone();
        let request = pb::CallToolRequest {
            r#ref: Some(self.wire_ref()),
            operation: Some(operation.to_wire()),
            name,
            arguments,
        };
        let client = self.peers.resources(&resources)?;
        let reply = self
            .call(&resources, "CallTool", move || {
                let (mut client, request) = (client.clone(), request.clone());
                async move { client.call_tool(request).await }
            })
            .await?;
        Ok(ToolReply {
            output: reply.output,
            revision: reply.revision,
        })
    }

    async fn call<T, F, Fut>(&self, instance: &Instance, what: &'static str, attempt: F) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send + 'static,
    {
        let (instance, patience) = (instance.clone(), self.patience);
        outliving(async move { peers::call(&instance, what, patience, attempt).await }).await
    }

    fn wire_ref(&self) -> pb::EpisodeRef {
        (self.episode, self.execution).to_wire()
    }
}
