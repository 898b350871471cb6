//! The agent's part of an episode that the agent owns: its own sessions, in this process.

use std::{sync::Arc, time::Duration};

use belay_core::{
    agent::Params,
    episode::AgentOutcome,
    ids::{Episode, Instance},
    refusal::{Reason, Refusal},
};
use belay_episodes::{AgentSessions, EpisodeError, LifeRef, SeededSession, SessionSeed};
use bytes::Bytes;

use crate::agent::{Agent, Seed};

/// This agent's sessions.
pub(crate) struct OwnSessions(pub(crate) Arc<Agent>);

impl AgentSessions for OwnSessions {
    fn default_name(&self) -> &str {
        &self.0.gate.instance().name
    }

    /// Whoever runs an episode has its session too.
    fn place(&self, name: &str, _episode: &Episode) -> Result<Instance, EpisodeError> {
        let me = self.0.gate.instance();
        if *name == *me.name {
            return Ok(me.clone());
        }
        Err(EpisodeError::NoSuchServer {
            field: "agent",
            name: name.to_owned(),
            known: vec![me.name.to_string()],
        })
    }

    fn may_begin(&self, episode: &Episode) -> Result<(), Refusal> {
        let Some(held) = self.0.state().sessions.holding(&episode.rollout) else {
            return Ok(());
        };
        let me = self.0.gate.instance();
        let message = format!(
            "{episode} cannot start on {me}: it has a session of {held}, which an environment runs; send the Run there"
        );
        Err(Refusal::new(Reason::AttemptLive, message)
            .episode(episode)
            .instance(me)
            .with("live_attempt", held.attempt)
            .with("next_attempt", held.attempt))
    }

    async fn seed(
        &self,
        agent: &Instance,
        life: LifeRef<'_>,
        seed: SessionSeed,
    ) -> Result<SeededSession, EpisodeError> {
        let params = Params::new(seed.params)?;
        let _permit = self.0.enter(life.episode, "seed session").await?;
        let seed = Seed {
            episode: life.episode.clone(),
            execution: life.execution,
            params,
            resources: seed.resources,
            resources_mode: seed.resources_mode,
            revision: seed.revision,
            max_steps: seed.max_steps,
        };
        let session = self.0.seed_here(seed).map_err(Refusal::from)?;
        Ok(SeededSession {
            instance: agent.clone(),
            mode: self.0.state().sessions.mode(),
            policy_model: session.parts().policy_model.clone(),
        })
    }

    async fn invoke(&self, _agent: &Instance, life: LifeRef<'_>) -> Result<AgentOutcome, EpisodeError> {
        let permit = self.0.enter(life.episode, "invoke").await?;
        let invoked = self
            .0
            .invoke_under(permit, life.episode, life.execution, 0, &Bytes::new())
            .await;
        let (session, completed) = invoked.map_err(Refusal::from)?;
        let parts = session.parts();
        Ok(AgentOutcome {
            response: completed.response.clone(),
            usage: parts.usage,
            cursor: parts.cursor,
            model_calls: parts.model_calls,
            tool_calls: parts.tool_calls,
        })
    }

    async fn close(
        &self,
        _agent: &Instance,
        life: LifeRef<'_>,
        _patience: Duration,
    ) -> Result<(), EpisodeError> {
        let closed = self.0.close_here(life.episode, life.execution).await;
        Ok(closed.map_err(Refusal::from)?)
    }
}
