//! A state owner for tests: a counter for each episode, and switches for what can go wrong.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use belay_core::{
    ids::{CheckpointId, Episode, ExecutionId, RolloutId},
    parts::{Cursor, Mark, PartSummary, PlannedEpisode, Restart},
    refusal::{Reason, Refusal},
};
use belay_participant::{Capture, CapturedPart, Gate, StateOwner};
use bytes::Bytes;
use tokio::sync::Notify;
use uuid::Uuid;

/// A latch that a blocking thread waits at, for a bounded time.
#[derive(Clone, Default)]
pub struct Latch(Arc<(Mutex<bool>, std::sync::Condvar)>);

impl Latch {
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let bound = Duration::from_secs(20);
        let (_open, timeout) = self
            .0
            .1
            .wait_timeout_while(self.0.0.lock().unwrap(), bound, |open| !*open)
            .unwrap();
        assert!(!timeout.timed_out(), "nobody opened the latch");
    }
}

pub struct Counters {
    pub gate: Gate,
    pub state: Mutex<BTreeMap<Episode, u64>>,
    pub captures: AtomicU64,
    pub activations: AtomicU64,
    pub drops: AtomicU64,
    /// Ids that `closing` and `discarded` were told of.
    pub closing: Mutex<Vec<CheckpointId>>,
    pub discarded: Mutex<Vec<CheckpointId>>,
    pub restarts: Mutex<Vec<Restart>>,
    /// Work that is in progress under a permit: none may be, at a capture.
    pub at_work: AtomicU64,
    pub panic_in_capture: AtomicBool,
    pub panic_in_closing: AtomicBool,
    /// While set, a record is encoded, and staged, only once it is open.
    pub slow: Mutex<Option<Latch>>,
    /// Records whose encoding has begun.
    pub encoding: Arc<AtomicU64>,
    /// While set, a retire waits for it.
    pub slow_retire: Mutex<Option<Arc<Notify>>>,
    pub retired: Mutex<Vec<Mark>>,
}

impl Counters {
    pub fn new(gate: Gate) -> Self {
        Self {
            gate,
            state: Mutex::default(),
            captures: AtomicU64::new(0),
            activations: AtomicU64::new(0),
            drops: AtomicU64::new(0),
            closing: Mutex::default(),
            discarded: Mutex::default(),
            restarts: Mutex::default(),
            at_work: AtomicU64::new(0),
            panic_in_capture: AtomicBool::new(false),
            panic_in_closing: AtomicBool::new(false),
            slow: Mutex::default(),
            encoding: Arc::default(),
            slow_retire: Mutex::default(),
            retired: Mutex::default(),
        }
    }

    pub fn set(&self, episode: &Episode, value: u64) {
        self.state.lock().unwrap().insert(episode.clone(), value);
    }

    pub fn get(&self, episode: &Episode) -> Option<u64> {
        self.state.lock().unwrap().get(episode).copied()
    }

    /// Makes the next encodings and stagings wait.
    pub fn slow_down(&self) -> Latch {
        let latch = Latch::default();
        *self.slow.lock().unwrap() = Some(latch.clone());
        latch
    }
}

fn summary(episode: &Episode) -> PartSummary {
    PartSummary {
        episode: episode.clone(),
        execution: ExecutionId(Uuid::from_u128(7)),
        root: false,
        cursor: Cursor::default(),
        needs: Vec::new(),
        ledger: None,
        revision: 0,
        boundary: "tool".into(),
        task: None,
        finished: false,
    }
}

impl StateOwner for Counters {
    type Staged = u64;

    fn restarts(&self) -> Vec<Restart> {
        self.restarts.lock().unwrap().clone()
    }

    async fn closing(&self, id: CheckpointId) {
        self.closing.lock().unwrap().push(id);
        assert!(
            !self.panic_in_closing.load(Ordering::SeqCst),
            "closing was told to panic"
        );
    }

    async fn discarded(&self, id: CheckpointId) {
        self.discarded.lock().unwrap().push(id);
    }

    fn capture(&self, _id: CheckpointId, scope: &[Episode], _restarts: &[Restart]) -> Capture {
        assert!(
            !self.panic_in_capture.load(Ordering::SeqCst),
            "capture was told to panic"
        );
        assert_eq!(
            self.at_work.load(Ordering::SeqCst),
            0,
            "captured in the middle of a step"
        );
        // An owner may ask its gate wherever it is called, also under its own lock.
        let state = self.state.lock().unwrap();
        assert!(!self.gate.is_open());
        self.captures.fetch_add(1, Ordering::SeqCst);
        let slow = self.slow.lock().unwrap().clone();
        let part = |episode: &Episode| {
            let value = *state.get(episode)?;
            let (slow, encoding) = (slow.clone(), self.encoding.clone());
            Some(CapturedPart {
                summary: summary(episode),
                size: if value == u64::MAX { 1 << 40 } else { 20 },
                record: Arc::new(move || {
                    encoding.fetch_add(1, Ordering::SeqCst);
                    if let Some(latch) = &slow {
                        latch.wait();
                    }
                    Bytes::from(value.to_string())
                }),
            })
        };
        Capture {
            parts: scope.iter().filter_map(part).collect(),
            ..Capture::default()
        }
    }

    fn drop_unclaimed(&self, marks: &[Mark]) -> u64 {
        self.drops.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock().unwrap();
        let before = state.len();
        state.retain(|e, _| {
            !marks
                .iter()
                .any(|m| m.rollout == e.rollout && e.attempt <= m.attempt)
        });
        (before - state.len()) as u64
    }

    fn stage(&self, _planned: &PlannedEpisode, payload: Bytes) -> Result<u64, Refusal> {
        let slow = self.slow.lock().unwrap().clone();
        if let Some(latch) = slow {
            latch.wait();
        }
        std::str::from_utf8(&payload)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| Refusal::new(Reason::InvalidCheckpoint, "a counter's record is not a number"))
    }

    fn activate(&self, staged: Vec<(PlannedEpisode, u64)>) {
        self.activations.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock().unwrap();
        for (planned, value) in staged {
            state.retain(|e, _| e.rollout != planned.saved.rollout);
            state.insert(planned.episode(), value);
        }
    }

    async fn retire(&self, marks: Vec<Mark>) {
        let slow = self.slow_retire.lock().unwrap().clone();
        if let Some(slow) = slow {
            slow.notified().await;
        }
        self.drop_unclaimed(&marks);
        self.retired.lock().unwrap().extend(marks);
    }

    fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        let live = self.state.lock().unwrap().keys().any(|e| e.rollout == *rollout);
        if live {
            return Err(Refusal::new(Reason::RolloutLive, format!("{rollout} is live")));
        }
        Ok(())
    }

    fn forget(&self, _rollout: &RolloutId) {}

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        BTreeMap::from([("sessions", self.state.lock().unwrap().len() as u64)])
    }
}
