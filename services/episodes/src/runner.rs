//! A Run in, a result out.
//!
//! One table owns all episodes; each one that runs has a task. A caller only waits for the task's outcome, so it can go away at
//! any moment and come back.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use belay_core::{
    episode::{Admission, Boundary, Episodes, Finished, Freed, Life, Look, Request, Step, StepDone},
    ids::{Episode, ExecutionId, Instance, RolloutId},
    refusal::{Reason, Refusal},
};
use belay_mesh::{
    peers::{self, Peers},
    wire::ToWire as _,
};
use belay_participant::{Gate, Permit};
use belay_proto::episode as pb;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;
use uuid::Uuid;

use crate::{
    agents::AgentSessions,
    error::EpisodeError,
    steps,
    task::{self, Running},
};

/// How long Acknowledge waits for the ledgers to end; they end later if the mesh is closed.
const ACKNOWLEDGE: Duration = Duration::from_secs(5);
/// How long another replica is asked whether it holds a rollout.
const LOCATE: Duration = Duration::from_secs(5);
/// How long a call whose place at the door was taken waits before it comes again.
const DOOR_PAUSE: Duration = Duration::from_millis(50);

/// What an episode comes to.
pub(crate) type Outcome = Result<Arc<Finished>, Refusal>;

/// How episodes are run.
#[derive(Clone, Copy, Debug)]
pub struct RunnerOptions {
    /// For how long another server is tried before the episode fails.
    pub patience: Duration,
    /// At most this many results wait to be acknowledged; then new Runs are refused with ADMISSION_FULL.
    pub max_unacknowledged: usize,
    /// Episodes have boundaries to go on from. Without, each one that runs is a restart: never saved, never waited for.
    pub boundaries: bool,
}

/// Runs episodes, and owns them.
pub struct Runner<A> {
    pub(crate) gate: Gate,
    pub(crate) peers: Peers,
    pub(crate) agents: A,
    pub(crate) patience: Duration,
    pub(crate) tasks: TaskTracker,
    state: Mutex<State>,
}

/// The table, and the tasks that run its episodes.
pub(crate) struct State {
    pub(crate) episodes: Episodes,
    running: HashMap<ExecutionId, Handle>,
    /// Changes with every task that ends.
    ends: watch::Sender<()>,
}

struct Handle {
    stop: CancellationToken,
    /// Set once, when the task ends.
    tell: watch::Sender<Option<Outcome>>,
}

impl<A: AgentSessions> Runner<A> {
    /// A runner without episodes.
    pub fn new(gate: Gate, peers: Peers, agents: A, options: RunnerOptions) -> Self {
        let episodes = Episodes::new(gate.instance().clone(), options.max_unacknowledged);
        let episodes = match options.boundaries {
            true => episodes,
            false => episodes.without_boundaries(),
        };
        Self {
            gate,
            peers,
            agents,
            patience: options.patience,
            tasks: TaskTracker::new(),
            state: Mutex::new(State {
                episodes,
                running: HashMap::new(),
                ends: watch::Sender::new(()),
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A turn of the table that panicked has changed nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an episode to its end, joins it, or replies again.
    pub async fn run(self: &Arc<Self>, request: Request) -> Result<Arc<Finished>, EpisodeError> {
        let outcome = match self.known(&request) {
            Some(outcome) => outcome,
            None => self.admit(&request).await?,
        };
        let result = match outcome {
            Answer::Done(finished) => Ok(finished),
            Answer::Runs(mut outcome) => match outcome.wait_for(Option::is_some).await {
                Ok(outcome) => outcome.clone().expect("it was waited for"),
                Err(_) => Err(Refusal::from(EpisodeError::Lost {
                    episode: request.episode.clone(),
                })),
            },
        };
        // What the capture says of it must still be true when the controller hears of it.
        self.gate.reply_may_leave().await;
        Ok(result?)
    }

    /// A Run of an episode that runs or is done needs no admission, so it does not wait at the door. Everything else does,
    /// refusals too: while a restore is under way nobody knows yet what is staged here.
    fn known(&self, request: &Request) -> Option<Answer> {
        let state = self.state();
        match state.episodes.look(request).ok()? {
            Look::Join => state.join(&request.episode),
            Look::Replied(finished) => Some(Answer::Done(finished)),
            Look::Unclaimed | Look::Absent => None,
        }
    }

    async fn admit(self: &Arc<Self>, request: &Request) -> Result<Answer, EpisodeError> {
        let episode = &request.episode;
        if !self.state().episodes.holds(&episode.rollout) {
            self.owned_here(episode).await?;
        }
        let permit = self.gate.enter(episode, "admit").await?;
        let mut state = self.state();
        if state.episodes.look(request)? == Look::Absent {
            // Nothing is started that could not go on.
            steps::place_resources(&self.peers, &request.work.environment, episode)?;
            self.agents.place(&request.work.agent, episode)?;
            self.agents.may_begin(episode)?;
        }
        let fresh = ExecutionId(Uuid::now_v7());
        match state.episodes.admit(request, fresh, self.gate.open_time())? {
            Admission::Replied(finished) => Ok(Answer::Done(finished)),
            Admission::Join => state.join(episode).ok_or_else(|| EpisodeError::Lost {
                episode: episode.clone(),
            }),
            Admission::Start(life) | Admission::Claim(life) => {
                let (tell, outcome) = watch::channel(None);
                let stop = CancellationToken::new();
                state.running.insert(
                    life.execution,
                    Handle {
                        stop: stop.clone(),
                        tell,
                    },
                );
                // In the same turn: whoever is admitted has a task.
                task::start(self, Running { life, stop }, permit);
                Ok(Answer::Runs(outcome))
            }
        }
    }

    /// WRONG_REPLICA, when another replica is to run the rollout or runs it already.
    async fn owned_here(&self, episode: &Episode) -> Result<(), EpisodeError> {
        let me = self.gate.instance();
        let wrong = |owner: Instance| EpisodeError::WrongReplica {
            episode: episode.clone(),
            owner,
        };
        let members = self.peers.members.all();
        let others = members
            .into_iter()
            .map(|member| member.instance)
            .filter(|instance| instance.same_server(me) && instance != me);
        let others: Vec<Instance> = others.collect();
        if others.is_empty() {
            return Ok(());
        }
        if let Some(owner) = self.peers.members.place(me.kind, &me.name, &episode.rollout)
            && owner != *me
        {
            return Err(wrong(owner));
        }
        // The member list may have changed since the rollout was placed.
        for other in others {
            if self.locate(&other, &episode.rollout).await? {
                return Err(wrong(other));
            }
        }
        Ok(())
    }

    async fn locate(&self, other: &Instance, rollout: &RolloutId) -> Result<bool, Refusal> {
        let client = self.peers.environment(other)?;
        let request = pb::LocateRequest {
            rollout_id: rollout.to_string(),
        };
        let reply = peers::call(other, "Locate", LOCATE.min(self.patience), || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.locate(request).await }
        })
        .await?;
        Ok(reply.held)
    }

    /// This replica holds an episode of the rollout.
    pub fn holds(&self, rollout: &RolloutId) -> bool {
        self.state().episodes.holds(rollout)
    }

    /// A finished, unacknowledged episode.
    pub fn finished(&self, episode: &Episode) -> Result<Arc<Finished>, Refusal> {
        self.state().episodes.finished(episode)
    }

    /// Frees results now, and ends their ledgers in a task, which the caller may wait for.
    pub fn acknowledge(self: &Arc<Self>, episodes: &[Episode]) -> (u32, impl Future<Output = ()> + use<A>) {
        let freed = self.state().episodes.acknowledge(episodes);
        let count = freed.len() as u32;
        let mut by_ledger: BTreeMap<Instance, Vec<Freed>> = BTreeMap::new();
        for one in freed {
            by_ledger.entry(one.policy_model.clone()).or_default().push(one);
        }
        let ends: Vec<_> = by_ledger
            .into_iter()
            .map(|(policy_model, freed)| {
                let runner = self.clone();
                self.tasks
                    .spawn(async move { runner.end_ledgers(&policy_model, &freed).await })
            })
            .collect();
        let ended = async move {
            let _ = tokio::time::timeout(ACKNOWLEDGE, futures_util::future::join_all(ends)).await;
        };
        (count, ended)
    }

    /// Ends ledgers, while the mesh is open: a capture of theirs belongs to one in which their episodes were not acknowledged.
    async fn end_ledgers(&self, policy_model: &Instance, freed: &[Freed]) {
        let Some(first) = freed.first() else { return };
        // Without one where it is retired: its ledger goes by that, the others' still have to.
        let permit = self.enter(&first.episode, "end of ledger").await.ok();
        let refs = freed
            .iter()
            .map(|one| (&one.episode, one.execution).to_wire())
            .collect();
        let request = pb::EndEpisodesRequest { refs };
        let ended = async {
            let client = self.peers.policy_model(policy_model)?;
            peers::call(policy_model, "EndEpisodes", self.patience, || {
                let (mut client, request) = (client.clone(), request.clone());
                async move { client.end_episodes(request).await }
            })
            .await
        };
        if let Err(refusal) = ended.await {
            warn!(
                ledgers = freed.len(),
                "ledgers of acknowledged episodes stay until their rollouts are forgotten: {refusal}"
            );
        }
        drop(permit);
    }

    /// A permit for a step of an episode that was admitted before. It waits apart from the door, where new Runs wait: those are
    /// counted as not admitted, and bounded.
    pub(crate) async fn enter(
        &self,
        episode: &Episode,
        step: impl Into<StepName>,
    ) -> Result<Permit, Refusal> {
        let step = step.into().0;
        loop {
            self.gate.opened().await;
            match self.gate.enter(episode, step).await {
                Err(refusal) if refusal.reason == Reason::AdmissionFull => {
                    tokio::time::sleep(DOOR_PAUSE).await
                }
                other => return other,
            }
        }
    }

    pub(crate) fn record(&self, life: &Life, done: StepDone) -> Result<Boundary, Refusal> {
        self.state()
            .episodes
            .record(&life.episode, life.execution, done)
            .ok_or_else(|| self.retired(&life.episode))
    }

    pub(crate) fn result(&self, life: &Life) -> Result<Arc<Finished>, EpisodeError> {
        Ok(self.state().episodes.finished(&life.episode)?)
    }

    pub(crate) fn failed(&self, life: &Life, why: Refusal) {
        self.state().episodes.fail(&life.episode, life.execution, why);
    }

    /// What an attempt ends with that was retired while it ran.
    pub(crate) fn retired(&self, episode: &Episode) -> Refusal {
        self.gate.check_mark(episode).err().unwrap_or_else(|| {
            let next = episode.attempt.saturating_add(1);
            let instance = self.gate.instance();
            Refusal::new(
                Reason::StaleAttempt,
                format!("{episode} was stopped on {instance}; send attempt {next}"),
            )
            .episode(episode)
            .instance(instance)
            .with("next_attempt", next)
        })
    }

    /// The task of an episode has ended.
    pub(crate) fn ended(&self, life: &Life, outcome: Outcome) {
        let mut state = self.state();
        if let Err(refusal) = &outcome {
            // Done already by a task that failed in order; a retired one stays retired.
            state
                .episodes
                .fail(&life.episode, life.execution, refusal.clone());
        }
        state.episodes.ended(&life.episode, life.execution);
        if let Some(handle) = state.running.remove(&life.execution) {
            handle.tell.send_replace(Some(outcome));
        }
        state.ends.send_replace(());
    }
}

/// What a Run waits for.
enum Answer {
    Done(Arc<Finished>),
    Runs(watch::Receiver<Option<Outcome>>),
}

/// The name of a step that a permit is taken for.
pub(crate) struct StepName(&'static str);

impl From<Step> for StepName {
    fn from(step: Step) -> Self {
        Self(step.as_str())
    }
}

impl From<&'static str> for StepName {
    fn from(name: &'static str) -> Self {
        Self(name)
    }
}

impl State {
    fn join(&self, episode: &Episode) -> Option<Answer> {
        let execution = self.episodes.execution(episode)?;
        Some(Answer::Runs(self.running.get(&execution)?.tell.subscribe()))
    }

    /// Stops the tasks of these lives.
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
