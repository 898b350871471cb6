//! Retire and Forget: attempts are refused and stopped, and at last forgotten.

use std::{collections::HashSet, time::Duration};

use crate::{
    ids::RolloutId,
    parts::Mark,
    refusal::{Reason, Refusal},
};

use super::{
    calls::{Fence, MarkList},
    machine::{Machine, Open},
    phase::Phase,
};

impl Machine {
    /// Raises marks, all of which hold from now on: the driver stops their attempts and all earlier ones. RETIRE_INCOMPLETE
    /// where the version is older than one that is held, and a mark is not.
    pub fn retire(&mut self, now: Duration, fence: &Fence, call: &MarkList) -> Result<Vec<Mark>, Refusal> {
        self.pass_fence(now, fence)?;
        self.between_runs("Retire")?;
        self.take_marks(now, "Retire", call)?;
        Ok(call.marks.clone())
    }

    /// Raises the marks of a call that is answered only when all of them hold. RETIRE_INCOMPLETE when the call's version is
    /// older than the one held and a mark is not held: nobody can tell here whether it was dropped since by a Forget, or never
    /// arrived. A reply of OK would say that it holds.
    pub(super) fn take_marks(&mut self, now: Duration, what: &str, list: &MarkList) -> Result<(), Refusal> {
        self.raise_marks(now, list);
        let held = self.marks.version();
        match list.marks.iter().find(|mark| !self.marks.holds(mark)) {
            None => Ok(()),
            Some(mark) => Err(Refusal::new(
                Reason::RetireIncomplete,
                format!(
                    "{what} brings a mark of {} at version {}, and version {held} is held without it: send it once more with the version that the marks have now",
                    mark.rollout, list.version
                ),
            )
            .instance(&self.instance)
            .with("rollout_id", &mark.rollout)
            .with("marks_version", held)),
        }
    }

    /// Whether the rollouts may be forgotten as far as this participant knows; its owner is asked as well. Replies those that a
    /// Forget of this version concerns. ROLLOUT_LIVE, RETIRE_INCOMPLETE.
    pub fn may_forget(
        &mut self,
        now: Duration,
        fence: &Fence,
        rollouts: &[RolloutId],
        version: u64,
    ) -> Result<Vec<RolloutId>, Refusal> {
        self.pass_fence(now, fence)?;
        self.between_runs("Forget")?;
        let staged: HashSet<&RolloutId> = match &self.open {
            Some(Open::Restore(staging)) => {
                let plan = &staging.call.plan;
                plan.iter().map(|planned| &planned.saved.rollout).collect()
            }
            _ => HashSet::new(),
        };
        let at_work = self.admission.rollouts();
        let mut concerned = Vec::new();
        for rollout in rollouts {
            if !self.marks.may_drop(version, rollout) {
                continue;
            }
            if staged.contains(rollout) {
                return Err(self.refuse_forget(Reason::RolloutLive, rollout, "is staged by a restore"));
            }
            if at_work.contains(rollout) {
                let (reason, state) = if self.marks.get(rollout).is_some() {
                    (Reason::RetireIncomplete, "is retired and still stops")
                } else {
                    (Reason::RolloutLive, "has an attempt at work")
                };
                return Err(self.refuse_forget(reason, rollout, state));
            }
            concerned.push(rollout.clone());
        }
        Ok(concerned)
    }

    /// Drops the marks that were raised before the version; replies how many. The owner has forgotten the rollouts.
    pub fn forget(&mut self, rollouts: &[RolloutId], version: u64) -> u64 {
        self.marks.forget(version, rollouts)
    }

    fn between_runs(&self, call: &str) -> Result<(), Refusal> {
        let phase = self.phase();
        if matches!(phase, Phase::Joining | Phase::Idle) {
            return Ok(());
        }
        let mut refusal = Refusal::new(
            Reason::InvalidPhase,
            format!(
                "{call} is not legal in {phase}: it is in JOINING and IDLE, so wait for the open run to end"
            ),
        )
        .instance(&self.instance)
        .with("phase", phase);
        if let Some(id) = self.open_id() {
            refusal = refusal.with("checkpoint_id", id);
        }
        Err(refusal)
    }

    fn refuse_forget(&self, reason: Reason, rollout: &RolloutId, state: &str) -> Refusal {
        Refusal::new(
            reason,
            format!(
                "{rollout} {state} at {}: retire it, then forget it",
                self.instance
            ),
        )
        .with("rollout_id", rollout)
        .instance(&self.instance)
    }
}
