//! What a server fills in to become a participant.

use std::{collections::BTreeMap, future::Future, sync::Arc};

use belay_core::{
    ids::{CheckpointId, Episode, RolloutId},
    parts::{CheckpointMode, Mark, PartSummary, PartitionEntry, PlannedEpisode, Restart},
    refusal::Refusal,
};
use bytes::Bytes;

/// The owner of a server's state: its episodes, sessions or ledgers.
///
/// Where they are called: `capture`, `activate`, `drop_unclaimed`, `may_forget` and `forget` one at a time, under the lock that
/// orders control calls, so they must not wait. `restarts`, `roots` and what Status shows at any time. `stage` on a thread where
/// it may take long. The futures of `closing`, `discarded`, `staged` and `retire` in tasks of their own. Never is the gate's lock
/// held: an owner may ask its [`Gate`](crate::Gate) and drop permits in any of them, also while it holds locks of its own.
///
/// `capture` runs while nothing is admitted and no counted permit is out: what is recorded then is at a boundary.
pub trait StateOwner: Send + Sync + 'static {
    /// A record that was read and checked, and is not live yet.
    type Staged: Send + 'static;

    /// Whether the server's state can be saved.
    fn mode(&self) -> CheckpointMode {
        CheckpointMode::Exported
    }

    /// Sessions share state with others, so that none of them can be left out of a cut while it is in a step: a soft limit does
    /// not apply here, and the checkpoint waits. Asked once.
    fn shares_state(&self) -> bool {
        false
    }

    /// In-flight episodes that cannot be captured, as this server knows by itself. Asked when a Prepare has closed admission
    /// and again when nothing is left to wait for, and by Status.
    fn restarts(&self) -> Vec<Restart> {
        Vec::new()
    }

    /// Live roots held: episodes at an environment, legacy runs at an agent. Other servers hold none.
    fn roots(&self) -> Vec<Episode> {
        Vec::new()
    }

    /// Admission has closed for this checkpoint; the server is PREPARED without waiting for the future. A policy model cuts its
    /// generations here. The participant cancels it when the id ends.
    fn closing(&self, _id: CheckpointId) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The id ended without a capture that is kept (abandoned, lapsed, discarded): free what `closing` made. A worker's staged
    /// prefixes are released by the coordinator through `discarded`.
    fn discarded(&self, _id: CheckpointId) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Captures the listed episodes, or its parts of them, by reference: one synchronous step. Episodes that are not here
    /// are passed over. `restarts` are those known by now; they are in the partition as such.
    fn capture(&self, id: CheckpointId, scope: &[Episode], restarts: &[Restart]) -> Capture;

    /// At Settle: drops restored episodes that no Run has claimed and that a listed scope left out; replies how many it
    /// held. The marks are set already. A server that holds parts of episodes lets go of those at or below the marks: it would
    /// refuse the next attempt beside them.
    fn drop_unclaimed(&self, marks: &[Mark]) -> u64;

    /// Reads one record and makes it ready under its planned names. Nothing is live. `INVALID_CHECKPOINT` when the payload
    /// does not read.
    fn stage(&self, planned: &PlannedEpisode, payload: Bytes) -> Result<Self::Staged, Refusal>;

    /// All records of a restore are staged: a last look at what lives elsewhere (a policy model asks its worker for each
    /// coordinate). Replies how many cut prefixes are lost.
    fn staged(&self, _staged: &mut [(PlannedEpisode, Self::Staged)]) -> impl Future<Output = u64> + Send {
        std::future::ready(0)
    }

    /// The staged records go live, in one synchronous step; whatever lives of lower attempts of these rollouts is
    /// stopped first.
    fn activate(&self, staged: Vec<(PlannedEpisode, Self::Staged)>);

    /// Stops the marked attempts and all earlier ones, waits for them to end, frees what they held. The mark is set already. May be
    /// called again for the same mark.
    fn retire(&self, marks: Vec<Mark>) -> impl Future<Output = ()> + Send;

    /// Asked before a forget: `ROLLOUT_LIVE` while an attempt is live or staged, `RETIRE_INCOMPLETE` while one is being freed.
    fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal>;

    /// Drops what is remembered of a rollout that is over.
    fn forget(&self, rollout: &RolloutId);

    /// What it holds, by name, for Status: `episodes`, `sessions`, `calls`, `held_replies`, `ledgers`, `results`, `staged`.
    fn counts(&self) -> BTreeMap<&'static str, u64>;

    /// Restored episodes that no Run has claimed.
    fn unclaimed(&self) -> u64 {
        0
    }

    /// What an operator should know, a line each.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Makes the bytes of a captured record, later and elsewhere, from what the capture refers to.
pub trait EncodeRecord: Send + Sync + 'static {
    /// The record's payload.
    fn encode(&self) -> Bytes;
}

impl<F: Fn() -> Bytes + Send + Sync + 'static> EncodeRecord for F {
    fn encode(&self) -> Bytes {
        self()
    }
}

/// One episode's part in a capture.
pub struct CapturedPart {
    /// What the coordinator needs to know of it.
    pub summary: PartSummary,
    /// Bytes of the payload, about: decides RECORD_TOO_LARGE.
    pub size: u64,
    /// Makes the payload.
    pub record: Arc<dyn EncodeRecord>,
}

/// What a server captured: references, not bytes.
#[derive(Default)]
pub struct Capture {
    /// The parts in scope.
    pub parts: Vec<CapturedPart>,
    /// From an environment: every episode it ever admitted and that is not forgotten, in exactly one class.
    pub partition: Vec<PartitionEntry>,
    /// Generations of which a prefix is in the capture.
    pub cut_generations: u64,
    /// Tokens of those prefixes.
    pub cut_tokens: u64,
}
