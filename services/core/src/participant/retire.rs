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
    /// Raises marks. Replies those that hold here: the driver stops their attempts and all earlier ones. A mark of an older
    /// version than the one held, and dropped since, is passed over.
    pub fn retire(&mut self, now: Duration, fence: &Fence, call: &MarkList) -> Result<Vec<Mark>, Refusal> {
        self.pass_fence(now, fence)?;
        self.between_runs("Retire")?;
        self.raise_marks(now, call);
        let held = |mark: &&Mark| {
            self.marks
                .get(&mark.rollout)
                .is_some_and(|held| held >= mark.attempt)
        };
        Ok(call.marks.iter().filter(held).cloned().collect())
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
