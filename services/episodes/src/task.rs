//! The task of one episode: step after step, each recorded as a boundary. It outlives whoever asked for it.
//!
//! A `wait` step holds a permit from its start until its boundary is recorded, so a checkpoint waits for it and names it. A
//! `replay` step holds none while it runs: a checkpoint cuts it at the boundary before it. What it brings is recorded under a
//! permit of its own, hence only while the mesh is open. Between two steps no permit is held: there the episode parks.

use std::sync::Arc;

use belay_core::{
    episode::{Boundary, Deadline, Finished, Life, Step, StepMode},
    refusal::Refusal,
};
use belay_participant::Permit;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span};

use crate::{
    agents::AgentSessions,
    error::EpisodeError,
    runner::{Outcome, Runner},
    steps::{Steps, Touched},
};

/// An episode whose task runs.
pub(crate) struct Running {
    pub(crate) life: Life,
    /// Cancelled when the attempt is retired.
    pub(crate) stop: CancellationToken,
}

/// Starts the task of an episode that was admitted under this permit.
pub(crate) fn start<A: AgentSessions>(runner: &Arc<Runner<A>>, running: Running, admitted: Permit) {
    let span = info_span!("episode", rollout = %running.life.episode.rollout, attempt = running.life.episode.attempt);
    let mut ending = Ending {
        runner: runner.clone(),
        running: Arc::new(running),
        outcome: None,
    };
    runner.tasks.spawn(
        async move {
            // It is in the table: from here on it is parked at its boundary until a step begins.
            drop(admitted);
            let outcome = run(&ending.runner, &ending.running).await;
            ending.with(outcome);
        }
        .instrument(span),
    );
}

/// Tells the outcome when the task ends, however it does.
struct Ending<A: AgentSessions> {
    runner: Arc<Runner<A>>,
    running: Arc<Running>,
    outcome: Option<Outcome>,
}

impl<A: AgentSessions> Ending<A> {
    fn with(&mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl<A: AgentSessions> Drop for Ending<A> {
    fn drop(&mut self) {
        let life = &self.running.life;
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let lost = Refusal::from(EpisodeError::Lost {
                episode: life.episode.clone(),
            });
            Err(lost.instance(self.runner.gate.instance()))
        });
        self.runner.ended(life, outcome);
    }
}

async fn run<A: AgentSessions>(runner: &Runner<A>, running: &Running) -> Outcome {
    let life = &running.life;
    let mut boundary = life.boundary.clone();
    let mut touched = Touched::of(&boundary);
    let failed = tokio::select! {
        biased;
        () = running.stop.cancelled() => return Err(runner.retired(&life.episode)),
        () = deadline(runner, life.deadline) => None,
        done = steps(runner, running, &mut boundary, &mut touched) => match done {
            Ok(finished) => return Ok(finished),
            Err(error) => Some(error),
        },
    };
    let episode = life.episode.clone();
    let step = boundary.step();
    let error = match failed {
        None => EpisodeError::Deadline { episode, step },
        Some(EpisodeError::Refused(refusal)) => EpisodeError::Step {
            episode,
            step,
            refusal,
        },
        Some(error) => error,
    };
    let mut why = Refusal::from(error);
    if why.get("instance").is_none() {
        why = why.instance(runner.gate.instance());
    }
    tokio::select! {
        biased;
        () = running.stop.cancelled() => Err(runner.retired(&life.episode)),
        outcome = fail(runner, running, &touched, step, why) => outcome,
    }
}

async fn deadline<A: AgentSessions>(runner: &Runner<A>, deadline: Deadline) {
    match deadline {
        Deadline::Until(time) => runner.gate.open_time_reaches(time).await,
        Deadline::Never | Deadline::Left(_) => std::future::pending().await,
    }
}

/// All steps that are left.
async fn steps<A: AgentSessions>(
    runner: &Runner<A>,
    running: &Running,
    boundary: &mut Boundary,
    touched: &mut Touched,
) -> Result<Arc<Finished>, EpisodeError> {
    let life = &running.life;
    let steps = Steps { runner, running };
    loop {
        let step = boundary.step();
        let held = match boundary.mode() {
            StepMode::Wait => Some(runner.enter(&life.episode, step).await?),
            StepMode::Replay => None,
        };
        let done = steps.perform(boundary, touched).await?;
        let _permit = match held {
            Some(permit) => permit,
            None => runner.enter(&life.episode, step).await?,
        };
        *boundary = runner.record(life, done)?;
        if boundary.step() == Step::Return {
            return runner.result(life);
        }
    }
}

/// The attempt is over. It lives until what it left is cleaned up, so that the next one finds no trace of it.
async fn fail<A: AgentSessions>(
    runner: &Runner<A>,
    running: &Running,
    touched: &Touched,
    step: Step,
    why: Refusal,
) -> Outcome {
    let life = &running.life;
    let _permit = runner.enter(&life.episode, step).await?;
    info!(%step, "the attempt failed: {why}");
    let steps = Steps { runner, running };
    steps.clean_up(touched).await;
    runner.failed(life, why.clone());
    Err(why)
}
