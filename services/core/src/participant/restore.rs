//! Restore: records of a checkpoint are staged, beside the living or in a fresh process; nothing is live until Resume KEEP.

use std::time::Duration;

use crate::{
    ids::CheckpointId,
    refusal::{Reason, Refusal},
};

use super::{
    calls::{Effect, Fence, Restore, RestoreReport, RestoreTurn},
    ended::Seen,
    machine::{Machine, Open, Staging},
    phase::Phase,
};

impl Machine {
    /// Begins to stage, or joins the Restore that did.
    pub fn restore(&mut self, now: Duration, fence: &Fence, call: &Restore) -> Result<RestoreTurn, Refusal> {
        self.pass_fence(now, fence)?;
        let id = call.id;
        match &self.open {
            Some(Open::Restore(staging)) if staging.call.id == id => {
                if !same_arguments(&staging.call, call) {
                    return Err(self.conflict_arguments("Restore", id));
                }
                return Ok(match &staging.staged {
                    None => RestoreTurn::Reading,
                    Some((report, _)) => RestoreTurn::Recorded(*report),
                });
            }
            _ if !matches!(self.endings.seen(id), Seen::Never) => {
                return Err(self.stale("Restore", id));
            }
            Some(_) if self.open_id() == Some(id) => {
                return Err(self.invalid_phase("Restore", id, "this id is a checkpoint's; Resume it"));
            }
            Some(_) => return Err(self.conflict_other("Restore", id)),
            None if self.capture.is_some() => return Err(self.conflict_other("Restore", id)),
            None => {}
        }
        if let Some(shard) = call
            .shards
            .iter()
            .find(|shard| !shard.instance.same_server(&self.instance))
        {
            return Err(self.refuse(
                Reason::InvalidRequest,
                id,
                format!(
                    "Restore of {id} lists a shard of {}, which {} does not read: send shards of its own kind and name only",
                    shard.instance, self.instance
                ),
            ));
        }
        self.raise_marks(now, &call.marks);
        self.open = Some(Open::Restore(Box::new(Staging {
            call: call.clone(),
            began: now,
            staged: None,
        })));
        Ok(RestoreTurn::Stage)
    }

    /// The records are staged. `None` when the run has ended meanwhile: the driver lets go of them.
    pub fn staged(
        &mut self,
        now: Duration,
        id: CheckpointId,
        report: RestoreReport,
    ) -> Option<RestoreReport> {
        let staging = self.staging_mut(id)?;
        if staging.staged.is_some() {
            return None;
        }
        let took = now.saturating_sub(staging.began);
        let report = RestoreReport { took, ..report };
        staging.staged = Some((report, now));
        if self.phase() == Phase::Joining {
            self.enter(now, Phase::Restored);
        }
        Some(report)
    }

    /// Reading or staging failed: nothing is held, and the same call may be made again. Nothing where the run has ended.
    pub fn stage_failed(&mut self, id: CheckpointId) {
        if self.staging_mut(id).is_some_and(|s| s.staged.is_none()) {
            self.open = None;
            self.effects.push(Effect::DiscardStaged(id));
        }
    }

    fn staging_mut(&mut self, id: CheckpointId) -> Option<&mut Staging> {
        match &mut self.open {
            Some(Open::Restore(staging)) if staging.call.id == id => Some(staging),
            _ => None,
        }
    }
}

/// The marks are no argument: they only grow, and a retry may know more of them.
fn same_arguments(one: &Restore, other: &Restore) -> bool {
    one.source == other.source && one.plan == other.plan && one.shards == other.shards
}
