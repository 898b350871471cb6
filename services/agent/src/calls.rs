//! What the loop asks of the policy model and of the resources server.
//!
//! Each call is named by its operation and idempotent: one that was cut by a checkpoint or lost on its way is made again as it
//! was, and gets the reply that is kept.

use std::time::Duration;

use belay_core::{
    agent::{ModelReply, Session, ToolReply},
    ids::{Digest, Episode, ExecutionId, Operation},
};
use belay_episodes::record::usage_from_wire;
use belay_mesh::{
    peers::{self, Peers},
    wire::{self, ToWire as _},
};
use belay_proto::episode as pb;
use bytes::Bytes;

use crate::error::AgentError;

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
        let reply = peers::call_to_its_end(&policy_model, "Generate", self.patience, move || {
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
        let reply = peers::call_to_its_end(&resources, "CallTool", self.patience, move || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.call_tool(request).await }
        })
        .await?;
        Ok(ToolReply {
            output: reply.output,
            revision: reply.revision,
        })
    }

    fn wire_ref(&self) -> pb::EpisodeRef {
        (self.episode, self.execution).to_wire()
    }
}
