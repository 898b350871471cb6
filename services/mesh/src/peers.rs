//! Typed clients of the other servers, by instance, and the one rule for trying a call again.

use std::{future::Future, time::Duration};

use belay_core::{ids::Instance, refusal::Refusal};
use belay_proto::episode::{
    agent_client::AgentClient, environment_client::EnvironmentClient,
    policy_model_client::PolicyModelClient, resources_client::ResourcesClient,
};

use crate::{
    channel::{Channels, MeshChannel},
    members::Members,
};

/// The other servers of the mesh. Cheap to clone.
#[derive(Clone)]
pub struct Peers {
    /// Who and where.
    pub members: Members,
    /// The connections.
    pub channels: Channels,
}

impl Peers {
    /// Both together.
    pub fn new(members: Members, channels: Channels) -> Self {
        Self { members, channels }
    }

    /// The agent at an instance; PEER_UNREACHABLE when the member list does not have it.
    pub fn agent(&self, _instance: &Instance) -> Result<AgentClient<MeshChannel>, Refusal> {
        todo!()
    }

    /// The environment at an instance.
    pub fn environment(
        &self,
        _instance: &Instance,
    ) -> Result<EnvironmentClient<MeshChannel>, Refusal> {
        todo!()
    }

    /// The policy model at an instance.
    pub fn policy_model(
        &self,
        _instance: &Instance,
    ) -> Result<PolicyModelClient<MeshChannel>, Refusal> {
        todo!()
    }

    /// The resources server at an instance.
    pub fn resources(&self, _instance: &Instance) -> Result<ResourcesClient<MeshChannel>, Refusal> {
        todo!()
    }
}

/// Calls until there is an answer: tries again, with growing pauses, on transport errors and on refusals that name a
/// retry (NOT_JOINED), for at most `patience`; then PEER_UNREACHABLE names the server, the call and the last error.
/// Every data call is idempotent, so a call whose answer was lost may be made again. Any other refusal is returned at once.
pub async fn call<T, F, Fut>(
    _instance: &Instance,
    _what: &'static str,
    _patience: Duration,
    _attempt: F,
) -> Result<T, Refusal>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
{
    todo!()
}
