//! Prepare, Renew, Commit.

use std::{sync::Arc, time::Duration};

use belay_core::{
    participant::{
        Captured, Commit, CommitReport, CommitTurn, DEFAULT_BLOCKERS, Effect, Fence, Prepare,
        PrepareProgress, PrepareReport, Waiting,
    },
    refusal::Refusal,
};
use tokio::time::{Instant, timeout_at};

use crate::{
    control::{Control, Inner},
    owner::{Capture, StateOwner},
    persist::CapturedRecords,
};

/// The reply of a Prepare.
pub(crate) enum Prepared {
    Ready(PrepareReport),
    Waits(Waiting),
}

impl<O: StateOwner> Inner<O> {
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        fence: Fence,
        call: Prepare,
        timeout: Duration,
    ) -> Result<Prepared, Refusal> {
        let deadline = Instant::now() + timeout;
        let mut phase = self.shared.watch_phase();
        self.close(&fence, &call)?;
        loop {
            // The wait is for the phase alone, and the phase is marked as seen before the machine is asked.
            phase.borrow_and_update();
            let waiting = match self.progress(&call)? {
                PrepareProgress::Reported(report) => return Ok(Prepared::Ready(report)),
                PrepareProgress::Ready => continue,
                PrepareProgress::Waiting(waiting) => waiting,
            };
            if !matches!(timeout_at(deadline, phase.changed()).await, Ok(Ok(()))) {
                return Ok(Prepared::Waits(waiting));
            }
        }
    }

    /// Closes admission, and takes the restarts that the owner knows of out of what is waited for.
    fn close(self: &Arc<Self>, fence: &Fence, call: &Prepare) -> Result<(), Refusal> {
        let mut control = self.control();
        if self.turn(&mut control, |machine, now| machine.prepare(now, fence, call))? {
            let found = self.ask(&mut control, call.id, "restarts", O::restarts)?;
            self.turn(&mut control, |machine, now| machine.found(now, call.id, found));
        }
        Ok(())
    }

    fn progress(self: &Arc<Self>, call: &Prepare) -> Result<PrepareProgress, Refusal> {
        let mut control = self.control();
        self.report_if_ready(&mut control, call.id)?;
        self.shared
            .read(|machine, now| machine.prepare_progress(now, call.id, DEFAULT_BLOCKERS))
    }

    /// Once no blocker is left nothing moves any more: what the owner holds now is what it will capture.
    fn report_if_ready(
        self: &Arc<Self>,
        control: &mut Control<O>,
        id: belay_core::ids::CheckpointId,
    ) -> Result<(), Refusal> {
        let progress = self
            .shared
            .read(|machine, now| machine.prepare_progress(now, id, 0));
        if progress == Ok(PrepareProgress::Ready) {
            let (restarts, roots) =
                self.ask(control, id, "restarts", |owner| (owner.restarts(), owner.roots()))?;
            self.turn(control, |machine, now| machine.report(now, id, restarts, roots));
        }
        Ok(())
    }

    pub(crate) fn commit(self: &Arc<Self>, fence: &Fence, call: &Commit) -> Result<CommitReport, Refusal> {
        let mut control = self.control();
        // A Prepare whose caller is gone may not have got so far.
        self.report_if_ready(&mut control, call.id)?;
        let restarts = match self.turn(&mut control, |machine, now| machine.commit(now, fence, call))? {
            CommitTurn::Recorded(report) => return Ok(report),
            CommitTurn::Capture { restarts } => restarts,
        };
        let capture = self.ask(&mut control, call.id, "capture", |owner| {
            owner.capture(call.id, &call.scope, &restarts)
        })?;
        self.captured(&mut control, call, capture)
    }

    fn captured(
        self: &Arc<Self>,
        control: &mut Control<O>,
        call: &Commit,
        capture: Capture,
    ) -> Result<CommitReport, Refusal> {
        let (parts, records) = CapturedRecords::split(capture.parts, self.shared.now());
        let captured = Captured {
            parts,
            partition: capture.partition,
            cut_generations: capture.cut_generations,
            cut_tokens: capture.cut_tokens,
        };
        let (report, effects) = self
            .shared
            .turn(|machine, now| machine.captured(now, call, captured));
        let report = report?;
        // The write begins only when it is known which parts are too large for it.
        control.capture = Some((call.id, Arc::new(records.keep(&report.parts))));
        debug_assert_eq!(effects, [Effect::StartPersist(call.id)]);
        self.start_persist(control, call.id);
        Ok(report)
    }
}
