//! What each step of an episode asks of the other servers.
//!
//! Every call carries the episode and its execution and is idempotent: a step that was cut is made again as it was.

use std::{future::Future, time::Duration};

use belay_core::{
    episode::{AgentOutcome, Boundary, SeededParts, StepDone, Verdict},
    ids::{Episode, ExecutionId, Instance, Kind},
    refusal::Refusal,
};
use belay_mesh::{
    peers::{self, Peers},
    wire::{self, ToWire as _},
};
use belay_proto::episode as pb;
use futures_util::future::join;
use tracing::{Instrument as _, debug};

use crate::{error::EnvironmentError, record::usage_from_wire, row, task::Running};

/// How long the end of a failed attempt is told to its servers: one of them may be the one that died.
const CLEAN_UP: Duration = Duration::from_secs(3);

/// Runs a call in a task of its own: who stops waiting for it leaves it to its end. An episode that is retired ends at once; its
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
pub(crate) struct Steps<'a> {
    pub(crate) peers: &'a Peers,
    pub(crate) patience: Duration,
    pub(crate) running: &'a Running,
}

/// Where an episode has, or may have, left something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    pub(crate) resources: Option<Instance>,
    pub(crate) agent: Option<Instance>,
}

impl Touched {
    pub(crate) fn of(boundary: &Boundary) -> Self {
        let parts = boundary.parts();
        Self {
            resources: parts.map(|parts| parts.resources.clone()),
            agent: parts.map(|parts| parts.agent.clone()),
        }
    }
}

impl Steps<'_> {
    /// Makes the step that is next.
    pub(crate) async fn perform(
        &self,
        boundary: &Boundary,
        touched: &mut Touched,
    ) -> Result<StepDone, EnvironmentError> {
        match boundary {
            Boundary::Seed => self.seed(touched).await.map(StepDone::Seeded),
            Boundary::InvokeAgent(parts) => self.invoke(parts).await.map(StepDone::AgentReplied),
            Boundary::CloseAgent(parts, _) => {
                self.close_agent(&parts.agent, self.patience).await?;
                Ok(StepDone::AgentClosed)
            }
            Boundary::Verify(parts, outcome) => self
                .verify(&parts.resources, outcome)
                .await
                .map(StepDone::Verified),
            Boundary::CloseResources(parts, ..) | Boundary::Return(parts, ..) => {
                self.close_resources(&parts.resources, self.patience).await?;
                Ok(StepDone::ResourcesClosed)
            }
        }
    }

    /// Ends what a failed attempt may have left on servers that still answer. Its ledger stays: a checkpoint may name its tokens.
    pub(crate) async fn clean_up(&self, touched: &Touched) {
        let agent = async {
            match &touched.agent {
                Some(agent) => self.close_agent(agent, CLEAN_UP).await,
                None => Ok(()),
            }
        };
        let resources = async {
            match &touched.resources {
                Some(resources) => self.close_resources(resources, CLEAN_UP).await,
                None => Ok(()),
            }
        };
        let (agent, resources) = join(agent, resources).await;
        for error in [agent.err(), resources.err()].into_iter().flatten() {
            debug!(episode = %self.episode(), "what a failed attempt left is left: {error}");
        }
    }

    async fn seed(&self, touched: &mut Touched) -> Result<SeededParts, EnvironmentError> {
        let work = &self.running.life.work;
        let resources = self.place(Kind::Resources, "environment", &work.environment)?;
        let agent = self.place(Kind::Agent, "agent", &work.agent)?;
        touched.resources = Some(resources.clone());
        touched.agent = Some(agent.clone());

        let request = pb::SeedRequest {
            r#ref: Some(self.wire_ref()),
            task: work.task.clone(),
        };
        let client = self.peers.resources(&resources)?;
        let seeded = self
            .call(&resources, "Seed", self.patience, move || {
                let (mut client, request) = (client.clone(), request.clone());
                async move { client.seed(request).await }
            })
            .await?;
        let mut parts = self.read(&resources, "Seed", || {
            Ok(SeededParts {
                resources: wire::instance(seeded.instance)?,
                resources_mode: wire::checkpoint_mode(seeded.mode)?,
                verify: wire::verify_mode(seeded.verify)?,
                revision: seeded.revision,
                // As the agent says below.
                agent: agent.clone(),
                agent_mode: wire::checkpoint_mode(seeded.mode)?,
                policy_model: agent.clone(),
            })
        })?;

        let request = pb::SeedSessionRequest {
            r#ref: Some(self.wire_ref()),
            params: row::params(&work.task)?,
            resources: Some(parts.resources.to_wire()),
            resources_mode: parts.resources_mode.to_wire(),
            revision: parts.revision,
            max_steps: work.max_steps,
        };
        let client = self.peers.agent(&agent)?;
        let session = self
            .call(&agent, "SeedSession", self.patience, move || {
                let (mut client, request) = (client.clone(), request.clone());
                async move { client.seed_session(request).await }
            })
            .await?;
        self.read(&agent, "SeedSession", || {
            parts.agent = wire::instance(session.instance)?;
            parts.agent_mode = wire::checkpoint_mode(session.mode)?;
            parts.policy_model = wire::instance(session.policy_model)?;
            Ok(parts)
        })
    }

    async fn invoke(&self, parts: &SeededParts) -> Result<AgentOutcome, EnvironmentError> {
        let request = pb::InvokeRequest {
            r#ref: Some(self.wire_ref()),
            activation: 0,
            input: Default::default(),
        };
        let client = self.peers.agent(&parts.agent)?;
        let reply = self
            .call(&parts.agent, "Invoke", self.patience, move || {
                let (mut client, request) = (client.clone(), request.clone());
                async move { client.invoke(request).await }
            })
            .await?;
        self.read(&parts.agent, "Invoke", || {
            Ok(AgentOutcome {
                response: reply.response,
                usage: usage_from_wire(reply.usage),
                cursor: wire::cursor(reply.cursor)?,
                model_calls: reply.model_calls,
                tool_calls: reply.tool_calls,
            })
        })
    }

    async fn verify(
        &self,
        resources: &Instance,
        outcome: &AgentOutcome,
    ) -> Result<Verdict, EnvironmentError> {
        let request = pb::VerifyRequest {
            r#ref: Some(self.wire_ref()),
            response: outcome.response.clone(),
        };
        let client = self.peers.resources(resources)?;
        let reply = self
            .call(resources, "Verify", self.patience, move || {
                let (mut client, request) = (client.clone(), request.clone());
                async move { client.verify(request).await }
            })
            .await?;
        Ok(Verdict {
            reward: reply.reward,
            details: reply.details,
        })
    }

    async fn close_agent(&self, agent: &Instance, patience: Duration) -> Result<(), EnvironmentError> {
        let request = pb::CloseSessionRequest {
            r#ref: Some(self.wire_ref()),
        };
        let client = self.peers.agent(agent)?;
        self.call(agent, "CloseSession", patience, move || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.close_session(request).await }
        })
        .await?;
        Ok(())
    }

    async fn close_resources(
        &self,
        resources: &Instance,
        patience: Duration,
    ) -> Result<(), EnvironmentError> {
        let request = pb::CloseRequest {
            r#ref: Some(self.wire_ref()),
        };
        let client = self.peers.resources(resources)?;
        self.call(resources, "Close", patience, move || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.close(request).await }
        })
        .await?;
        Ok(())
    }

    async fn call<T, F, Fut>(
        &self,
        instance: &Instance,
        what: &'static str,
        patience: Duration,
        attempt: F,
    ) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send + 'static,
    {
        let instance = instance.clone();
        outliving(async move { peers::call(&instance, what, patience, attempt).await }).await
    }

    fn read<T>(
        &self,
        instance: &Instance,
        call: &'static str,
        read: impl FnOnce() -> Result<T, Refusal>,
    ) -> Result<T, EnvironmentError> {
        read().map_err(|refusal| EnvironmentError::BadAnswer {
            instance: instance.clone(),
            call,
            what: refusal.message,
        })
    }

    fn place(&self, kind: Kind, field: &'static str, name: &str) -> Result<Instance, EnvironmentError> {
        place(self.peers, kind, field, name, self.episode())
    }

    fn episode(&self) -> &Episode {
        &self.running.life.episode
    }

    fn wire_ref(&self) -> pb::EpisodeRef {
        let life: (&Episode, ExecutionId) = (self.episode(), self.running.life.execution);
        life.to_wire()
    }
}

/// The replica of a server that an episode is placed on; INVALID_REQUEST names those that there are.
pub(crate) fn place(
    peers: &Peers,
    kind: Kind,
    field: &'static str,
    name: &str,
    episode: &Episode,
) -> Result<Instance, EnvironmentError> {
    peers
        .members
        .place(kind, name, &episode.rollout)
        .ok_or_else(|| EnvironmentError::NoSuchServer {
            field,
            name: name.to_owned(),
            known: peers.members.names(kind),
        })
}
