//! What a run of checkpoint asks for, and what it is told.

use crate::{
    ids::{Episode, Instance},
    parts::{Mark, PartSummary, PartitionEntry, Restart},
    refusal::Refusal,
};

/// What the run asks its driver to do; one thing at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Prepare on all at once, with the restarts known so far, until each is PREPARED.
    Prepare {
        /// The stage.
        on: Vec<Instance>,
        /// Known from earlier stages.
        restarts: Vec<Restart>,
    },
    /// Let generation cuts be answered, within their budget.
    Cuts {
        /// The policy models.
        on: Vec<Instance>,
    },
    /// Commit on all at once.
    Commit {
        /// The stage.
        on: Vec<Instance>,
        /// Always explicit.
        scope: Vec<Episode>,
    },
    /// Tell the caller the partition; with `hold`, wait for Publish or Abort.
    Report,
    /// Write down that KEEP is about to be sent, and what Settle will drop.
    Journal,
    /// Resume KEEP on all at once.
    Keep {
        /// The stage.
        on: Vec<Instance>,
    },
    /// Await the captures on all at once.
    Await {
        /// Everyone.
        on: Vec<Instance>,
    },
    /// Link `checkpoint.json`.
    Publish,
    /// Write down that it is published, with the marks of what is dropped.
    Record,
    /// Settle PUBLISHED on all at once. What does not answer is settled later.
    Settle {
        /// Everyone.
        on: Vec<Instance>,
        /// Dropped and marked.
        drop: Vec<Mark>,
    },
    /// Resume ABANDON on all at once. What does not answer is swept later.
    Abandon {
        /// Everyone.
        on: Vec<Instance>,
    },
    /// Link a tombstone, or write down that it is owed.
    Bury {
        /// What the tombstone says.
        why: Failure,
    },
    /// Settle DISCARDED on all; those that may not have been kept are sent ABANDON first. What does not answer is settled later.
    Discard {
        /// Everyone.
        on: Vec<Instance>,
        /// May be closed still.
        abandon_first: Vec<Instance>,
    },
    /// The run is over.
    End(Ending),
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// `checkpoint.json` is linked.
    Published,
    /// Nothing is published.
    Abandoned(Failure),
}

/// Why a run is given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The stage: prepare, commit, hold and so on.
    pub stage: &'static str,
    /// The server that it failed on.
    pub instance: Option<Instance>,
    /// Why.
    pub refusal: Refusal,
}

/// What one participant replied to Prepare.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Prepared {
    /// What it cannot save.
    pub restarts: Vec<Restart>,
    /// Live roots.
    pub roots: Vec<Episode>,
}

/// What one participant replied to Commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Committed {
    /// What it captured.
    pub parts: Vec<PartSummary>,
    /// Restarts that only showed now.
    pub restarts: Vec<Restart>,
    /// From an environment.
    pub partition: Vec<PartitionEntry>,
    /// Waiting at its door.
    pub at_door: u64,
}

/// How the last step went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Done {
    /// All of the stage are PREPARED.
    Prepared(Vec<(Instance, Prepared)>),
    /// All of the stage have captured.
    Committed(Vec<(Instance, Committed)>),
    /// These have answered Keep; when some have not, `failure` says why.
    Kept {
        /// Answered.
        kept: Vec<Instance>,
        /// The first that did not.
        failure: Option<(Instance, Refusal)>,
    },
    /// What Cuts, Report, Journal, Await, Record, Settle, Abandon, Discard asked for is done.
    Ok,
    /// The name holds this checkpoint: Publish won, or Publish or Bury found it there.
    NameIsCheckpoint,
    /// The name holds a tombstone, or one is owed.
    NameIsTombstone,
    /// It did not go.
    Failed {
        /// Where, if it was one server.
        instance: Option<Instance>,
        /// Why.
        refusal: Refusal,
    },
}
