//! What the journal remembers, as values in memory.

use std::collections::{BTreeMap, BTreeSet};

use belay_core::{
    coordinator::attempts::{AttemptBook, Remembered},
    ids::{CheckpointId, Incarnation, Instance, RolloutId},
    parts::{Mark, PlannedEpisode},
};
use serde::{Deserialize, Serialize};

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The highest epoch that was used.
    pub epoch: u64,
    /// Version of the member list.
    pub members_version: u64,
    /// Taken out of the mesh for good.
    pub removed: BTreeSet<Instance>,
    /// Marks and attempts.
    pub book: AttemptBook,
    /// The run that is not over.
    pub open_run: Option<OpenRun>,
    /// Captures that were kept, are decided, and not settled everywhere.
    pub unsettled: BTreeMap<CheckpointId, Unsettled>,
    /// Tombstones that the root could not take, and why the run was given up.
    pub owed: BTreeMap<CheckpointId, String>,
    /// Published checkpoints.
    pub published: BTreeSet<CheckpointId>,
    /// Retires and forgets that some server has not answered.
    pub unfinished: BTreeMap<u64, Unfinished>,
    /// The processes that were opened last.
    pub opened: BTreeMap<Instance, Incarnation>,
    /// How runs ended that left no name on disk.
    pub ended: BTreeMap<CheckpointId, EndedRun>,
}

impl State {
    /// Rollouts with a mark that some server may not hold yet: by a retire, or by the settle that drops them.
    pub fn being_retired(&self) -> impl Iterator<Item = &RolloutId> {
        let retired = self.unfinished.values().flat_map(|unfinished| match unfinished {
            Unfinished::Retire { marks } => marks.as_slice(),
            Unfinished::Forget { .. } => &[],
        });
        let dropped = self.unsettled.values().flat_map(|unsettled| &unsettled.drop);
        retired.chain(dropped).map(|mark| &mark.rollout)
    }

    /// The version that every call with marks carries: of the marks, or that was promised to a Forget, which may be held
    /// somewhere before it is complete. A call with an older one would be passed over (protocol 3.2 rule 8).
    pub fn marks_version(&self) -> u64 {
        let promised = self.unfinished.values().map(|unfinished| match unfinished {
            Unfinished::Retire { .. } => 0,
            Unfinished::Forget { version, .. } => *version,
        });
        promised.max().unwrap_or_default().max(self.book.version)
    }

    /// Rollouts that an unfinished forget names: whoever joins must not learn their marks anew.
    pub fn being_forgotten(&self) -> BTreeSet<RolloutId> {
        self.unfinished
            .values()
            .filter_map(|u| match u {
                Unfinished::Forget { rollouts, .. } => Some(rollouts.iter().cloned()),
                Unfinished::Retire { .. } => None,
            })
            .flatten()
            .collect()
    }

    /// All marks that a participant is told.
    pub fn marks(&self) -> Vec<Mark> {
        self.book.marks(&self.being_forgotten())
    }
}

/// A run that is not over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OpenRun {
    /// A checkpoint.
    Checkpoint {
        /// Which.
        id: CheckpointId,
        /// A KEEP may have been sent.
        kept: bool,
        /// What Settle drops.
        drop: Vec<Mark>,
    },
    /// A restore.
    Restore {
        /// Which run.
        id: CheckpointId,
        /// What it reads.
        source: CheckpointId,
        /// The plan, once the run is activated: it is completed, whatever happens.
        activated: Option<Vec<PlannedEpisode>>,
    },
}

impl OpenRun {
    /// The run.
    pub fn id(&self) -> CheckpointId {
        match self {
            Self::Checkpoint { id, .. } | Self::Restore { id, .. } => *id,
        }
    }
}

/// How a kept capture was decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// `checkpoint.json` is linked.
    Published,
    /// A tombstone is linked, or owed.
    Discarded,
}

/// A decided capture that some server has not settled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unsettled {
    /// How.
    pub outcome: Outcome,
    /// With PUBLISHED: dropped and marked.
    pub drop: Vec<Mark>,
    /// Who has not answered.
    pub pending: BTreeSet<Instance>,
}

/// A retire or a forget that some server has not answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Unfinished {
    /// Marks were raised.
    Retire {
        /// Which.
        marks: Vec<Mark>,
    },
    /// Rollouts are over.
    Forget {
        /// Which.
        rollouts: Vec<RolloutId>,
        /// Marks raised at or after this version stay.
        version: u64,
    },
}

/// How a run ended that left no name on disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndedRun {
    /// It came to be (a restore that is complete).
    pub complete: bool,
    /// For a person.
    pub message: String,
}

/// One change. Several are committed together, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A coordinator starts.
    Epoch(u64),
    /// The member list changes.
    MembersVersion(u64),
    /// An instance is out for good.
    Removed(Instance),
    /// The marks change.
    MarksVersion(u64),
    /// A rollout's row.
    Rollout(RolloutId, Remembered),
    /// A rollout's row goes.
    RolloutGone(RolloutId),
    /// Forgotten: what checkpoints up to this one say of it is not restored.
    Forgotten(RolloutId, CheckpointId),
    /// No checkpoint that is kept names it any more.
    ForgottenGone(RolloutId),
    /// A run begins, or goes a step further.
    Run(OpenRun),
    /// The open run is over; with how it ended where no name on disk says so.
    RunOver(Option<(CheckpointId, EndedRun)>),
    /// A capture is decided and not settled everywhere.
    Unsettled(CheckpointId, Unsettled),
    /// It is settled.
    Settled(CheckpointId),
    /// A tombstone is owed.
    Owed(CheckpointId, String),
    /// It stands.
    Paid(CheckpointId),
    /// A checkpoint is published.
    Published(CheckpointId),
    /// A published checkpoint is no longer on disk.
    Pruned(CheckpointId),
    /// A retire or forget begins, or goes on.
    Unfinished(u64, Unfinished),
    /// It is complete.
    Finished(u64),
    /// A process was opened.
    Opened(Instance, Incarnation),
}

/// How many ended runs are remembered.
const ENDED_RUNS: usize = 1024;

impl State {
    /// Takes a change.
    pub fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Epoch(epoch) => self.epoch = epoch,
            Entry::MembersVersion(version) => self.members_version = version,
            Entry::Removed(instance) => {
                self.removed.insert(instance);
            }
            Entry::MarksVersion(version) => self.book.version = version,
            Entry::Rollout(rollout, row) => {
                self.book.rollouts.insert(rollout, row);
            }
            Entry::RolloutGone(rollout) => {
                self.book.rollouts.remove(&rollout);
            }
            Entry::Forgotten(rollout, until) => {
                self.book.forgotten.insert(rollout, until);
            }
            Entry::ForgottenGone(rollout) => {
                self.book.forgotten.remove(&rollout);
            }
            Entry::Run(run) => self.open_run = Some(run),
            Entry::RunOver(ended) => {
                self.open_run = None;
                if let Some((id, ended)) = ended {
                    self.ended.insert(id, ended);
                    while self.ended.len() > ENDED_RUNS {
                        self.ended.pop_first();
                    }
                }
            }
            Entry::Unsettled(id, unsettled) => {
                self.unsettled.insert(id, unsettled);
            }
            Entry::Settled(id) => {
                self.unsettled.remove(&id);
            }
            Entry::Owed(id, why) => {
                self.owed.insert(id, why);
            }
            Entry::Paid(id) => {
                self.owed.remove(&id);
            }
            Entry::Published(id) => {
                self.published.insert(id);
            }
            Entry::Pruned(id) => {
                self.published.remove(&id);
            }
            Entry::Unfinished(number, unfinished) => {
                self.unfinished.insert(number, unfinished);
            }
            Entry::Finished(number) => {
                self.unfinished.remove(&number);
            }
            Entry::Opened(instance, incarnation) => {
                self.opened.insert(instance, incarnation);
            }
        }
    }
}
