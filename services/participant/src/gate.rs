//! Admission: the one door through which work on episodes starts.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use belay_core::{
    ids::{Episode, Incarnation, Instance},
    participant::{Admit, Machine, MachineOptions, PermitId, Phase},
    refusal::Refusal,
};
use tokio::sync::watch;
use uuid::Uuid;

use crate::{common::DEFAULT_RECORD_LIMIT, shared::Shared};

/// What a gate is made with.
#[derive(Clone, Debug)]
pub struct GateOptions {
    /// Who this is.
    pub instance: Instance,
    /// At most this many calls wait at the door (protocol 3.2 rule 11).
    pub door: usize,
    /// No coordinator: start in IDLE.
    pub standalone: bool,
}

/// The door of one server: cheap to clone, shared by the data service and the participant.
///
/// Its functions that do not wait may be called from anywhere, also while a lock of the owner's is held: the gate never
/// calls an owner.
#[derive(Clone)]
pub struct Gate {
    pub(crate) shared: Arc<Shared>,
}

impl Gate {
    /// A closed door in JOINING (open, with `standalone`), under a fresh incarnation.
    pub fn new(options: GateOptions) -> Self {
        let machine = Machine::new(MachineOptions {
            instance: options.instance,
            incarnation: Incarnation(Uuid::now_v7()),
            standalone: options.standalone,
            door: options.door,
            // The participant sets these two before it serves its first call.
            record_limit: DEFAULT_RECORD_LIMIT,
            shares_state: false,
        });
        Self {
            shared: Arc::new(Shared::new(machine)),
        }
    }

    /// Who this is.
    pub fn instance(&self) -> &Instance {
        self.shared.instance()
    }

    /// This life of the process.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.incarnation()
    }

    /// Waits at the door while the mesh is closed, then admits: the permit counts as work that a checkpoint waits for, and
    /// names it as a blocker, until it is dropped. NOT_JOINED, STALE_ATTEMPT (by mark), ADMISSION_FULL.
    /// A caller that goes away leaves the door; nothing was admitted.
    pub async fn enter(
        &self,
        episode: &Episode,
        step: impl Into<Cow<'static, str>>,
    ) -> Result<Permit, Refusal> {
        let step = step.into();
        // Before the first look at the machine, so that a phase entered in between is seen as a change.
        let mut phase = self.shared.watch_phase();
        let mut place = None;
        loop {
            if let Some(permit) = self.try_enter(episode, step.clone())? {
                return Ok(permit);
            }
            if place.is_none() {
                place = Some(DoorPlace::take(&self.shared)?);
            }
            changed(&mut phase).await;
        }
    }

    /// As [`enter`](Self::enter) where the mesh is open; `None` where the call would have to wait.
    fn try_enter(&self, episode: &Episode, step: Cow<'static, str>) -> Result<Option<Permit>, Refusal> {
        let (admit, _) = self.shared.turn(|machine, now| machine.admit(now, episode, step));
        Ok(match admit? {
            Admit::Admitted(id) => Some(Permit {
                shared: self.shared.clone(),
                id,
                episode: episode.clone(),
            }),
            Admit::Closed => None,
        })
    }

    /// As [`enter`](Self::enter), but never waits for the mesh to open and counts nowhere: for steps that are safe to run twice
    /// (a replayable verify). NOT_JOINED, STALE_ATTEMPT.
    pub fn enter_replay(&self, episode: &Episode) -> Result<(), Refusal> {
        self.shared.read(|machine, _| machine.admit_replay(episode))
    }

    /// Waits until the phase is IDLE.
    pub async fn opened(&self) {
        self.wait_for(|phase| phase == Phase::Idle).await;
    }

    /// Waits while a capture is closed over (COMMITTED) or staged (RESTORED): no reply may leave then.
    pub async fn reply_may_leave(&self) {
        self.wait_for(|phase| !matches!(phase, Phase::Committed | Phase::Restored))
            .await;
    }

    /// True exactly in IDLE.
    pub fn is_open(&self) -> bool {
        self.phase() == Phase::Idle
    }

    /// Where the participant is.
    pub fn phase(&self) -> Phase {
        self.shared.read(|machine, _| machine.phase())
    }

    /// STALE_ATTEMPT when the episode is at or below its rollout's mark.
    pub fn check_mark(&self, episode: &Episode) -> Result<(), Refusal> {
        self.shared.read(|machine, _| machine.check_mark(episode))
    }

    /// Time for which the mesh was open: deadlines and times to live are measured on it (protocol 3.2 rule 6).
    pub fn open_time(&self) -> Duration {
        self.shared.read(|machine, now| machine.open_time(now))
    }

    /// Waits until `open_time` has reached a value.
    pub async fn open_time_reaches(&self, time: Duration) {
        let mut phase = self.shared.watch_phase();
        loop {
            let (open, left) = self.shared.read(|machine, now| {
                let left = time.saturating_sub(machine.open_time(now));
                (machine.is_open(), left)
            });
            if left.is_zero() {
                return;
            }
            if open {
                // A close in between stops the clock: then it is read again.
                let _ = tokio::time::timeout(left, changed(&mut phase)).await;
            } else {
                changed(&mut phase).await;
            }
        }
    }

    async fn wait_for(&self, wanted: impl Fn(Phase) -> bool) {
        let mut phase = self.shared.watch_phase();
        while !wanted(*phase.borrow_and_update()) {
            changed(&mut phase).await;
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate({} in {})", self.instance(), self.phase())
    }
}

/// Waits for the next phase. The sender lives as long as the gate that is waited on, so there is always one to come or an
/// endless wait that the caller bounds.
async fn changed(phase: &mut watch::Receiver<Phase>) {
    if phase.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A place at the door, given up when its holder is admitted, refused or dropped.
struct DoorPlace<'a>(&'a Shared);

impl<'a> DoorPlace<'a> {
    fn take(shared: &'a Shared) -> Result<Self, Refusal> {
        let (room, _) = shared.turn(|machine, _| machine.come_to_door());
        room.map(|()| Self(shared))
    }
}

impl Drop for DoorPlace<'_> {
    fn drop(&mut self) {
        self.0.turn(|machine, _| machine.leave_door());
    }
}

/// Admitted work. While it lives a checkpoint waits for it.
pub struct Permit {
    shared: Arc<Shared>,
    id: PermitId,
    episode: Episode,
}

impl Permit {
    /// The episode.
    pub fn episode(&self) -> &Episode {
        &self.episode
    }

    /// Another step begins under the same permit.
    pub fn step(&mut self, name: impl Into<Cow<'static, str>>) {
        let name = name.into();
        self.shared.turn(|machine, now| machine.step(now, self.id, name));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // The last one that a checkpoint waits for makes the participant PREPARED, and wakes its Prepare.
        self.shared.turn(|machine, now| machine.release(now, self.id));
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({:?})", self.episode)
    }
}
