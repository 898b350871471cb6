//! What each step of an episode asks of the other servers.
//!
//! Every call carries the episode and its execution and is idempotent: a step that was cut is made again as it was.

use std::{future::Future, time::Duration};

use belay_core::{
    episode::{AgentOutcome, Boundary, SeededParts, StepDone, Verdict},
    ids::{Episode, Instance, Kind},
    refusal::Refusal,
};
use belay_mesh::{
    peers::{self, Peers},
    wire::{self, ToWire as _},
};
use belay_proto::episode as pb;
use futures_util::future::join;
use tracing::debug;

use crate::{
    agents::{AgentSessions, LifeRef, SessionSeed},
    error::EpisodeError,
    row,
    runner::Runner,
    task::Running,
};

/// How long the end of a failed attempt is told to its servers: one of them may be the one that died.
const CLEAN_UP: Duration = Duration::from_secs(3);

/// The calls of one life of an episode.
pub(crate) struct Steps<'a, A: AgentSessions> {
    pub(crate) runner: &'a Runner<A>,
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

impl<A: AgentSessions> Steps<'_, A> {
    /// Makes the step that is next.
    pub(crate) async fn perform(
        &self,
        boundary: &Boundary,
        touched: &mut Touched,
    ) -> Result<StepDone, EpisodeError> {
        match boundary {
            Boundary::Seed => self.seed(touched).await.map(StepDone::Seeded),
            Boundary::InvokeAgent(parts) => self.invoke(parts).await.map(StepDone::AgentReplied),
            Boundary::CloseAgent(parts, _) => {
                self.close_agent(&parts.agent, self.runner.patience).await?;
                Ok(StepDone::AgentClosed)
            }
            Boundary::Verify(parts, outcome) => self
                .verify(&parts.resources, outcome)
                .await
                .map(StepDone::Verified),
            Boundary::CloseResources(parts, ..) | Boundary::Return(parts, ..) => {
                self.close_resources(&parts.resources, self.runner.patience)
                    .await?;
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

    async fn seed(&self, touched: &mut Touched) -> Result<SeededParts, EpisodeError> {
        let work = &self.running.life.work;
        let resources = place_resources(&self.runner.peers, &work.environment, self.episode())?;
        let agent = self.agents().place(&work.agent, self.episode())?;
        touched.resources = Some(resources.clone());
        touched.agent = Some(agent.clone());

        let request = pb::SeedRequest {
            r#ref: Some(self.wire_ref()),
            task: work.task.clone(),
        };
        let client = self.runner.peers.resources(&resources)?;
        let seeded = self
            .call(&resources, "Seed", self.runner.patience, move || {
                let (mut client, request) = (client.clone(), request.clone());
                async move { client.seed(request).await }
            })
            .await?;
        let read = || -> Result<_, Refusal> {
            Ok((
                wire::instance(seeded.instance)?,
                wire::checkpoint_mode(seeded.mode)?,
                wire::verify_mode(seeded.verify)?,
            ))
        };
        let (resources, resources_mode, verify) = read().map_err(|refusal| EpisodeError::BadAnswer {
            instance: resources.clone(),
            call: "Seed",
            what: refusal.message,
        })?;
        let seed = SessionSeed {
            params: row::params(&work.task)?,
            resources: resources.clone(),
            resources_mode,
            revision: seeded.revision,
            max_steps: work.max_steps,
        };
        let session = self.agents().seed(&agent, self.life(), seed).await?;
        Ok(SeededParts {
            resources,
            resources_mode,
            verify,
            agent: session.instance,
            agent_mode: session.mode,
            policy_model: session.policy_model,
            revision: seeded.revision,
        })
    }

    async fn invoke(&self, parts: &SeededParts) -> Result<AgentOutcome, EpisodeError> {
        self.agents().invoke(&parts.agent, self.life()).await
    }

    async fn verify(&self, resources: &Instance, outcome: &AgentOutcome) -> Result<Verdict, EpisodeError> {
        let request = pb::VerifyRequest {
            r#ref: Some(self.wire_ref()),
            response: outcome.response.clone(),
        };
        let client = self.runner.peers.resources(resources)?;
        let reply = self
            .call(resources, "Verify", self.runner.patience, move || {
                let (mut client, request) = (client.clone(), request.clone());
                async move { client.verify(request).await }
            })
            .await?;
        Ok(Verdict {
            reward: reply.reward,
            details: reply.details,
        })
    }

    async fn close_agent(&self, agent: &Instance, patience: Duration) -> Result<(), EpisodeError> {
        self.agents().close(agent, self.life(), patience).await
    }

    async fn close_resources(&self, resources: &Instance, patience: Duration) -> Result<(), EpisodeError> {
        let request = pb::CloseRequest {
            r#ref: Some(self.wire_ref()),
        };
        let client = self.runner.peers.resources(resources)?;
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
        peers::call_to_its_end(instance, what, patience, attempt).await
    }

    fn agents(&self) -> &A {
        &self.runner.agents
    }

    fn episode(&self) -> &Episode {
        &self.running.life.episode
    }

    fn life(&self) -> LifeRef<'_> {
        LifeRef {
            episode: self.episode(),
            execution: self.running.life.execution,
        }
    }

    fn wire_ref(&self) -> pb::EpisodeRef {
        (self.episode(), self.running.life.execution).to_wire()
    }
}

/// The replica of the resources server that an episode is placed on; INVALID_REQUEST names those that there are.
pub(crate) fn place_resources(
    peers: &Peers,
    name: &str,
    episode: &Episode,
) -> Result<Instance, EpisodeError> {
    let place = peers.members.place(Kind::Resources, name, &episode.rollout);
    place.ok_or_else(|| EpisodeError::NoSuchServer {
        field: "environment",
        name: name.to_owned(),
        known: peers.members.names(Kind::Resources),
    })
}
