//! Prepare, Renew, Commit and Await: a run of checkpoint up to its capture, and the write of that capture.

use std::{borrow::Cow, collections::HashSet, time::Duration};

use crate::{
    ids::{CheckpointId, Episode},
    parts::{PartSummary, Restart, Standing},
    refusal::{Reason, Refusal},
};

use super::{
    calls::{
        Captured, Commit, CommitReport, CommitTurn, Effect, Fence, Prepare, PrepareProgress, PrepareReport,
    },
    ended::{Durable, Seen},
    lease::Lease,
    machine::{HeldCapture, Machine, Open, Run, Write},
    phase::Phase,
};

impl Machine {
    /// Closes admission, or joins the Prepare that did. True when it is this call that closed it: the driver then tells the
    /// machine what restarts the owner knows of, with [`found`](Self::found).
    pub fn prepare(&mut self, now: Duration, fence: &Fence, call: &Prepare) -> Result<bool, Refusal> {
        self.pass_fence(now, fence)?;
        match &self.open {
            Some(Open::Checkpoint(run)) if run.call.id == call.id => {
                if run.call != *call {
                    return Err(self.conflict_arguments("Prepare", call.id));
                }
                self.touch(now, call.id);
                return Ok(false);
            }
            _ if !matches!(self.endings.seen(call.id), Seen::Never) => {
                return Err(self.stale("Prepare", call.id));
            }
            Some(_) => return Err(self.conflict_other("Prepare", call.id)),
            None if self.capture.is_some() => return Err(self.conflict_other("Prepare", call.id)),
            None if self.phase() != Phase::Idle => {
                return Err(self.invalid_phase(
                    "Prepare",
                    call.id,
                    "it is legal in IDLE; Join with `open`, or restore",
                ));
            }
            None => {}
        }
        let soft_at = call.soft_limit.filter(|_| !self.shares_state);
        self.open = Some(Open::Checkpoint(Box::new(Run {
            lease: Lease::new(now, call.grace),
            began: now,
            soft_at: soft_at.map(|limit| now + limit),
            found: Vec::new(),
            excepted: call.restarts.iter().map(|r| r.episode.clone()).collect(),
            ready_at: None,
            report: None,
            committed: None,
            call: call.clone(),
        })));
        self.enter(now, Phase::Preparing);
        self.effects.push(Effect::Timer);
        self.effects.push(Effect::Closing(call.id));
        self.recount(now);
        Ok(true)
    }

    /// The owner cannot capture these: they are restarts of this checkpoint and no longer waited for.
    pub fn found(&mut self, now: Duration, id: CheckpointId, restarts: Vec<Restart>) {
        let Some(run) = self.run_mut(id) else { return };
        if run.report.is_some() {
            return;
        }
        for restart in restarts {
            if run.excepted.insert(restart.episode.clone()) {
                run.found.push(restart);
            }
        }
        self.recount(now);
    }

    /// How far the Prepare has come; once it has ended, STALE_CHECKPOINT.
    pub fn prepare_progress(
        &self,
        now: Duration,
        id: CheckpointId,
        max_blockers: usize,
    ) -> Result<PrepareProgress, Refusal> {
        let Some(run) = self.run(id) else {
            return Err(self.not_open("Prepare", id));
        };
        Ok(match (&run.report, run.ready_at) {
            (Some(report), _) => PrepareProgress::Reported(report.clone()),
            (None, Some(_)) => PrepareProgress::Ready,
            (None, None) => PrepareProgress::Waiting(self.waiting(now, max_blockers)),
        })
    }

    /// No blocker is left, and this is what the owner holds: records the reply. Nothing where it is recorded already.
    pub fn report(&mut self, now: Duration, id: CheckpointId, restarts: Vec<Restart>, roots: Vec<Episode>) {
        self.found(now, id, restarts);
        let Some(run) = self.run_mut(id) else { return };
        if let (Some(ready_at), None) = (run.ready_at, &run.report) {
            run.report = Some(PrepareReport {
                restarts: run.found.clone(),
                roots,
                took: ready_at.saturating_sub(run.began),
            });
        }
    }

    /// An unexpected error before the capture: the id ends as ABANDONED and the participant reopens. False when the id is
    /// not open, or is captured already.
    pub fn fail(&mut self, now: Duration, id: CheckpointId) -> bool {
        let open = self.run(id).is_some_and(|run| run.committed.is_none());
        if open {
            self.abandon_open(now);
        }
        open
    }

    /// Extends the lease; replies what is left. `None`: a staged restore, which has no lease.
    pub fn renew(
        &mut self,
        now: Duration,
        fence: &Fence,
        id: CheckpointId,
    ) -> Result<Option<Duration>, Refusal> {
        self.pass_fence(now, fence)?;
        if self.open_id() != Some(id) {
            return Err(self.not_open("Renew", id));
        }
        self.touch(now, id);
        Ok(self.run(id).map(|run| run.lease.left(now)))
    }

    /// Checks that the capture may be made. The driver then captures and calls [`captured`](Self::captured), or
    /// [`fail`](Self::fail) where that was not possible.
    pub fn commit(&mut self, now: Duration, fence: &Fence, call: &Commit) -> Result<CommitTurn, Refusal> {
        self.pass_fence(now, fence)?;
        let id = call.id;
        let Some(run) = self.run(id) else {
            if self.open_id() == Some(id) {
                return Err(self.invalid_phase("Commit", id, "this id is a restore's; Resume it"));
            }
            return Err(self.not_open("Commit", id));
        };
        if let Some((committed, report)) = &run.committed {
            if committed != call {
                return Err(self.conflict_arguments("Commit", id));
            }
            let report = report.clone();
            self.touch(now, id);
            return Ok(CommitTurn::Recorded(report));
        }
        if run.ready_at.is_none() {
            let mut refusal = self.invalid_phase(
                "Commit",
                id,
                "it is legal in PREPARED; Prepare again, which waits for the blockers",
            );
            refusal.blockers = self.waiting(now, super::DEFAULT_BLOCKERS).blockers;
            return Err(refusal);
        }
        if let Some(episode) = call.scope.iter().find(|e| run.excepted.contains(e)) {
            return Err(self
                .refuse(
                    Reason::RestartInScope,
                    id,
                    format!(
                        "Commit of {id} lists {episode}, which is a restart of this checkpoint; leave it out"
                    ),
                )
                .episode(episode));
        }
        let restarts = run.call.restarts.iter().chain(&run.found).cloned().collect();
        self.touch(now, id);
        Ok(CommitTurn::Capture { restarts })
    }

    /// The owner has captured: records the reply, and starts the write. Parts over the limit become restarts.
    pub fn captured(
        &mut self,
        now: Duration,
        call: &Commit,
        captured: Captured,
    ) -> Result<CommitReport, Refusal> {
        let id = call.id;
        if self.phase() != Phase::Prepared || self.run(id).is_none() {
            return Err(self.invalid_phase("Commit", id, "it is legal in PREPARED"));
        }
        let report = self.commit_report(captured);
        if let Some(run) = self.run_mut(id) {
            run.committed = Some((call.clone(), report.clone()));
        }
        self.capture = Some(HeldCapture {
            id,
            at: now,
            write: Write::Running,
        });
        self.enter(now, Phase::Committed);
        self.touch(now, id);
        self.effects.push(Effect::StartPersist(id));
        Ok(report)
    }

    fn commit_report(&self, captured: Captured) -> CommitReport {
        let limit = self.record_limit;
        let mut partition = captured.partition;
        let (mut parts, mut restarts, mut bytes) = (Vec::new(), Vec::new(), 0u64);
        for (part, size) in captured.parts {
            if size > limit {
                restarts.push(self.too_large(part, size));
            } else {
                bytes = bytes.saturating_add(size);
                parts.push(part);
            }
        }
        if !restarts.is_empty() {
            let too_large: HashSet<&Episode> = restarts.iter().map(|r| &r.episode).collect();
            for entry in &mut partition {
                if too_large.contains(&entry.episode) {
                    entry.standing = Standing::Restart;
                    entry.reason = Reason::RecordTooLarge.to_string();
                }
            }
        }
        CommitReport {
            parts,
            bytes,
            restarts,
            partition,
            at_door: self.admission.at_door() as u64,
            cut_generations: captured.cut_generations,
            cut_tokens: captured.cut_tokens,
        }
    }

    fn too_large(&self, part: PartSummary, size: u64) -> Restart {
        Restart {
            episode: part.episode,
            instance: self.instance.clone(),
            reason: format!(
                "{}: its record has {size} bytes, the limit is {}",
                Reason::RecordTooLarge,
                self.record_limit
            ),
        }
    }

    /// The write of a capture has ended: durable, or with the error of its second try. Nothing where it is no longer wanted.
    pub fn persisted(&mut self, id: CheckpointId, result: Result<Durable, Refusal>) {
        if let Some(capture) = self.capture.as_mut().filter(|c| c.id == id) {
            capture.write = match result {
                Ok(durable) => Write::Durable(durable),
                Err(refusal) => Write::Failed(refusal),
            };
        }
    }

    /// Begins an Await: checks the fence, and counts as an accepted call of the run.
    pub fn begin_await(&mut self, now: Duration, fence: &Fence, id: CheckpointId) -> Result<(), Refusal> {
        self.pass_fence(now, fence)?;
        self.durable(id)?;
        self.touch(now, id);
        Ok(())
    }

    /// Whether the capture is durable: `None` while it is being written; its own error once the write has failed twice.
    pub fn durable(&self, id: CheckpointId) -> Result<Option<Durable>, Refusal> {
        if let Some(capture) = self.capture.as_ref().filter(|c| c.id == id) {
            return match &capture.write {
                Write::Running => Ok(None),
                Write::Durable(durable) => Ok(Some(durable.clone())),
                Write::Failed(refusal) => Err(refusal.clone()),
            };
        }
        if let Seen::Ended(ended) = self.endings.seen(id)
            && let Some(durable) = &ended.durable
        {
            return Ok(Some(durable.clone()));
        }
        if self.open_id() == Some(id) {
            return Err(self.invalid_phase("Await", id, "it is legal after Commit"));
        }
        Err(self.not_open("Await", id))
    }

    /// The soft limit: what still runs is left out of this checkpoint, for good.
    pub(super) fn strike_soft_limit(&mut self, now: Duration) {
        let instance = self.instance.clone();
        let late = self.admission.counted_steps();
        let Some(Open::Checkpoint(run)) = &mut self.open else {
            return;
        };
        run.soft_at = None;
        let limit = run.call.soft_limit.unwrap_or_default();
        let mut late: Vec<Restart> = late
            .into_iter()
            .map(|(episode, step): (Episode, Cow<'static, str>)| Restart {
                episode,
                instance: instance.clone(),
                reason: format!("still in {step} at the soft limit of {limit:?}"),
            })
            .collect();
        late.sort_unstable_by(|a, b| a.episode.cmp(&b.episode));
        let id = run.call.id;
        self.effects.push(Effect::Timer);
        self.found(now, id, late);
    }

    pub(super) fn run(&self, id: CheckpointId) -> Option<&Run> {
        match &self.open {
            Some(Open::Checkpoint(run)) if run.call.id == id => Some(run),
            _ => None,
        }
    }

    pub(super) fn run_mut(&mut self, id: CheckpointId) -> Option<&mut Run> {
        match &mut self.open {
            Some(Open::Checkpoint(run)) if run.call.id == id => Some(run),
            _ => None,
        }
    }

    /// An accepted call of the run: its lease runs anew.
    pub(super) fn touch(&mut self, now: Duration, id: CheckpointId) {
        if let Some(run) = self.run_mut(id) {
            run.lease.renew(now);
            self.effects.push(Effect::Timer);
        }
    }
}
