//! Toy state owners: one part of an episode on each of the four kinds of server, enough for closure, capture and restore.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use belay_core::{
    coordinator::partition::UNCLAIMED,
    ids::{CheckpointId, Episode, ExecutionId, Instance, Kind, Operation, RolloutId},
    parts::{
        Cursor, LedgerTip, Mark, Need, PartNeeded, PartSummary, PartitionEntry, PlannedEpisode, Restart,
        Standing,
    },
    refusal::{Reason, Refusal},
};
use belay_participant::{Capture, CapturedPart, StateOwner};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::PATIENCE;

/// How far the one agent of an episode has come.
const CHAIN: [u8; 32] = [7; 32];

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    pub execution: ExecutionId,
    pub places: Vec<Instance>,
    pub revision: u64,
    #[serde(skip)]
    pub unclaimed: bool,
}

pub struct Toy {
    pub instance: Instance,
    parts: Mutex<BTreeMap<Episode, Part>>,
    /// Encoding a record waits while this is slow.
    pub slow_disk: SlowDisk,
    /// Staging waits while this is set.
    pub slow_stage: AtomicBool,
    pub restarts: Mutex<Vec<Restart>>,
}

/// A disk that takes a record only when the test lets it.
#[derive(Clone, Default)]
pub struct SlowDisk(Arc<(Mutex<bool>, Condvar)>);

impl SlowDisk {
    pub fn set(&self, slow: bool) {
        *self.0.0.lock().unwrap() = slow;
        self.0.1.notify_all();
    }

    /// Blocks its thread while the disk is slow, for a test's patience at most.
    fn wait(&self) {
        let slow = self.0.0.lock().unwrap();
        let waited = self.0.1.wait_timeout_while(slow, PATIENCE, |slow| *slow).unwrap();
        assert!(
            !waited.1.timed_out(),
            "the test let nobody write for {PATIENCE:?}"
        );
    }
}

impl Toy {
    pub fn new(instance: Instance) -> Self {
        Self {
            instance,
            parts: Mutex::default(),
            slow_disk: SlowDisk::default(),
            slow_stage: AtomicBool::new(false),
            restarts: Mutex::default(),
        }
    }

    pub fn parts(&self) -> MutexGuard<'_, BTreeMap<Episode, Part>> {
        self.parts.lock().unwrap()
    }

    fn summary(&self, episode: &Episode, part: &Part) -> PartSummary {
        let cursor = Cursor {
            operation: Some(Operation::tool_call(0, 0)),
            chain: Some(CHAIN),
            revision: part.revision,
        };
        let needs = |kinds: &[Kind]| {
            let of_kind = part.places.iter().filter(|i| kinds.contains(&i.kind));
            of_kind
                .map(|i| PartNeeded {
                    instance: i.clone(),
                    need: Need::Whole,
                })
                .collect()
        };
        let kind = self.instance.kind;
        PartSummary {
            episode: episode.clone(),
            execution: part.execution,
            root: kind == Kind::Environment,
            cursor: if kind == Kind::Agent {
                cursor
            } else {
                Cursor::default()
            },
            needs: match kind {
                Kind::Environment => needs(&[Kind::Agent, Kind::Resources]),
                Kind::Agent => needs(&[Kind::Resources, Kind::PolicyModel]),
                Kind::PolicyModel | Kind::Resources => vec![],
            },
            ledger: (kind == Kind::PolicyModel).then_some(LedgerTip {
                operation: Operation::FIRST,
                chain: CHAIN,
                parent: None,
            }),
            revision: part.revision,
            boundary: "invoke_agent".into(),
            task: (kind == Kind::Environment).then_some([1; 32]),
            finished: false,
        }
    }
}

impl StateOwner for Toy {
    type Staged = Part;

    fn restarts(&self) -> Vec<Restart> {
        self.restarts.lock().unwrap().clone()
    }

    fn roots(&self) -> Vec<Episode> {
        match self.instance.kind {
            Kind::Environment => self.parts().keys().cloned().collect(),
            _ => vec![],
        }
    }

    fn capture(&self, _id: CheckpointId, scope: &[Episode], restarts: &[Restart]) -> Capture {
        let held = self.parts();
        let wanted: BTreeSet<&Episode> = scope.iter().collect();
        let parts = scope.iter().filter_map(|episode| {
            let part = held.get(episode)?.clone();
            let summary = self.summary(episode, &part);
            let disk = self.slow_disk.clone();
            Some(CapturedPart {
                summary,
                size: 100,
                record: Arc::new(move || {
                    disk.wait();
                    Bytes::from(serde_json::to_vec(&part).unwrap())
                }),
            })
        });
        let partition = held
            .iter()
            .filter(|_| self.instance.kind == Kind::Environment)
            .map(|(episode, part)| {
                let (standing, reason) = if restarts.iter().any(|r| r.episode == *episode) {
                    (Standing::Restart, "")
                } else if wanted.contains(episode) {
                    (Standing::SavedRunning, "")
                } else {
                    (Standing::LeftOut, if part.unclaimed { UNCLAIMED } else { "" })
                };
                PartitionEntry {
                    episode: episode.clone(),
                    standing,
                    reason: reason.into(),
                }
            });
        Capture {
            parts: parts.collect(),
            partition: partition.collect(),
            cut_generations: 0,
            cut_tokens: 0,
        }
    }

    fn drop_unclaimed(&self, marks: &[Mark]) -> u64 {
        let mut held = self.parts();
        let before = held.len();
        let marks: HashMap<&RolloutId, u32> = marks.iter().map(|m| (&m.rollout, m.attempt)).collect();
        held.retain(|e, _| marks.get(&e.rollout).is_none_or(|mark| e.attempt > *mark));
        (before - held.len()) as u64
    }

    fn stage(&self, planned: &PlannedEpisode, payload: Bytes) -> Result<Part, Refusal> {
        let saved: Part = serde_json::from_slice(&payload)
            .map_err(|e| Refusal::new(Reason::InvalidCheckpoint, e.to_string()))?;
        let places = saved
            .places
            .iter()
            .map(|i| planned.placed(i).unwrap_or(i).clone())
            .collect();
        Ok(Part {
            execution: planned.execution,
            places,
            unclaimed: true,
            ..saved
        })
    }

    async fn staged(&self, _staged: &mut [(PlannedEpisode, Part)]) -> u64 {
        while self.slow_stage.load(Ordering::Relaxed) {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        0
    }

    fn activate(&self, staged: Vec<(PlannedEpisode, Part)>) {
        let mut held = self.parts();
        let lowest: HashMap<RolloutId, u32> = staged
            .iter()
            .map(|(p, _)| (p.saved.rollout.clone(), p.attempt))
            .collect();
        held.retain(|e, _| lowest.get(&e.rollout).is_none_or(|lowest| e.attempt >= *lowest));
        held.extend(
            staged
                .into_iter()
                .map(|(planned, part)| (planned.episode(), part)),
        );
    }

    async fn retire(&self, marks: Vec<Mark>) {
        self.drop_unclaimed(&marks);
    }

    fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        match self.parts().keys().find(|e| e.rollout == *rollout) {
            Some(live) => Err(Refusal::new(Reason::RolloutLive, format!("{live} is live")).episode(live)),
            None => Ok(()),
        }
    }

    fn forget(&self, _rollout: &RolloutId) {}

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        [("parts", self.parts().len() as u64)].into()
    }

    fn unclaimed(&self) -> u64 {
        self.parts().values().filter(|p| p.unclaimed).count() as u64
    }
}
