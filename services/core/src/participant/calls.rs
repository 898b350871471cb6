//! What a coordinator says to a participant and what it hears back, as plain values.

use std::time::Duration;

use crate::{
    ids::{CheckpointId, Digest, Episode, Incarnation, Instance},
    parts::{Mark, PartSummary, PartitionEntry, PlannedEpisode, Restart},
    refusal::Blocker,
};

use super::phase::Phase;

/// What every call but Status carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// The coordinator's epoch.
    pub epoch: u64,
    /// The process that the call is meant for.
    pub incarnation: Incarnation,
}

/// Marks at a version.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MarkList {
    /// Grows with every change.
    pub version: u64,
    /// The marks.
    pub marks: Vec<Mark>,
}

/// Closes admission for a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prepare {
    /// Names the run.
    pub id: CheckpointId,
    /// The lease.
    pub grace: Duration,
    /// After this, episodes still in a `wait` step become restarts of this checkpoint.
    pub soft_limit: Option<Duration>,
    /// Restarts known from earlier stages: their permits count nowhere.
    pub restarts: Vec<Restart>,
}

/// How far a Prepare has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PrepareProgress {
    /// Waits for these.
    Waiting(Waiting),
    /// No blocker is left; the owner has not yet been asked what it holds: see [`Machine::report`](super::Machine::report).
    Ready,
    /// The recorded reply.
    Reported(PrepareReport),
}

/// The blockers of a participant that is not ready.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Waiting {
    /// The oldest.
    pub blockers: Vec<Blocker>,
    /// How many there are.
    pub count: u64,
    /// Restarts that this participant has found so far.
    pub restarts: Vec<Restart>,
}

/// The reply of a Prepare that is PREPARED.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrepareReport {
    /// Restarts that this participant found.
    pub restarts: Vec<Restart>,
    /// Live roots held.
    pub roots: Vec<Episode>,
    /// How long it took to be ready.
    pub took: Duration,
}

/// Captures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The prepared run.
    pub id: CheckpointId,
    /// The episodes to capture. Always explicit.
    pub scope: Vec<Episode>,
}

/// What a Commit has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommitTurn {
    /// Nothing: the recorded reply.
    Recorded(CommitReport),
    /// Capture now, in the same turn of control calls, and say so with [`Machine::captured`](super::Machine::captured).
    Capture {
        /// All restarts of this checkpoint.
        restarts: Vec<Restart>,
    },
}

/// What an owner captured, without the bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Captured {
    /// The parts in scope, each with the size of its record.
    pub parts: Vec<(PartSummary, u64)>,
    /// From an environment.
    pub partition: Vec<PartitionEntry>,
    /// Generations of which a prefix is in the capture.
    pub cut_generations: u64,
    /// Tokens of those prefixes.
    pub cut_tokens: u64,
}

/// The reply of a Commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitReport {
    /// What was captured.
    pub parts: Vec<PartSummary>,
    /// Bytes of all records, about.
    pub bytes: u64,
    /// Restarts that only showed now (RECORD_TOO_LARGE).
    pub restarts: Vec<Restart>,
    /// From an environment.
    pub partition: Vec<PartitionEntry>,
    /// Calls that wait at the door.
    pub at_door: u64,
    /// Generations of which a prefix is in the capture.
    pub cut_generations: u64,
    /// Tokens of those prefixes.
    pub cut_tokens: u64,
}

/// Which way a run ends at a participant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Decision {
    /// Go on with what was captured or staged.
    Keep,
    /// As if the run had not been.
    Abandon,
}

/// What a Resume has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResumeTurn {
    /// Nothing more: the reply.
    Done(super::Resumed),
    /// Make the staged records live, in the same turn of control calls, and say so with
    /// [`Machine::activated`](super::Machine::activated).
    Activate {
        /// Lower attempts of the planned rollouts: already refused, to be stopped.
        superseded: Vec<Mark>,
    },
}

/// How a capture was decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Outcome {
    /// checkpoint.json is linked.
    Published,
    /// A tombstone is linked, or owed.
    Discarded,
}

/// Decides an unsettled capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settle {
    /// The kept run.
    pub id: CheckpointId,
    /// Which way.
    pub outcome: Outcome,
    /// With PUBLISHED: restored, unclaimed episodes that the commit left out.
    pub drop: MarkList,
}

/// What a Settle has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SettleTurn {
    /// Nothing more: how many episodes were dropped.
    Done(u64),
    /// Drop the call's episodes, which are marked by now, and say so with [`Machine::settled`](super::Machine::settled).
    Drop,
}

/// A participant's share of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Whose it was.
    pub instance: Instance,
    /// The manifest, as a path below the checkpoint's directory.
    pub manifest: String,
    /// BLAKE3 of the manifest's bytes.
    pub digest: Digest,
}

/// Stages records of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restore {
    /// Names this run of restore.
    pub id: CheckpointId,
    /// The checkpoint that is read.
    pub source: CheckpointId,
    /// All marks.
    pub marks: MarkList,
    /// What is restored, all of it.
    pub plan: Vec<PlannedEpisode>,
    /// The shards to read: all of the participant's kind and name.
    pub shards: Vec<Shard>,
}

/// What a Restore has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestoreTurn {
    /// Read and stage, and say so with [`Machine::staged`](super::Machine::staged) or
    /// [`Machine::stage_failed`](super::Machine::stage_failed).
    Stage,
    /// It is being read.
    Reading,
    /// The recorded reply.
    Recorded(RestoreReport),
}

/// The reply of a Restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RestoreReport {
    /// How many records are staged here.
    pub staged: u64,
    /// Bytes of records read.
    pub bytes: u64,
    /// Cut prefixes that the worker no longer has.
    pub prefixes_lost: u64,
    /// How long reading and staging took.
    pub took: Duration,
}

/// Sets marks, and opens a fresh process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Join {
    /// All marks.
    pub marks: MarkList,
    /// Leave JOINING.
    pub open: bool,
}

/// What a participant is like, for Status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Where it is.
    pub phase: Phase,
    /// The open run.
    pub open: Option<CheckpointId>,
    /// The highest coordinator epoch seen.
    pub epoch: u64,
    /// What is left of the lease while closed.
    pub lease_left: Option<Duration>,
    /// Closed, and no blocker is left.
    pub ready: bool,
    /// The oldest blockers, and how many there are.
    pub waiting: Waiting,
    /// Version of the marks held.
    pub marks_version: u64,
    /// How many marks.
    pub marks: u64,
    /// Calls that wait at the door.
    pub at_door: u64,
    /// The capture that is kept and not yet decided.
    pub unsettled: Option<Unsettled>,
    /// A staged restore whose decision has not arrived, for this long.
    pub in_doubt: Option<Duration>,
}

/// A capture that is kept and not yet decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsettled {
    /// Its checkpoint.
    pub id: CheckpointId,
    /// Since the capture.
    pub age: Duration,
    /// Its manifest is on disk.
    pub durable: bool,
}

/// What the driver has to do after a turn, in this order. The turn's own work (capture, activate, stage, drop) is in what the
/// call returns, since its outcome belongs to the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The phase is now this one: wake whoever waits for it.
    Phase(Phase),
    /// The next deadline has changed.
    Timer,
    /// Admission has closed for this checkpoint: tell the owner.
    Closing(CheckpointId),
    /// The id has ended: what was begun by `Closing` is no longer waited for.
    Over(CheckpointId),
    /// Write the capture of this checkpoint.
    StartPersist(CheckpointId),
    /// Stop writing it, for good.
    StopPersist(CheckpointId),
    /// Let go of what was captured.
    FreeCapture(CheckpointId),
    /// Let go of what was staged, or is being staged.
    DiscardStaged(CheckpointId),
    /// The id ended without a capture that is kept: tell the owner.
    Discarded(CheckpointId),
}
