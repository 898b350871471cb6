//! The sessions of one server, and what its calls do to them.
//!
//! A tool call is a task: whoever asked for it may go away, it runs to its end, and the next call of the same operation finds
//! it or its reply. The permit that it holds is what a checkpoint waits for; it is let go once effect and reply are recorded.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use belay_core::{
    ids::{Digest, Episode, ExecutionId, Operation, hex},
    parts::{CheckpointMode, VerifyMode},
    refusal::{Reason, Refusal},
    sessions::{Applied, Begin, KeptReply, SessionView, Sessions, call_digest},
};
use belay_participant::{Gate, Permit};
use bytes::Bytes;
use tokio::sync::watch;
use tracing::{Instrument as _, error};

use crate::{
    effects::{AppliedTool, Effect, EffectLog},
    environment::{Environment, ToolCall, ToolOutcome, Verdict},
    flight::{Flight, Landing},
    verifies::{BeginVerify, Verifies},
};

/// A tool's name in a step's name is at most this long: the model wrote it.
const SHOWN_NAME: usize = 64;

/// How sessions are served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) mode: CheckpointMode,
    pub(crate) verify: VerifyMode,
    pub(crate) shared: bool,
    pub(crate) session_ttl: Option<Duration>,
    pub(crate) restore_seeds_anew: bool,
}

/// One server's sessions.
pub(crate) struct Resources<E: Environment> {
    pub(crate) gate: Gate,
    pub(crate) environment: Arc<E>,
    pub(crate) settings: Settings,
    pub(crate) effects: Option<EffectLog>,
    state: Mutex<State<E>>,
    /// Told when a call or a verify ends: who waits for one to end looks again.
    ends: watch::Sender<()>,
}

/// What one lock guards.
pub(crate) struct State<E: Environment> {
    pub(crate) sessions: Sessions<Arc<E::State>>,
    pub(crate) verifies: Verifies,
    /// From begin until the effect is told: a re-issue waits for that too.
    calls: HashMap<CallKey, Flight<KeptReply>>,
}

/// One tool call in one life of an episode.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CallKey {
    pub(crate) episode: Episode,
    pub(crate) execution: ExecutionId,
    pub(crate) operation: Operation,
}

/// What a tool call replies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ToolReply {
    pub(crate) reply: KeptReply,
    /// Nothing was applied for this call.
    pub(crate) kept: bool,
}

impl<E: Environment> Resources<E> {
    pub(crate) fn new(gate: Gate, environment: E, settings: Settings, effects: Option<EffectLog>) -> Self {
        Self {
            state: Mutex::new(State {
                sessions: Sessions::new(gate.instance().clone()).with_ttl(settings.session_ttl),
                verifies: Verifies::default(),
                calls: HashMap::new(),
            }),
            gate,
            environment: Arc::new(environment),
            settings,
            effects,
            ends: watch::Sender::new(()),
        }
    }

    /// For a moment, never across an await.
    pub(crate) fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on: ends after this call are seen.
    pub(crate) fn watch_ends(&self) -> watch::Receiver<()> {
        self.ends.subscribe()
    }

    /// A session is used: its time to live begins anew. The time is read under the lock, so that an end never moves back.
    fn touch(&self, state: &mut State<E>, episode: &Episode, execution: ExecutionId) {
        state.sessions.touch(episode, execution, self.gate.open_time());
    }

    /// Makes a session; the revision after it.
    pub(crate) async fn seed(
        &self,
        episode: &Episode,
        execution: ExecutionId,
        task: Bytes,
    ) -> Result<u64, Refusal> {
        let _permit = self.gate.enter(episode, "seed").await?;
        {
            let mut state = self.state();
            if let Some(revision) = state.sessions.seeded(episode, execution, &task)? {
                self.touch(&mut state, episode, execution);
                return Ok(revision);
            }
        }
        let seeded = self
            .environment
            .seed(&task)
            .map_err(|error| self.named(error, episode))?;
        let revision = {
            let mut state = self.state();
            let revision = state.sessions.seed(episode, execution, task, Arc::new(seeded))?;
            self.touch(&mut state, episode, execution);
            revision
        };
        // A retire that ran since the gate was passed has not seen this session; one that is yet to run will.
        self.gate.check_mark(episode).inspect_err(|_| {
            self.state().sessions.retire(&episode.rollout, episode.attempt);
        })?;
        Ok(revision)
    }

    /// Applies a tool call, or gives the reply that is kept.
    pub(crate) async fn call_tool(
        self: &Arc<Self>,
        key: CallKey,
        name: String,
        arguments: Bytes,
    ) -> Result<ToolReply, Refusal> {
        let permit = self.gate.enter(&key.episode, step(&name)).await?;
        let digest = call_digest(&name, &arguments);
        let (flight, kept) = {
            let mut state = self.state();
            let begun = state
                .sessions
                .begin(&key.episode, key.execution, key.operation, digest)?;
            self.touch(&mut state, &key.episode, key.execution);
            match (begun, state.calls.get(&key).cloned()) {
                (Begin::Apply(session), _) => {
                    let (landing, flight) = Flight::new();
                    state.calls.insert(key.clone(), flight.clone());
                    let call = Call {
                        running: Running(self.clone(), key),
                        landing,
                        name,
                        arguments,
                        digest,
                        permit,
                    };
                    tokio::spawn(call.apply(session).in_current_span());
                    (flight, false)
                }
                // Its reply is there, or its effect is being told.
                (_, Some(flight)) => (flight, true),
                (Begin::Kept(reply), None) => return Ok(ToolReply { reply, kept: true }),
                (Begin::Joined, None) => return Err(self.defect(&key)),
            }
        };
        // A joiner's own permit went with the block: the call in flight has one.
        let reply = flight.wait().await?;
        Ok(ToolReply { reply, kept })
    }

    /// Scores a session.
    pub(crate) async fn verify(
        self: &Arc<Self>,
        episode: &Episode,
        execution: ExecutionId,
        response: Bytes,
    ) -> Result<Verdict, Refusal> {
        if self.settings.verify == VerifyMode::Replay {
            self.gate.enter_replay(episode)?;
            let (session, _ended) = {
                let mut state = self.state();
                let session = state.sessions.view(episode, execution)?;
                (session, self.begin_verify(&mut state, episode, execution))
            };
            return self.judge(&session, &response).await;
        }
        let permit = self.gate.enter(episode, "verify").await?;
        let flight = {
            let mut state = self.state();
            let session = state.sessions.view(episode, execution)?;
            let digest = *blake3::hash(&response).as_bytes();
            let begun = state.verifies.begin(episode, execution, digest);
            match begun.map_err(|refusal| refusal.instance(self.gate.instance()))? {
                BeginVerify::Joined(flight) => {
                    self.touch(&mut state, episode, execution);
                    flight
                }
                BeginVerify::Run(landing, flight) => {
                    let ended = self.begin_verify(&mut state, episode, execution);
                    let verifying = self
                        .clone()
                        .verify_once(session, response, landing, ended, permit);
                    tokio::spawn(verifying.in_current_span());
                    flight
                }
            }
        };
        flight.wait().await
    }

    /// The session is in use until the end is dropped.
    fn begin_verify(
        self: &Arc<Self>,
        state: &mut State<E>,
        episode: &Episode,
        execution: ExecutionId,
    ) -> VerifyEnded<E> {
        state.sessions.begin_verify(episode, execution);
        self.touch(state, episode, execution);
        VerifyEnded(self.clone(), episode.clone(), execution)
    }

    async fn verify_once(
        self: Arc<Self>,
        session: SessionView<Arc<E::State>>,
        response: Bytes,
        landing: Landing<Verdict>,
        ended: VerifyEnded<E>,
        permit: Permit,
    ) {
        let verdict = self.judge(&session, &response).await;
        landing.land(verdict);
        drop(ended);
        drop(permit);
    }

    async fn judge(&self, session: &SessionView<Arc<E::State>>, response: &[u8]) -> Result<Verdict, Refusal> {
        let verdict = self
            .environment
            .verify(&session.state, &session.task, response)
            .await;
        verdict.map_err(|error| self.named(error, &session.episode))
    }

    /// Ends a session, also one that is gone.
    pub(crate) async fn close(&self, episode: &Episode, execution: ExecutionId) -> Result<(), Refusal> {
        let _permit = self.gate.enter(episode, "close").await?;
        let mut state = self.state();
        state.sessions.close(episode, execution)?;
        state.verifies.forget(&episode.rollout, episode.attempt);
        Ok(())
    }

    /// Ends the sessions whose time to live is over; how many. One for which a call comes meanwhile stays, and a checkpoint that
    /// is being made is let through first.
    pub(crate) async fn expire(&self) -> u64 {
        let now = self.gate.open_time();
        let due: Vec<_> = self.state().sessions.expired(now).collect();
        let mut ended = 0;
        for episode in due {
            // One that was retired meanwhile is freed without this.
            let Ok(_permit) = self.gate.enter(&episode, "expire").await else {
                continue;
            };
            let mut state = self.state();
            if state.sessions.expire(&episode, self.gate.open_time()) {
                state.verifies.forget(&episode.rollout, episode.attempt);
                ended += 1;
            }
        }
        ended
    }

    fn named(&self, error: impl Into<Refusal>, episode: &Episode) -> Refusal {
        let refusal: Refusal = error.into();
        refusal.episode(episode).instance(self.gate.instance())
    }

    fn defect(&self, key: &CallKey) -> Refusal {
        let what = format!(
            "tool call {} runs and nobody runs it; this is a defect",
            key.operation
        );
        self.named(Refusal::new(Reason::Internal, what), &key.episode)
    }
}

/// A tool call that is being applied. Should the environment panic, its parts go in this order: the call is in flight no
/// more, who waits is told, and a checkpoint goes on.
struct Call<E: Environment> {
    running: Running<E>,
    landing: Landing<KeptReply>,
    name: String,
    arguments: Bytes,
    digest: Digest,
    permit: Permit,
}

impl<E: Environment> Call<E> {
    async fn apply(self, session: Arc<E::State>) {
        let Running(resources, key) = &self.running;
        let outside = outside_key(key, &self.digest);
        let outcome = resources.environment.call(
            &session,
            ToolCall {
                name: &self.name,
                arguments: &self.arguments,
                key: &outside,
                digest: &self.digest,
            },
        );
        let (output, state) = match outcome.await {
            ToolOutcome::Changed { output, state } => (output, Some(Arc::new(state))),
            ToolOutcome::Same { output } => (output, Some(session)),
            ToolOutcome::Failed { output } => (output, None),
        };
        let applied = Applied { output, state };
        let reply = {
            let mut state = resources.state();
            let reply = state
                .sessions
                .finish(&key.episode, key.execution, key.operation, applied);
            resources.touch(&mut state, &key.episode, key.execution);
            reply
        };
        if let (Some(effects), Ok(reply)) = (&resources.effects, &reply)
            && !reply.is_error
        {
            let tool = AppliedTool {
                name: &self.name,
                external: resources.environment.external(&self.name),
                key: &outside,
                revision: reply.revision,
            };
            let effect = Effect::new(resources.gate.instance(), key, &tool);
            effects.tell(&effect).await;
        }
        drop(self.running);
        self.landing.land(reply);
        drop(self.permit);
    }
}

/// A call in flight. However it ends, also by a panic of the environment's, it is in flight no more.
struct Running<E: Environment>(Arc<Resources<E>>, CallKey);

impl<E: Environment> Drop for Running<E> {
    fn drop(&mut self) {
        let Self(resources, key) = self;
        if std::thread::panicking() {
            error!(episode = %key.episode, operation = %key.operation, "the environment failed in a tool call");
        }
        {
            let mut state = resources.state();
            state.sessions.abort(&key.episode, key.execution, key.operation);
            resources.touch(&mut state, &key.episode, key.execution);
            state.calls.remove(key);
        }
        resources.ends.send_replace(());
    }
}

/// The end of a verify, however it comes to it.
struct VerifyEnded<E: Environment>(Arc<Resources<E>>, Episode, ExecutionId);

impl<E: Environment> Drop for VerifyEnded<E> {
    fn drop(&mut self) {
        let Self(resources, episode, execution) = self;
        {
            let mut state = resources.state();
            state.verifies.drop_failed(episode, *execution);
            state.sessions.end_verify(episode, *execution);
            resources.touch(&mut state, episode, *execution);
        }
        resources.ends.send_replace(());
    }
}

fn step(tool: &str) -> Cow<'static, str> {
    let end = tool.floor_char_boundary(SHOWN_NAME);
    format!("tool {}", &tool[..end]).into()
}

/// The same for a re-issue, also after a restore: it names no attempt and no life.
fn outside_key(key: &CallKey, digest: &Digest) -> String {
    let Operation { turn, index } = key.operation;
    format!("{}/{turn}/{index}/{}", key.episode.rollout, hex(digest))
}
