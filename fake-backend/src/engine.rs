//! The engine: owns every call, and a task for each that samples it.
//!
//! All state lies behind one lock that is never held across an await, so a cut, a cancel and the end of a generation
//! happen one after the other. A sampler asks [`State::advance`] what it may do; whoever waits for a call watches its
//! [`Progress`].

mod state;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Notify, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::transport::ServerTlsConfig;

pub(crate) use state::State;
use state::{Advance, Entry};

use crate::{
    call::{Call, CallKey, Plan},
    effects::EffectLog,
    error::BackendError,
    faults::{FaultKind, Faults},
    holds::{CallId, Holds},
    keyed::Keyed,
    log::{CallLog, CallRecord, Counts, RecordState},
    rows::RowStore,
    staging::Staging,
    work::WorkGate,
};

/// What the engine is, and how it begins.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// The model's name.
    pub model: String,
    /// The version of the weights that sample first; empty: unknown.
    pub weights: String,
    /// How long a token takes; `None`: no time.
    pub token_delay: Option<Duration>,
    /// TLS on its port; plain text where it is unset.
    pub tls: Option<ServerTlsConfig>,
}

impl Default for BackendConfig {
    fn default() -> Self {
        Self {
            model: "belay-fake".into(),
            weights: "fake-1".into(),
            token_delay: None,
            tls: None,
        }
    }
}

/// How far a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Tokens of the reply so far, with its prefix.
    pub tokens: usize,
    /// Nothing more comes.
    pub ended: bool,
}

/// Who asks, as far as is known: for the log and for holds by rollout.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// `worker`, `chat` or `completions`.
    pub door: &'static str,
    /// The rollout; empty: unknown.
    pub rollout: String,
    /// The attempt.
    pub attempt: Option<u32>,
    /// The life.
    pub execution: Option<String>,
    /// The turn.
    pub turn: Option<u32>,
    /// The index.
    pub index: Option<u32>,
}

struct Inner {
    config: BackendConfig,
    state: Mutex<State>,
    counts: watch::Sender<Counts>,
    /// How often the faults were replaced: whoever hangs by order waits for the next time.
    faults_replaced: watch::Sender<u64>,
    work: WorkGate,
    samplers: TaskTracker,
    shutdown: CancellationToken,
}

/// The engine. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

impl Engine {
    /// An engine with an empty store, until `shutdown`.
    pub fn new(config: BackendConfig, shutdown: CancellationToken) -> Self {
        let state = State {
            calls: HashMap::new(),
            keyed: Keyed::default(),
            rows: RowStore::new(),
            staging: Staging::default(),
            holds: Holds::default(),
            faults: Faults::default(),
            log: CallLog::default(),
            effects: EffectLog::default(),
            weights: config.weights.as_str().into(),
            last_call: 0,
        };
        Self(Arc::new(Inner {
            config,
            state: Mutex::new(state),
            counts: watch::Sender::new(Counts::default()),
            faults_replaced: watch::Sender::new(0),
            work: WorkGate::default(),
            samplers: TaskTracker::new(),
            shutdown,
        }))
    }

    /// What it was made with.
    pub fn config(&self) -> &BackendConfig {
        &self.0.config
    }

    /// Ends with the process.
    pub fn shutdown(&self) -> &CancellationToken {
        &self.0.shutdown
    }

    /// The counters as they change.
    pub fn counts(&self) -> watch::Receiver<Counts> {
        self.0.counts.subscribe()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // No code under this lock panics half-way through a change; a poisoned lock would only hide the first error.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then tells who watches the counters.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        let mut counts = state.log.counts;
        counts.held = state.holds.held() as u64;
        // Published under the lock, so that watchers see counters in order.
        self.0.counts.send_if_modified(|published| {
            let changed = *published != counts;
            *published = counts;
            changed
        });
        result
    }

    /// Starts a call in a state that is being changed, and its sampler.
    pub(crate) fn start_in(
        &self,
        state: &mut State,
        plan: Plan,
        key: Option<CallKey>,
        origin: Origin,
    ) -> CallId {
        state.last_call += 1;
        let id = state.last_call;
        let ordinal = state.holds.arrived(&origin.rollout);
        let mut digest = blake3::Hasher::new();
        for token in plan.prompt.iter() {
            digest.update(&token.to_le_bytes());
        }
        state.log.received(CallRecord {
            id,
            rollout: origin.rollout,
            attempt: origin.attempt,
            execution: origin.execution,
            turn: origin.turn,
            index: origin.index,
            door: origin.door.into(),
            prompt_digest: digest.finalize().to_hex().to_string(),
            prompt_tokens: plan.prompt.len(),
            prefix_tokens: plan.prefix_tokens(),
            sampled_tokens: 0,
            state: RecordState::Received,
            joined: 0,
            replayed: 0,
        });
        let progress = Progress {
            tokens: plan.prefix_tokens(),
            ended: false,
        };
        let entry = Entry {
            call: Call::new(plan, key, ordinal),
            progress: watch::Sender::new(progress),
            wake: Arc::new(Notify::new()),
        };
        let wake = entry.wake.clone();
        state.calls.insert(id, entry);
        self.0.samplers.spawn(self.clone().sample(id, wake));
        id
    }

    /// Starts a call that no key names.
    pub fn start(&self, plan: Plan, origin: Origin) -> CallId {
        self.change(|state| self.start_in(state, plan, None, origin))
    }

    async fn sample(self, id: CallId, wake: Arc<Notify>) {
        let most = match self.0.config.token_delay {
            Some(_) => 1,
            None => 256,
        };
        loop {
            match self.change(|state| state.advance(id, most)) {
                Advance::Ended => return,
                // `notify_one` keeps a permit, so a release between the answer and this wait is not lost.
                Advance::Held => tokio::select! {
                    () = wake.notified() => {}
                    () = self.0.shutdown.cancelled() => return,
                },
                Advance::More => match self.0.config.token_delay {
                    None => tokio::task::yield_now().await,
                    Some(delay) => tokio::select! {
                        () = tokio::time::sleep(delay) => {}
                        () = wake.notified() => {}
                        () = self.0.shutdown.cancelled() => return,
                    },
                },
            }
        }
    }

    /// Forgets a call that no key names, stopping it if need be.
    pub fn end(&self, id: CallId) {
        self.change(|state| {
            state.stop(id, BackendError::bad("call", "was left by its caller"));
            state.calls.remove(&id);
        });
    }

    /// Watches a call.
    pub fn watch(&self, id: CallId) -> Option<watch::Receiver<Progress>> {
        self.state()
            .calls
            .get(&id)
            .map(|entry| entry.progress.subscribe())
    }

    /// Waits for a call's end. The call can be forgotten meanwhile: then the watch ends.
    pub(crate) async fn ended(&self, mut progress: watch::Receiver<Progress>) -> Result<(), BackendError> {
        tokio::select! {
            _ = progress.wait_for(|progress| progress.ended) => Ok(()),
            () = self.0.shutdown.cancelled() => Err(BackendError::Stopping),
        }
    }

    /// Frees all that is held.
    pub fn release(&self) -> usize {
        self.change(|state| {
            let held = state.holds.release();
            for entry in held.iter().filter_map(|id| state.calls.get(id)) {
                entry.wake.notify_one();
            }
            held.len()
        })
    }

    /// Replaces the faults; whoever hangs by order goes on.
    pub fn replace_faults(&self, faults: Faults) {
        self.change(|state| state.faults = faults);
        self.0.faults_replaced.send_modify(|times| *times += 1);
    }

    /// Lets a model call through the faults that meet it at the door.
    pub(crate) async fn pass_faults(&self) -> Result<(), BackendError> {
        let at_door = |kind: &FaultKind| matches!(kind, FaultKind::HttpError { .. } | FaultKind::Hang);
        let mut replaced = self.0.faults_replaced.subscribe();
        match self.change(|state| state.faults.take(at_door)) {
            Some(FaultKind::HttpError { status }) => Err(BackendError::Ordered(status)),
            Some(_) => self.until_replaced(&mut replaced).await,
            None => Ok(()),
        }
    }

    /// Waits until the faults are replaced.
    pub(crate) async fn until_replaced(
        &self,
        replaced: &mut watch::Receiver<u64>,
    ) -> Result<(), BackendError> {
        tokio::select! {
            _ = replaced.changed() => Ok(()),
            () = self.0.shutdown.cancelled() => Err(BackendError::Stopping),
        }
    }

    pub(crate) fn faults_replaced(&self) -> watch::Receiver<u64> {
        self.0.faults_replaced.subscribe()
    }

    /// Work of servers that asks before it is done.
    pub(crate) fn work(&self) -> &WorkGate {
        &self.0.work
    }

    /// Clears holds, faults, counters, the call log and the effect log. Calls in flight, rows and staged prefixes stay.
    pub fn reset(&self) {
        self.replace_faults(Faults::default());
        self.release();
        self.change(|state| {
            state.holds.reset_counts();
            state.log = CallLog::default();
            state.effects = EffectLog::default();
        });
        self.0.work.reset();
    }
}
