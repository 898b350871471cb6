//! The words of refusals: what is, and what would be legal.

use crate::{
    ids::CheckpointId,
    refusal::{Reason, Refusal},
};

use super::{
    ended::{Ended, Seen},
    machine::Machine,
    phase::Phase,
};

impl Machine {
    /// A refusal that names this instance, its phase and the run.
    pub(super) fn refuse(&self, reason: Reason, id: CheckpointId, message: impl Into<String>) -> Refusal {
        Refusal::new(reason, message)
            .instance(&self.instance)
            .with("phase", self.phase())
            .with("checkpoint_id", id)
    }

    pub(super) fn invalid_phase(&self, call: &str, id: CheckpointId, legal: &str) -> Refusal {
        let phase = self.phase();
        self.refuse(
            Reason::InvalidPhase,
            id,
            format!("{call} of {id} is not legal in {phase}: {legal}"),
        )
    }

    pub(super) fn conflict_arguments(&self, call: &str, id: CheckpointId) -> Refusal {
        self.refuse(
            Reason::CheckpointConflict,
            id,
            format!("{call} of {id} was made before with other arguments; repeat those, or ABANDON it"),
        )
    }

    /// The run that stands in the way: open, or captured and not settled.
    pub(super) fn conflict_other(&self, call: &str, id: CheckpointId) -> Refusal {
        let (other, state) = match (self.open_id(), &self.capture) {
            (Some(other), _) => (other, "open"),
            (None, Some(capture)) => (capture.id, "kept and not settled"),
            (None, None) => (id, "open"),
        };
        self.refuse(
            Reason::CheckpointConflict,
            id,
            format!("{call} of {id}: {other} is {state} here; end it first"),
        )
        .with("other_checkpoint_id", other)
    }

    /// A call on an id that has ended, or on one that was never here.
    pub(super) fn stale(&self, call: &str, id: CheckpointId) -> Refusal {
        let state = match self.endings.seen(id) {
            Seen::Ended(Ended { how, .. }) => format!("it was {how} here"),
            Seen::Passed => "it is below an id that has ended here".to_owned(),
            Seen::Never => "it was never opened in this process".to_owned(),
        };
        self.refuse(
            Reason::StaleCheckpoint,
            id,
            format!("{call} of {id}: {state}; begin a new run"),
        )
    }

    /// The refusal of a call that needs `id` to be open, when it is not.
    pub(super) fn not_open(&self, call: &str, id: CheckpointId) -> Refusal {
        let another = self.open_id().is_some() || self.capture.is_some();
        if another && matches!(self.endings.seen(id), Seen::Never) {
            self.conflict_other(call, id)
        } else {
            self.stale(call, id)
        }
    }

    pub(super) fn not_joined(&self) -> Refusal {
        let phase = self.phase();
        let cause = match phase {
            Phase::Restored => "a restore is staged and not decided",
            _ => "no coordinator has opened it yet",
        };
        Refusal::new(
            Reason::NotJoined,
            format!(
                "{} is in {phase}: {cause}; try again, or see `belay status`",
                self.instance
            ),
        )
        .instance(&self.instance)
        .with("phase", phase)
        .retry(super::machine::RETRY_PAUSE)
    }
}
