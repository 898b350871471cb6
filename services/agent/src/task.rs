//! The task of one activation: the loop, to its end. It outlives whoever invoked it.
//!
//! Waiting for the policy model counts as parked: no permit is held, and the reply is applied under a permit of its own, hence
//! only while the mesh is open. A tool call holds a permit until its reply is recorded, so a checkpoint waits for it and names it.

use std::sync::Arc;

use belay_core::{
    agent::{Completed, Next, Session},
    ids::{Episode, ExecutionId},
    refusal::Refusal,
};
use belay_participant::Permit;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span};

use crate::{
    agent::{Agent, Outcome},
    calls::Calls,
    error::AgentError,
};

/// A session whose loop runs.
pub(crate) struct Running {
    pub(crate) episode: Episode,
    pub(crate) execution: ExecutionId,
    /// The boundary from which it goes on.
    pub(crate) session: Arc<Session>,
    /// Cancelled when the session is closed or retired.
    pub(crate) stop: CancellationToken,
}

/// Starts the loop of a session that was invoked under this permit.
pub(crate) fn start(agent: &Arc<Agent>, running: Running, admitted: Permit) {
    let span =
        info_span!("activation", rollout = %running.episode.rollout, attempt = running.episode.attempt);
    let mut ending = Ending {
        agent: agent.clone(),
        running: Arc::new(running),
        outcome: None,
    };
    agent.tasks.spawn(
        async move {
            // The activation is in the table: from here on the session is parked at its boundary.
            drop(admitted);
            let outcome = run(&ending.agent, &ending.running).await;
            ending.with(outcome);
        }
        .instrument(span),
    );
}

/// Tells the outcome when the task ends, however it does.
struct Ending {
    agent: Arc<Agent>,
    running: Arc<Running>,
    outcome: Option<Outcome>,
}

impl Ending {
    fn with(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| {
            Err(Refusal::from(AgentError::Lost {
                episode: self.running.episode.clone(),
            }))
        });
        self.agent
            .ended(&self.running.episode, self.running.execution, outcome);
    }
}

async fn run(agent: &Agent, running: &Running) -> Outcome {
    let episode = &running.episode;
    tokio::select! {
        biased;
        () = running.stop.cancelled() => Err(agent.stopped(episode)),
        outcome = steps(agent, running) => outcome.map_err(|error| {
            let mut refusal = Refusal::from(error);
            if refusal.get("rollout_id").is_none() {
                refusal = refusal.episode(episode);
            }
            // Tried again for as long as this server is patient: to invoke it again at once would only try longer.
            refusal.retry_after = None;
            info!("the loop ended: {refusal}");
            refusal
        }),
    }
}

async fn steps(agent: &Agent, running: &Running) -> Result<(Arc<Session>, Arc<Completed>), AgentError> {
    let (episode, execution) = (&running.episode, running.execution);
    let calls = Calls {
        peers: &agent.peers,
        patience: agent.patience,
        episode,
        execution,
    };
    let mut session = running.session.clone();
    loop {
        session = match session.next() {
            Next::CallModel { operation, parent } => {
                let reply = calls.model(&session, operation, parent).await?;
                let _permit = agent.enter(episode, "model reply").await?;
                agent
                    .state()
                    .sessions
                    .model_replied(episode, execution, operation, &reply)?
            }
            Next::CallTool {
                operation,
                name,
                arguments,
            } => {
                let _permit = agent.enter(episode, format!("tool {name}")).await?;
                let reply = calls.tool(&session, operation, name, arguments).await?;
                agent
                    .state()
                    .sessions
                    .tool_replied(episode, execution, operation, &reply)?
            }
            Next::Nothing => {
                let lost = || AgentError::Lost {
                    episode: episode.clone(),
                };
                let completed = session.parts().completed.clone().ok_or_else(lost)?;
                return Ok((session, completed));
            }
        };
    }
}
