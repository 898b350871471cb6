//! Where the mesh's parts are: by the file that `belay up` writes, or by asking the coordinator.

use anyhow::{Context as _, anyhow};
use belay_core::ids::{Instance, Kind};
use belay_mesh::{channel::Channels, config::ResolvedMesh, members::Member, wire};
use belay_proto::checkpoint::{CoordinatorStatusRequest, coordinator_client::CoordinatorClient};

use crate::connect::{Coordinator, MeshArg};

/// Finds addresses anew each time it is asked: a mesh that comes back after a crash may be somewhere else.
#[derive(Clone, Debug)]
pub struct Locate(pub MeshArg);

impl Locate {
    /// The coordinator's address.
    pub fn coordinator(&self) -> anyhow::Result<String> {
        self.0.coordinator_address()
    }

    /// An environment's data address.
    pub async fn environment(&self, channels: &Channels) -> anyhow::Result<String> {
        let members = self.members(channels).await?;
        let environment = members
            .into_iter()
            .find(|member| member.instance.kind == Kind::Environment);
        Ok(environment
            .ok_or_else(|| anyhow!("the mesh has no environment server"))?
            .data)
    }

    /// The names of the resources servers.
    pub async fn environments(&self, channels: &Channels) -> anyhow::Result<Vec<String>> {
        let members = self.members(channels).await?;
        let resources = members.into_iter().map(|member| member.instance);
        let mut names: Vec<_> = resources
            .filter(|i: &Instance| i.kind == Kind::Resources)
            .map(|i| i.name.to_string())
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    async fn members(&self, channels: &Channels) -> anyhow::Result<Vec<Member>> {
        if self.0.coordinator.is_none() {
            return Ok(ResolvedMesh::read(&self.0.mesh)?
                .members
                .into_iter()
                .map(Into::into)
                .collect());
        }
        let address = self.0.coordinator_address()?;
        let client = CoordinatorClient::new(channels.control(&address));
        let mut coordinator = Coordinator { client, address };
        let reply = coordinator.client.status(CoordinatorStatusRequest {}).await;
        let status = reply.map_err(|status| coordinator.explain(status))?.into_inner();
        let members = status
            .participants
            .into_iter()
            .filter_map(|participant| participant.member);
        members
            .map(|member| wire::member(member).context("the coordinator names a server that cannot be"))
            .collect()
    }
}
