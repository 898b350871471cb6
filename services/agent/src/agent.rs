//! Sessions: seeded, invoked, joined, closed.
//!
//! One table owns all sessions; each activation that runs has a task. An Invoke only waits for the task's outcome, so it can be
//! dropped at any moment and made again.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use belay_core::{
    agent::{Activation, Completed, Params, Session, Sessions, Terms},
    ids::{Episode, ExecutionId, Instance, Kind},
    parts::CheckpointMode,
    refusal::{Reason, Refusal},
};
use belay_mesh::peers::Peers;
use belay_participant::{Gate, Permit};
use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    config::AgentConfig,
    error::AgentError,
    task::{self, Running},
};

/// How long a call whose place at the door was taken waits before it comes again.
const DOOR_PAUSE: Duration = Duration::from_millis(50);

/// What an activation comes to.
pub(crate) type Outcome = Result<(Arc<Session>, Arc<Completed>), Refusal>;

/// A session that is to be made.
#[derive(Clone, Debug)]
pub struct Seed {
    /// Which episode.
    pub episode: Episode,
    /// In which life.
    pub execution: ExecutionId,
    /// `responses_create_params`.
    pub params: Params,
    /// Where tools are called.
    pub resources: Instance,
    /// Whether that server can save its part.
    pub resources_mode: CheckpointMode,
    /// The resources session's revision after its seed.
    pub revision: u64,
    /// At most this many model calls; 0: the agent's own limit.
    pub max_steps: u32,
}

/// The agent: owns its sessions.
pub struct Agent {
    pub(crate) gate: Gate,
    pub(crate) peers: Peers,
    pub(crate) patience: Duration,
    pub(crate) tasks: TaskTracker,
    max_steps: u32,
    policy_model: String,
    state: Mutex<State>,
}

/// The table, and the tasks that run its loops.
pub(crate) struct State {
    pub(crate) sessions: Sessions,
    running: HashMap<ExecutionId, Handle>,
    /// Changes with every task that ends.
    ends: watch::Sender<()>,
}

struct Handle {
    stop: CancellationToken,
    /// Set once, when the task ends.
    tell: watch::Sender<Option<Outcome>>,
}

impl Agent {
    /// An agent without sessions.
    pub fn new(gate: Gate, peers: Peers, config: &AgentConfig) -> Self {
        let sessions = Sessions::new(gate.instance().clone()).with_mode(config.mode);
        Self {
            gate,
            peers,
            patience: config.common.patience,
            tasks: TaskTracker::new(),
            max_steps: config.max_steps,
            policy_model: config.policy_model.clone(),
            state: Mutex::new(State {
                sessions,
                running: HashMap::new(),
                ends: watch::Sender::new(()),
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A turn of the table that panicked has changed nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a session, or finds the one that this seed has made.
    pub async fn seed(&self, seed: Seed) -> Result<Arc<Session>, AgentError> {
        let _permit = self.gate.enter(&seed.episode, "seed session").await?;
        self.seed_here(seed)
    }

    /// The same under a permit that the caller holds.
    pub(crate) fn seed_here(&self, seed: Seed) -> Result<Arc<Session>, AgentError> {
        let placed = self
            .peers
            .members
            .place(Kind::PolicyModel, &self.policy_model, &seed.episode.rollout);
        let policy_model = placed.ok_or_else(|| AgentError::NoPolicyModel {
            name: self.policy_model.clone(),
        })?;
        let terms = Terms {
            name: seed.episode.rollout.to_string(),
            params: seed.params,
            resources: seed.resources,
            resources_mode: seed.resources_mode,
            revision: seed.revision,
            policy_model,
            max_steps: match seed.max_steps {
                0 => self.max_steps,
                limit => limit,
            },
        };
        Ok(self.state().sessions.seed(&seed.episode, seed.execution, terms)?)
    }

    /// Runs an activation to its end, joins it, or replies again. After a restore it goes on from the session's boundary.
    pub async fn invoke(
        self: &Arc<Self>,
        episode: &Episode,
        execution: ExecutionId,
        number: u32,
        input: &Bytes,
    ) -> Result<(Arc<Session>, Arc<Completed>), AgentError> {
        let permit = self.gate.enter(episode, "invoke").await?;
        self.invoke_under(permit, episode, execution, number, input).await
    }

    /// The same under a permit that the caller holds, which goes when the loop runs.
    pub(crate) async fn invoke_under(
        self: &Arc<Self>,
        permit: Permit,
        episode: &Episode,
        execution: ExecutionId,
        number: u32,
        input: &Bytes,
    ) -> Result<(Arc<Session>, Arc<Completed>), AgentError> {
        let mut outcome = {
            // Whoever only waits for another's loop holds no permit meanwhile.
            let permit = permit;
            let mut state = self.state();
            match state.sessions.activate(episode, execution, number, input)? {
                Activation::Replied(session, completed) => return Ok((session, completed)),
                Activation::Join => state.join(execution),
                Activation::Drive(session) => Some(state.drive(self, episode, execution, session, permit)),
            }
        };
        let lost = || AgentError::Lost {
            episode: episode.clone(),
        };
        let outcome = match &mut outcome {
            Some(outcome) => outcome.wait_for(Option::is_some).await.map_err(|_| lost())?,
            None => return Err(lost()),
        };
        Ok(outcome.clone().unwrap_or_else(|| Err(lost().into()))?)
    }

    /// Ends a session, and its loop if it runs.
    pub async fn close(&self, episode: &Episode, execution: ExecutionId) -> Result<(), AgentError> {
        match self.gate.enter(episode, "close session").await {
            Ok(_permit) => self.close_here(episode, execution).await,
            // It is retired: it is gone, or will be in a moment.
            Err(refusal) if refusal.reason == Reason::StaleAttempt => Ok(()),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The same under a permit that the caller holds.
    pub(crate) async fn close_here(
        &self,
        episode: &Episode,
        execution: ExecutionId,
    ) -> Result<(), AgentError> {
        let ended = {
            let mut state = self.state();
            let driven = state.sessions.close(episode, execution)?;
            state.stop(&[execution]);
            driven.then(|| state.join(execution)).flatten()
        };
        if let Some(mut ended) = ended {
            let _ = ended.wait_for(Option::is_some).await;
        }
        Ok(())
    }

    /// A permit for a step of a session that was admitted before. It waits apart from the door, where calls from outside wait:
    /// those are bounded.
    pub(crate) async fn enter(
        &self,
        episode: &Episode,
        step: impl Into<Cow<'static, str>>,
    ) -> Result<Permit, Refusal> {
        let step = step.into();
        loop {
            self.gate.opened().await;
            match self.gate.enter(episode, step.clone()).await {
                Err(refusal) if refusal.reason == Reason::AdmissionFull => {
                    tokio::time::sleep(DOOR_PAUSE).await
                }
                other => return other,
            }
        }
    }

    /// What a loop ends with that was stopped.
    pub(crate) fn stopped(&self, episode: &Episode) -> Refusal {
        self.gate.check_mark(episode).err().unwrap_or_else(|| {
            let instance = self.gate.instance();
            Refusal::new(
                Reason::EpisodeUnknown,
                format!("the session of {episode} was closed on {instance} while its loop ran"),
            )
            .episode(episode)
            .instance(instance)
        })
    }

    /// The task of a loop has ended.
    pub(crate) fn ended(&self, episode: &Episode, execution: ExecutionId, outcome: Outcome) {
        let mut state = self.state();
        state.sessions.ended(episode, execution);
        if let Some(handle) = state.running.remove(&execution) {
            handle.tell.send_replace(Some(outcome));
        }
        state.ends.send_replace(());
    }
}

impl State {
    fn drive(
        &mut self,
        agent: &Arc<Agent>,
        episode: &Episode,
        execution: ExecutionId,
        session: Arc<Session>,
        permit: Permit,
    ) -> watch::Receiver<Option<Outcome>> {
        let (tell, outcome) = watch::channel(None);
        let stop = CancellationToken::new();
        self.running.insert(
            execution,
            Handle {
                stop: stop.clone(),
                tell,
            },
        );
        let running = Running {
            episode: episode.clone(),
            execution,
            session,
            stop,
        };
        // In the same turn: a loop that is driven has a task.
        task::start(agent, running, permit);
        outcome
    }

    fn join(&self, execution: ExecutionId) -> Option<watch::Receiver<Option<Outcome>>> {
        Some(self.running.get(&execution)?.tell.subscribe())
    }

    /// Stops the loops of these lives.
    pub(crate) fn stop(&self, lives: &[ExecutionId]) {
        for execution in lives {
            if let Some(handle) = self.running.get(execution) {
                handle.stop.cancel();
            }
        }
    }

    /// Changes with every task that ends.
    pub(crate) fn watch_ends(&self) -> watch::Receiver<()> {
        self.ends.subscribe()
    }
}
