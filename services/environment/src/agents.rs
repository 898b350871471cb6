//! The agent's part of an episode, at an agent server.

use std::time::Duration;

use belay_core::{
    episode::AgentOutcome,
    ids::{Episode, Instance, Kind},
    refusal::Refusal,
};
use belay_episodes::{
    AgentSessions, EpisodeError, LifeRef, SeededSession, SessionSeed, record::usage_from_wire,
};
use belay_mesh::{
    peers::{self, Peers},
    wire::{self, ToWire as _},
};
use belay_proto::episode as pb;

/// The agents of the mesh.
pub(crate) struct RemoteAgents {
    pub(crate) peers: Peers,
    /// For how long an agent is tried.
    pub(crate) patience: Duration,
}

impl AgentSessions for RemoteAgents {
    fn default_name(&self) -> &str {
        "default"
    }

    fn place(&self, name: &str, episode: &Episode) -> Result<Instance, EpisodeError> {
        let members = &self.peers.members;
        let place = members.place(Kind::Agent, name, &episode.rollout);
        place.ok_or_else(|| EpisodeError::NoSuchServer {
            field: "agent",
            name: name.to_owned(),
            known: members.names(Kind::Agent),
        })
    }

    async fn seed(
        &self,
        agent: &Instance,
        life: LifeRef<'_>,
        seed: SessionSeed,
    ) -> Result<SeededSession, EpisodeError> {
        let request = pb::SeedSessionRequest {
            r#ref: Some(wire_ref(life)),
            params: seed.params,
            resources: Some(seed.resources.to_wire()),
            resources_mode: seed.resources_mode.to_wire(),
            revision: seed.revision,
            max_steps: seed.max_steps,
        };
        let client = self.peers.agent(agent)?;
        let session = peers::call_to_its_end(agent, "SeedSession", self.patience, move || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.seed_session(request).await }
        })
        .await?;
        let read = || -> Result<_, Refusal> {
            Ok(SeededSession {
                instance: wire::instance(session.instance)?,
                mode: wire::checkpoint_mode(session.mode)?,
                policy_model: wire::instance(session.policy_model)?,
            })
        };
        read().map_err(|refusal| bad_answer(agent, "SeedSession", refusal))
    }

    async fn invoke(&self, agent: &Instance, life: LifeRef<'_>) -> Result<AgentOutcome, EpisodeError> {
        let request = pb::InvokeRequest {
            r#ref: Some(wire_ref(life)),
            activation: 0,
            input: Default::default(),
        };
        let client = self.peers.agent(agent)?;
        let reply = peers::call_to_its_end(agent, "Invoke", self.patience, move || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.invoke(request).await }
        })
        .await?;
        let cursor = wire::cursor(reply.cursor).map_err(|refusal| bad_answer(agent, "Invoke", refusal))?;
        Ok(AgentOutcome {
            response: reply.response,
            usage: usage_from_wire(reply.usage),
            cursor,
            model_calls: reply.model_calls,
            tool_calls: reply.tool_calls,
        })
    }

    async fn close(
        &self,
        agent: &Instance,
        life: LifeRef<'_>,
        patience: Duration,
    ) -> Result<(), EpisodeError> {
        let request = pb::CloseSessionRequest {
            r#ref: Some(wire_ref(life)),
        };
        let client = self.peers.agent(agent)?;
        peers::call_to_its_end(agent, "CloseSession", patience, move || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.close_session(request).await }
        })
        .await?;
        Ok(())
    }
}

fn wire_ref(life: LifeRef<'_>) -> pb::EpisodeRef {
    (life.episode, life.execution).to_wire()
}

fn bad_answer(agent: &Instance, call: &'static str, refusal: Refusal) -> EpisodeError {
    EpisodeError::BadAnswer {
        instance: agent.clone(),
        call,
        what: refusal.message,
    }
}
