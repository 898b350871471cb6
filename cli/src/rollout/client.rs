//! A controller's side of one rollout: what it sends, and what it does about each answer (docs/driving.md has the rules).

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use belay_core::{
    ids::{Episode, RolloutId},
    refusal::{Reason, Refusal},
};
use belay_mesh::{
    channel::{Channels, MeshChannel},
    server::MAX_MESSAGE,
    status::{self, IntoRefusal as _},
    wire::ToWire as _,
};
use belay_proto::{
    checkpoint::{
        CoordinatorForgetRequest, CoordinatorRetireRequest, Mark, coordinator_client::CoordinatorClient,
    },
    episode::{
        AcknowledgeRequest, Expect, GetTrajectoryRequest, RunRequest, RunResponse, TrajectoryRow,
        environment_client::EnvironmentClient,
    },
};
use bytes::Bytes;
use tonic::Status;

use super::locate::Locate;

/// One rollout to be run.
#[derive(Clone, Debug)]
pub struct RolloutSpec {
    /// Its id.
    pub rollout: RolloutId,
    /// The environment's name.
    pub environment: String,
    /// The task row.
    pub task: Bytes,
    /// At most this many model calls; 0: the agent's own limit.
    pub max_steps: u32,
}

/// How patient a controller is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// With a mesh that does not answer: it may be on its way back from a crash.
    pub mesh: Duration,
    /// Attempts that may fail before the rollout does.
    pub attempts: u32,
}

/// Why a rollout has no result.
#[derive(Debug, thiserror::Error)]
pub enum RolloutFailure {
    /// The mesh did not answer for as long as the controller is patient.
    #[error("the mesh did not answer for {0:?}; the last error: {1}")]
    Unreachable(Duration, String),
    /// It was refused, and would be again.
    #[error("{0}")]
    Refused(Refusal),
    /// Its attempts failed.
    #[error("{0} attempts failed; the last one: {1}")]
    Attempts(u32, Refusal),
    /// It was run before, and the mesh has let its result go.
    #[error(
        "{0} was run before and its result is acknowledged; `belay forget {0}` lets it run again, or give the row a rollout_id \
         of its own"
    )]
    Over(RolloutId),
    /// Each time that it had a result, the mesh crashed before its tokens were read.
    #[error("its trajectory cannot be read: {0}")]
    Trajectory(String),
}

/// A controller of rollouts. Cheap to clone.
#[derive(Clone)]
pub struct RolloutClient {
    locate: Arc<Locate>,
    channels: Channels,
    patience: Patience,
    environment: Arc<Mutex<Option<String>>>,
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Rollouts that are forgotten in one call.
const FORGET_BATCH: usize = 1_000;
/// With a coordinator that is busy when all is done.
const FORGET_PATIENCE: Duration = Duration::from_secs(30);

impl RolloutClient {
    /// Of the mesh that `locate` finds.
    pub fn new(locate: Locate, patience: Patience) -> Self {
        let channels = Channels::default();
        Self {
            locate: Arc::new(locate),
            channels,
            patience,
            environment: Arc::default(),
        }
    }

    /// Runs a rollout to its end, over crashes and restores of the mesh, and replies its result, which is not acknowledged yet.
    pub async fn run_to_end(&self, spec: &RolloutSpec) -> Result<RunResponse, RolloutFailure> {
        let mut episode = Episode::new(spec.rollout.clone(), 0);
        let mut failed = 0;
        let mut trouble = Trouble::new(self.patience.mesh);
        loop {
            let error = match self.run_once(spec, &episode).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let Some(refusal) = status::from_status(&error) else {
                if !status::is_transport(&error) {
                    return Err(RolloutFailure::Refused(error.into_refusal()));
                }
                // The mesh is gone; when it is back it may be somewhere else.
                self.forget_address();
                trouble.pause(status::describe(&error)).await?;
                continue;
            };
            if refusal.retry_after.is_some() {
                trouble.pause(refusal.to_string()).await?;
                continue;
            }
            trouble = Trouble::new(self.patience.mesh);
            match refusal.reason {
                Reason::StaleAttempt => episode.attempt = next_attempt(&refusal, &episode)?,
                reason if ends_attempt(reason) => {
                    failed += 1;
                    if failed >= self.patience.attempts {
                        return Err(RolloutFailure::Attempts(failed, refusal));
                    }
                    episode.attempt = self.retire(&episode, &mut trouble).await?;
                }
                _ => return Err(RolloutFailure::Refused(refusal)),
            }
        }
    }

    /// As [`run_to_end`](Self::run_to_end), with the tokens of its model calls. A mesh that is restored in between has the result
    /// under another attempt, so it is asked for again.
    pub async fn run_to_trajectory(
        &self,
        spec: &RolloutSpec,
    ) -> Result<(RunResponse, Vec<TrajectoryRow>), RolloutFailure> {
        let mut tries = 0;
        loop {
            let result = self.run_to_end(spec).await?;
            let attempt = result.episode.as_ref().map_or(0, |episode| episode.attempt);
            let read = self
                .trajectory(&Episode::new(spec.rollout.clone(), attempt))
                .await;
            let error = match read {
                Ok(rows) => return Ok((result, rows)),
                Err(error) => error,
            };
            tries += 1;
            let moved = match status::from_status(&error) {
                Some(refusal) => refusal.retry_after.is_some() || ends_attempt(refusal.reason),
                None => status::is_transport(&error),
            };
            if !moved || tries >= self.patience.attempts {
                return Err(RolloutFailure::Trajectory(status::describe(&error)));
            }
            self.forget_address();
        }
    }

    async fn run_once(&self, spec: &RolloutSpec, episode: &Episode) -> Result<RunResponse, Status> {
        let request = RunRequest {
            episode: Some(episode.to_wire()),
            expect: Expect::Either.into(),
            environment: spec.environment.clone(),
            task: spec.task.clone(),
            max_steps: spec.max_steps,
            ..Default::default()
        };
        Ok(self.environment().await?.run(request).await?.into_inner())
    }

    /// Ends an attempt for good, and replies the one to send next.
    async fn retire(&self, episode: &Episode, trouble: &mut Trouble) -> Result<u32, RolloutFailure> {
        loop {
            let request = CoordinatorRetireRequest {
                marks: vec![Mark {
                    rollout_id: episode.rollout.as_str().into(),
                    attempt: episode.attempt,
                }],
                timeout: None,
            };
            let retired = match self.coordinator() {
                Ok(mut coordinator) => coordinator.retire(request).await,
                Err(error) => Err(error),
            };
            let error = match retired {
                Ok(reply) => {
                    let next = reply
                        .into_inner()
                        .next
                        .into_iter()
                        .next()
                        .map(|next| next.attempt);
                    return Ok(next.unwrap_or(episode.attempt + 1));
                }
                Err(error) => error,
            };
            if !passing(&error, status::from_status(&error).as_ref()) {
                return Err(RolloutFailure::Refused(error.into_refusal()));
            }
            trouble.pause(status::describe(&error)).await?;
        }
    }

    /// Frees results that are durable here. A lost acknowledgement costs memory there, no more: what fails is said, not repeated.
    pub async fn acknowledge(&self, episodes: Vec<Episode>) -> Result<(), Status> {
        let episodes = episodes.iter().map(|episode| episode.to_wire()).collect();
        self.environment()
            .await?
            .acknowledge(AcknowledgeRequest { episodes })
            .await?;
        Ok(())
    }

    /// Lets the mesh forget rollouts whose results are durable here. One that a restore has brought back meanwhile is retired
    /// first: nobody will ask for it. What does not succeed in time costs memory there, no more.
    pub async fn forget(&self, rollouts: &[RolloutId]) -> Result<(), RolloutFailure> {
        let mut trouble = Trouble::new(self.patience.mesh.min(FORGET_PATIENCE));
        for batch in rollouts.chunks(FORGET_BATCH) {
            // Each retire takes one obstacle away, and a rollout has one living attempt.
            let mut retires = batch.len();
            loop {
                let rollout_ids = batch.iter().map(|rollout| rollout.as_str().to_owned()).collect();
                let forgotten = match self.coordinator() {
                    Ok(mut coordinator) => coordinator.forget(CoordinatorForgetRequest { rollout_ids }).await,
                    Err(error) => Err(error),
                };
                let Err(error) = forgotten else { break };
                match (status::from_status(&error), living(&error)) {
                    (_, Some(episode)) if retires > 0 => {
                        retires -= 1;
                        self.retire(&episode, &mut trouble).await?;
                    }
                    (refusal, _) if passing(&error, refusal.as_ref()) => {
                        trouble.pause(status::describe(&error)).await?
                    }
                    _ => return Err(RolloutFailure::Refused(error.into_refusal())),
                }
            }
        }
        Ok(())
    }

    /// The tokens of a finished episode.
    pub async fn trajectory(&self, episode: &Episode) -> Result<Vec<TrajectoryRow>, Status> {
        let request = GetTrajectoryRequest {
            episode: Some(episode.to_wire()),
        };
        let mut rows = self
            .environment()
            .await?
            .get_trajectory(request)
            .await?
            .into_inner();
        let mut trajectory = Vec::new();
        while let Some(message) = rows.message().await? {
            trajectory.extend(message.row);
        }
        Ok(trajectory)
    }

    /// The environments that the mesh has.
    pub async fn environments(&self) -> anyhow::Result<Vec<String>> {
        self.locate.environments(&self.channels).await
    }

    fn coordinator(&self) -> Result<CoordinatorClient<MeshChannel>, Status> {
        let address = self.locate.coordinator();
        let address = address.map_err(|error| Status::unavailable(format!("{error:#}")))?;
        Ok(CoordinatorClient::new(self.channels.control(&address)))
    }

    async fn environment(&self) -> Result<EnvironmentClient<MeshChannel>, Status> {
        let known = self
            .environment
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let address = match known {
            Some(address) => address,
            None => {
                let found = self.locate.environment(&self.channels).await;
                let address = found.map_err(|error| Status::unavailable(format!("{error:#}")))?;
                *self.environment.lock().unwrap_or_else(PoisonError::into_inner) = Some(address.clone());
                address
            }
        };
        Ok(EnvironmentClient::new(self.channels.data(&address))
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE))
    }

    fn forget_address(&self) {
        *self.environment.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The coordinator can do it later: it is away, or in a run.
fn passing(error: &Status, refusal: Option<&Refusal>) -> bool {
    status::is_transport(error)
        || refusal.is_some_and(|r| r.reason == Reason::CheckpointConflict || r.retry_after.is_some())
}

/// The episode that keeps a rollout from being forgotten.
fn living(error: &Status) -> Option<Episode> {
    let refusal = status::from_status(error).filter(|refusal| refusal.reason == Reason::RolloutLive)?;
    let rollout = RolloutId::new(refusal.get("rollout_id")?).ok()?;
    Some(Episode::new(rollout, refusal.get("attempt")?.parse().ok()?))
}

/// The attempt that a refusal names. A controller computes none.
fn next_attempt(refusal: &Refusal, episode: &Episode) -> Result<u32, RolloutFailure> {
    let named = refusal.get("next_attempt").and_then(|next| next.parse().ok());
    match named {
        Some(next) if next != episode.attempt => Ok(next),
        Some(_) => Err(RolloutFailure::Refused(refusal.clone())),
        None => Err(RolloutFailure::Over(episode.rollout.clone())),
    }
}

/// The attempt is over, and another one can do better: a server lost its part, or the engine or a peer failed.
fn ends_attempt(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::EpisodeUnknown
            | Reason::StaleExecution
            | Reason::OperationPast
            | Reason::OperationMismatch
            | Reason::EngineFailed
            | Reason::PeerUnreachable
            | Reason::DeadlinePassed
            | Reason::AttemptLive
    )
}

/// The time since the mesh last answered, and how long to wait before it is asked again.
struct Trouble {
    patience: Duration,
    since: Option<Instant>,
    pause: Duration,
}

impl Trouble {
    fn new(patience: Duration) -> Self {
        Self {
            patience,
            since: None,
            pause: FIRST_PAUSE,
        }
    }

    async fn pause(&mut self, last_error: String) -> Result<(), RolloutFailure> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.patience {
            return Err(RolloutFailure::Unreachable(self.patience, last_error));
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
