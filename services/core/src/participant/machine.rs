//! The participant as one value: fence, admission, Join, Status, time.

use std::{collections::HashSet, time::Duration};

use crate::{
    ids::{CheckpointId, Episode, Incarnation, Instance},
    parts::Restart,
    refusal::{Reason, Refusal},
};

use super::{
    admission::{Admission, PermitId},
    calls::{
        Commit, CommitReport, Effect, Fence, Join, MarkList, Prepare, PrepareReport, Restore, RestoreReport,
    },
    ended::{Durable, Endings},
    lease::Lease,
    marks::Marks,
    open_clock::OpenClock,
    phase::{Phase, PhaseCell},
};

/// So many blockers are listed where a call does not say how many.
pub const DEFAULT_BLOCKERS: usize = 100;

/// How soon a refused data call may be tried again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// What a machine is made with.
#[derive(Clone, Debug)]
pub struct MachineOptions {
    /// Who this is.
    pub instance: Instance,
    /// This life of the process.
    pub incarnation: Incarnation,
    /// No coordinator: start in IDLE.
    pub standalone: bool,
    /// At most this many calls wait at the door.
    pub door: usize,
    /// A record over this many bytes makes its episode a restart.
    pub record_limit: u64,
    /// Sessions share state, so a soft limit cannot leave one out: it waits instead (protocol 3.2 rule 10).
    pub shares_state: bool,
}

/// What became of a call that asks to be admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    /// It is counted work until it is released.
    Admitted(PermitId),
    /// The mesh is closed: wait for another phase, then ask again.
    Closed,
}

/// A run of checkpoint that is open here.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) call: Prepare,
    pub(super) lease: Lease,
    pub(super) began: Duration,
    /// When the soft limit strikes; `None` once it has, or where there is none.
    pub(super) soft_at: Option<Duration>,
    /// Restarts that this participant found, beside those of the call.
    pub(super) found: Vec<Restart>,
    /// All of them, by episode.
    pub(super) excepted: HashSet<Episode>,
    /// When the last blocker went.
    pub(super) ready_at: Option<Duration>,
    pub(super) report: Option<PrepareReport>,
    pub(super) committed: Option<(Commit, CommitReport)>,
}

/// A run of restore that is open here.
#[derive(Clone, Debug)]
pub(super) struct Staging {
    pub(super) call: Restore,
    pub(super) began: Duration,
    /// The reply, and since when the records have been staged.
    pub(super) staged: Option<(RestoreReport, Duration)>,
}

/// The run that is open: never two.
#[derive(Clone, Debug)]
pub(super) enum Open {
    Checkpoint(Box<Run>),
    Restore(Box<Staging>),
}

/// How the write of a capture stands.
#[derive(Clone, Debug)]
pub(super) enum Write {
    Running,
    Durable(Durable),
    Failed(Refusal),
}

/// A capture that is held: of the open run, or kept and not yet settled.
#[derive(Clone, Debug)]
pub(super) struct HeldCapture {
    pub(super) id: CheckpointId,
    pub(super) at: Duration,
    pub(super) write: Write,
}

/// The participant's state.
#[derive(Clone, Debug)]
pub struct Machine {
    pub(super) instance: Instance,
    pub(super) incarnation: Incarnation,
    pub(super) door: usize,
    pub(super) record_limit: u64,
    pub(super) shares_state: bool,
    pub(super) phase: PhaseCell,
    pub(super) epoch: u64,
    pub(super) open: Option<Open>,
    pub(super) capture: Option<HeldCapture>,
    pub(super) endings: Endings,
    pub(super) marks: Marks,
    pub(super) admission: Admission,
    pub(super) clock: OpenClock,
    pub(super) effects: Vec<Effect>,
}

impl Machine {
    /// A fresh process: in JOINING, or in IDLE with `standalone`.
    pub fn new(options: MachineOptions) -> Self {
        let phase = if options.standalone {
            Phase::Idle
        } else {
            Phase::Joining
        };
        let mut clock = OpenClock::default();
        clock.set(Duration::ZERO, phase == Phase::Idle);
        Self {
            instance: options.instance,
            incarnation: options.incarnation,
            door: options.door,
            record_limit: options.record_limit,
            shares_state: options.shares_state,
            phase: PhaseCell::new(phase),
            epoch: 0,
            open: None,
            capture: None,
            endings: Endings::default(),
            marks: Marks::default(),
            admission: Admission::default(),
            clock,
            effects: Vec::new(),
        }
    }

    /// What is left for the driver to do since this was last called, in order.
    #[must_use]
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Who this is.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// This life of the process.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Where it is.
    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    /// True exactly in IDLE.
    pub fn is_open(&self) -> bool {
        self.phase() == Phase::Idle
    }

    /// The marks held.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The run that is open, of checkpoint or restore.
    pub fn open_id(&self) -> Option<CheckpointId> {
        self.open.as_ref().map(|open| match open {
            Open::Checkpoint(run) => run.call.id,
            Open::Restore(staging) => staging.call.id,
        })
    }

    /// A record over this many bytes makes its episode a restart.
    pub fn set_record_limit(&mut self, bytes: u64) {
        self.record_limit = bytes;
    }

    /// Whether the soft limit can leave episodes out here.
    pub fn set_shares_state(&mut self, shares: bool) {
        self.shares_state = shares;
    }

    /// There is no coordinator: a fresh process opens by itself.
    pub fn stand_alone(&mut self, now: Duration) {
        if self.phase() == Phase::Joining && self.open.is_none() {
            self.enter(now, Phase::Idle);
        }
    }

    // ---- time

    /// When [`tick`](Self::tick) has something to do, should no call come before.
    pub fn next_deadline(&self) -> Option<Duration> {
        match &self.open {
            Some(Open::Checkpoint(run)) => {
                let lease = run.lease.until();
                Some(run.soft_at.map_or(lease, |soft| soft.min(lease)))
            }
            _ => None,
        }
    }

    /// Lets what is due happen: a lease lapses, a soft limit strikes. Every control call begins with it.
    pub fn tick(&mut self, now: Duration) {
        let Some(Open::Checkpoint(run)) = &self.open else {
            return;
        };
        if run.lease.is_over(now) {
            self.lapse(now);
        } else if run.soft_at.is_some_and(|at| now >= at) {
            self.strike_soft_limit(now);
        }
    }

    // ---- control calls that belong to no run

    /// Lets what is due happen, then holds the call against incarnation and epoch. OTHER_INCARNATION, STALE_COORDINATOR.
    pub(super) fn pass_fence(&mut self, now: Duration, fence: &Fence) -> Result<(), Refusal> {
        self.tick(now);
        if fence.incarnation != self.incarnation {
            return Err(Refusal::new(
                Reason::OtherIncarnation,
                format!(
                    "the call is meant for incarnation {} of {}, which now runs as {}; read Status and begin anew",
                    fence.incarnation, self.instance, self.incarnation
                ),
            )
            .instance(&self.instance)
            .with("incarnation", self.incarnation));
        }
        if fence.epoch < self.epoch {
            return Err(Refusal::new(
                Reason::StaleCoordinator,
                format!(
                    "coordinator epoch {} is over: {} has seen {}; this coordinator must stop",
                    fence.epoch, self.instance, self.epoch
                ),
            )
            .instance(&self.instance)
            .with("coordinator_epoch", self.epoch));
        }
        self.epoch = fence.epoch;
        Ok(())
    }

    /// Sets epoch and marks; opens a fresh process if `open`, unless a restore is being staged in it: the decision about that
    /// one opens it.
    pub fn join(&mut self, now: Duration, fence: &Fence, call: &Join) -> Result<Phase, Refusal> {
        self.pass_fence(now, fence)?;
        self.raise_marks(now, &call.marks);
        if call.open && self.phase() == Phase::Joining && self.open.is_none() {
            self.enter(now, Phase::Idle);
        }
        Ok(self.phase())
    }

    // ---- shared by the calls

    /// The one place where the phase changes: checked, told to the driver, and the open clock with it.
    pub(super) fn enter(&mut self, now: Duration, phase: Phase) {
        self.phase.enter(phase);
        self.clock.set(now, phase == Phase::Idle);
        self.effects.push(Effect::Phase(phase));
    }

    /// Unites marks, if their version is not older. While closed an episode that is now retired no longer blocks.
    pub(super) fn raise_marks(&mut self, now: Duration, list: &MarkList) {
        if self.marks.raise(list.version, &list.marks) {
            self.recount(now);
        }
    }

    /// Counts anew what a closed participant waits for: neither restarts of this checkpoint nor retired episodes. Where sessions share
    /// state, a restart's call changes what is saved of the others: it is waited for.
    pub(super) fn recount(&mut self, now: Duration) {
        let Some(Open::Checkpoint(run)) = &self.open else {
            return;
        };
        let (excepted, marks, shares) = (&run.excepted, &self.marks, self.shares_state);
        self.admission
            .recount(|episode| !shares && excepted.contains(episode) || marks.refuses(episode));
        self.settle_readiness(now);
    }

    /// PREPARING with nothing counted any more is PREPARED.
    pub(super) fn settle_readiness(&mut self, now: Duration) {
        if self.phase() != Phase::Preparing || self.admission.counted() > 0 {
            return;
        }
        if let Some(Open::Checkpoint(run)) = &mut self.open {
            run.ready_at = Some(now);
            run.soft_at = None;
        }
        self.effects.push(Effect::Timer);
        self.enter(now, Phase::Prepared);
    }
}
