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
    environment::{Environment, Outcome},
    error::EnvironmentError,
    steps::{Steps, Touched},
};

/// An episode whose task runs.
pub(crate) struct Running {
    pub(crate) life: Life,
    /// Cancelled when the attempt is retired.
    pub(crate) stop: CancellationToken,
}

/// Starts the task of an episode that was admitted under this permit.
pub(crate) fn start(environment: &Arc<Environment>, running: Running, admitted: Permit) {
    let span = info_span!("episode", rollout = %running.life.episode.rollout, attempt = running.life.episode.attempt);
    let mut ending = Ending {
        environment: environment.clone(),
        running: Arc::new(running),
        outcome: None,
    };
    environment.tasks.spawn(
        async move {
            // It is in the table: from here on it is parked at its boundary until a step begins.
            drop(admitted);
            let outcome = run(&ending.environment, &ending.running).await;
            ending.with(outcome);
        }
        .instrument(span),
    );
}

/// Tells the outcome when the task ends, however it does.
struct Ending {
    environment: Arc<Environment>,
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
        let life = &self.running.life;
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let lost = Refusal::from(EnvironmentError::Lost {
                episode: life.episode.clone(),
            });
            Err(lost.instance(self.environment.gate.instance()))
        });
        self.environment.ended(life, outcome);
    }
}

async fn run(environment: &Environment, running: &Running) -> Outcome {
    let life = &running.life;
    let mut boundary = life.boundary.clone();
    let mut touched = Touched::of(&boundary);
    let failed = tokio::select! {
        biased;
        () = running.stop.cancelled() => return Err(environment.retired(&life.episode)),
        () = deadline(environment, life.deadline) => None,
        done = steps(environment, running, &mut boundary, &mut touched) => match done {
            Ok(finished) => return Ok(finished),
            Err(error) => Some(error),
        },
    };
    let episode = life.episode.clone();
    let step = boundary.step();
    let error = match failed {
        None => EnvironmentError::Deadline { episode, step },
        Some(EnvironmentError::Refused(refusal)) => EnvironmentError::Step {
            episode,
            step,
            refusal,
        },
        Some(error) => error,
    };
    let mut why = Refusal::from(error);
    if why.get("instance").is_none() {
        why = why.instance(environment.gate.instance());
    }
    tokio::select! {
        biased;
        () = running.stop.cancelled() => Err(environment.retired(&life.episode)),
        outcome = fail(environment, running, &touched, step, why) => outcome,
    }
}

async fn deadline(environment: &Environment, deadline: Deadline) {
    match deadline {
        Deadline::Until(time) => environment.gate.open_time_reaches(time).await,
        Deadline::Never | Deadline::Left(_) => std::future::pending().await,
    }
}

/// All steps that are left.
async fn steps(
    environment: &Environment,
    running: &Running,
    boundary: &mut Boundary,
    touched: &mut Touched,
) -> Result<Arc<Finished>, EnvironmentError> {
    let life = &running.life;
    let steps = Steps {
        peers: &environment.peers,
        patience: environment.patience,
        running,
    };
    loop {
        let step = boundary.step();
        let held = match boundary.mode() {
            StepMode::Wait => Some(environment.enter(&life.episode, step).await?),
            StepMode::Replay => None,
        };
        let done = steps.perform(boundary, touched).await?;
        let _permit = match held {
            Some(permit) => permit,
            None => environment.enter(&life.episode, step).await?,
        };
        *boundary = environment.record(life, done)?;
        if boundary.step() == Step::Return {
            return environment.result(life);
        }
    }
}

/// The attempt is over. It lives until what it left is cleaned up, so that the next one finds no trace of it.
async fn fail(
    environment: &Environment,
    running: &Running,
    touched: &Touched,
    step: Step,
    why: Refusal,
) -> Outcome {
    let life = &running.life;
    let _permit = environment.enter(&life.episode, step).await?;
    info!(%step, "the attempt failed: {why}");
    let steps = Steps {
        peers: &environment.peers,
        patience: environment.patience,
        running,
    };
    steps.clean_up(touched).await;
    environment.failed(life, why.clone());
    Err(why)
}
