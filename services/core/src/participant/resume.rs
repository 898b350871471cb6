//! Resume and Settle, and every other way in which a run ends.

use std::time::Duration;

use crate::{
    ids::{CheckpointId, Digest},
    parts::{Mark, PlannedEpisode},
    refusal::{Reason, Refusal},
};

use super::{
    calls::{Decision, Effect, Fence, MarkList, Outcome, ResumeTurn, Settle, SettleTurn},
    ended::{Durable, Ended, Ending, Resumed, Seen, Settled},
    machine::{HeldCapture, Machine, Open, Write},
    phase::Phase,
};

impl Machine {
    /// Ends the closed phase, or a staged restore. For [`ResumeTurn::Activate`] the driver makes the records live and calls
    /// [`activated`](Self::activated).
    pub fn resume(
        &mut self,
        now: Duration,
        fence: &Fence,
        id: CheckpointId,
        decision: Decision,
    ) -> Result<ResumeTurn, Refusal> {
        self.pass_fence(now, fence)?;
        match decision {
            Decision::Keep => self.keep(now, id),
            Decision::Abandon => self.abandon(now, id).map(ResumeTurn::Done),
        }
    }

    fn keep(&mut self, now: Duration, id: CheckpointId) -> Result<ResumeTurn, Refusal> {
        if self.open_id() != Some(id) {
            return match self.endings.seen(id) {
                Seen::Ended(ended) if ended.how == Ending::Kept => Ok(ResumeTurn::Done(ended.resumed)),
                // Never OK, and stale also where another run is open: what was not captured here cannot be kept.
                _ => Err(self.stale("Resume KEEP", id)),
            };
        }
        match &self.open {
            Some(Open::Restore(staging)) if staging.staged.is_some() => {
                let superseded = superseded(&staging.call.plan);
                let version = staging.call.marks.version.max(self.marks.version());
                // Refused before the records go live: two attempts of a rollout never live at once.
                self.marks.raise(version, &superseded);
                Ok(ResumeTurn::Activate { superseded })
            }
            Some(Open::Checkpoint(run)) if run.committed.is_some() => {
                Ok(ResumeTurn::Done(self.end_open(now, Ending::Kept, 0)))
            }
            _ => Err(self.invalid_phase(
                "Resume KEEP",
                id,
                "it is legal after Commit, and after Restore has replied; or ABANDON",
            )),
        }
    }

    /// The staged records are live: opens, and records the reply.
    pub fn activated(&mut self, now: Duration, id: CheckpointId, activated: u64) -> Result<Resumed, Refusal> {
        match &self.open {
            Some(Open::Restore(staging)) if staging.call.id == id && staging.staged.is_some() => {
                Ok(self.end_open(now, Ending::Kept, activated))
            }
            _ => Err(self.stale("Resume KEEP", id)),
        }
    }

    fn abandon(&mut self, now: Duration, id: CheckpointId) -> Result<Resumed, Refusal> {
        if self.open_id() == Some(id) {
            return Ok(self.abandon_open(now));
        }
        let phase = self.phase();
        match self.endings.seen(id) {
            Seen::Ended(ended) if ended.how == Ending::Kept => Err(self.refuse(
                Reason::CheckpointConflict,
                id,
                format!(
                    "Resume ABANDON of {id}: it was kept here; a kept capture is given up by Settle DISCARDED"
                ),
            )),
            Seen::Ended(ended) => Ok(ended.resumed),
            Seen::Passed => Ok(Resumed { phase, activated: 0 }),
            Seen::Never => {
                self.endings.fence(id, phase);
                self.effects.push(Effect::Discarded(id));
                Ok(Resumed { phase, activated: 0 })
            }
        }
    }

    /// Decides an unsettled capture. For [`SettleTurn::Drop`] the driver drops the episodes and calls
    /// [`settled`](Self::settled). After DISCARDED it answers only once nothing is being written under the id.
    pub fn settle(&mut self, now: Duration, fence: &Fence, call: &Settle) -> Result<SettleTurn, Refusal> {
        self.pass_fence(now, fence)?;
        let id = call.id;
        if self.open_id() == Some(id) {
            // A KEEP that was lost on its way: the capture is given up here as well.
            return match (&self.open, call.outcome) {
                (Some(Open::Checkpoint(_)), Outcome::Discarded) => {
                    self.abandon_open(now);
                    Ok(SettleTurn::Done(0))
                }
                _ => Err(self.invalid_phase("Settle", id, "Resume it first")),
            };
        }
        match self.endings.seen(id) {
            Seen::Ended(ended) if ended.how == Ending::Kept => {
                let (settled, captured) = (ended.settled, ended.captured);
                self.settle_kept(now, call, settled, captured)
            }
            Seen::Ended(_) if call.outcome == Outcome::Published => Err(self.stale("Settle", id)),
            Seen::Ended(_) => Ok(SettleTurn::Done(0)),
            // Captured by an earlier life of this process, if at all: only the list of episodes concerns this one.
            Seen::Passed | Seen::Never if call.outcome == Outcome::Published => {
                self.take_marks(now, "Settle", &call.drop)?;
                Ok(SettleTurn::Drop)
            }
            Seen::Passed => Ok(SettleTurn::Done(0)),
            Seen::Never => {
                self.endings.fence(id, self.phase());
                self.effects.push(Effect::Discarded(id));
                Ok(SettleTurn::Done(0))
            }
        }
    }

    fn settle_kept(
        &mut self,
        now: Duration,
        call: &Settle,
        settled: Option<Settled>,
        captured: bool,
    ) -> Result<SettleTurn, Refusal> {
        let id = call.id;
        if let Some(settled) = settled {
            return if settled.outcome == call.outcome && settled.drop == drop_digest(&call.drop) {
                Ok(SettleTurn::Done(settled.dropped))
            } else {
                Err(self.conflict_arguments("Settle", id))
            };
        }
        if !captured {
            return Err(self.invalid_phase("Settle", id, "it was a restore, which needs none"));
        }
        match call.outcome {
            Outcome::Published => {
                if self.capture.as_ref().and_then(HeldCapture::durable).is_none() {
                    return Err(self.invalid_phase(
                        "Settle PUBLISHED",
                        id,
                        "its capture is not durable here; Await it, or settle it as DISCARDED",
                    ));
                }
                self.take_marks(now, "Settle", &call.drop)?;
                Ok(SettleTurn::Drop)
            }
            Outcome::Discarded => {
                self.capture = None;
                self.effects.extend([
                    Effect::StopPersist(id),
                    Effect::FreeCapture(id),
                    Effect::Discarded(id),
                ]);
                self.record_settled(call, 0);
                Ok(SettleTurn::Done(0))
            }
        }
    }

    /// The episodes of a published Settle are dropped: frees the capture, and records the reply.
    pub fn settled(&mut self, call: &Settle, dropped: u64) {
        self.record_settled(call, dropped);
        if self.capture.as_ref().is_some_and(|c| c.id == call.id) {
            self.capture = None;
            self.effects.push(Effect::FreeCapture(call.id));
        }
    }

    fn record_settled(&mut self, call: &Settle, dropped: u64) {
        let durable = self
            .capture
            .as_ref()
            .filter(|c| c.id == call.id && call.outcome == Outcome::Published)
            .and_then(HeldCapture::durable)
            .cloned();
        if let Some(ended) = self.endings.get_mut(call.id).filter(|e| e.captured) {
            ended.durable = durable;
            ended.settled = Some(Settled {
                outcome: call.outcome,
                drop: drop_digest(&call.drop),
                dropped,
            });
        }
    }

    /// The lease ran out: as ABANDON, remembered as LAPSED.
    pub(super) fn lapse(&mut self, now: Duration) {
        self.end_open(now, Ending::Lapsed, 0);
    }

    /// Gives up the open run, whichever it is.
    pub(super) fn abandon_open(&mut self, now: Duration) -> Resumed {
        self.end_open(now, Ending::Abandoned, 0)
    }

    /// The one place where a run ends: the phase it leads to, the effects, the ending that is remembered.
    fn end_open(&mut self, now: Duration, how: Ending, activated: u64) -> Resumed {
        let phase = self.phase();
        let kept = how == Ending::Kept;
        let Some(open) = self.open.take() else {
            return Resumed { phase, activated };
        };
        let (id, next, captured) = match &open {
            Open::Checkpoint(run) => (run.call.id, Phase::Idle, run.committed.is_some()),
            Open::Restore(staging) if kept => (staging.call.id, Phase::Idle, false),
            Open::Restore(staging) if phase == Phase::Restored => (staging.call.id, Phase::Joining, false),
            Open::Restore(staging) => (staging.call.id, phase, false),
        };
        self.effects.push(Effect::Over(id));
        if !kept && self.capture.take().is_some() {
            self.effects
                .extend([Effect::StopPersist(id), Effect::FreeCapture(id)]);
        }
        match &open {
            Open::Checkpoint(_) => {
                self.effects.push(Effect::Timer);
                if !kept {
                    self.effects.push(Effect::Discarded(id));
                }
            }
            Open::Restore(_) if !kept => self.effects.push(Effect::DiscardStaged(id)),
            Open::Restore(_) => {}
        }
        if next != phase {
            self.enter(now, next);
        }
        let resumed = Resumed {
            phase: next,
            activated,
        };
        self.endings.add(
            id,
            Ended {
                how,
                resumed,
                captured: captured && kept,
                durable: None,
                settled: None,
            },
        );
        resumed
    }
}

impl HeldCapture {
    fn durable(&self) -> Option<&Durable> {
        match &self.write {
            Write::Durable(durable) => Some(durable),
            _ => None,
        }
    }
}

/// The attempts that a restore's plan takes the place of.
fn superseded(plan: &[PlannedEpisode]) -> Vec<Mark> {
    plan.iter()
        .filter_map(|planned| {
            Some(Mark {
                rollout: planned.saved.rollout.clone(),
                attempt: planned.attempt.checked_sub(1)?,
            })
        })
        .collect()
}

fn drop_digest(list: &MarkList) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for mark in &list.marks {
        // A rollout id has no zero byte, so the list reads in one way only.
        hasher.update(mark.rollout.as_str().as_bytes());
        hasher.update(&[0]);
        hasher.update(&mark.attempt.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}
