//! Admission: the one door through which work on episodes starts.

use std::{borrow::Cow, time::Duration};

use belay_core::{
    ids::{Episode, Incarnation, Instance},
    refusal::Refusal,
};

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
#[derive(Clone)]
pub struct Gate;

impl Gate {
    /// A closed door in JOINING (open, with `standalone`), under a fresh incarnation.
    pub fn new(_options: GateOptions) -> Self {
        todo!()
    }

    /// Who this is.
    pub fn instance(&self) -> &Instance {
        todo!()
    }

    /// This life of the process.
    pub fn incarnation(&self) -> Incarnation {
        todo!()
    }

    /// Waits at the door while the mesh is closed, then admits: the permit counts as work that a checkpoint waits for, and
    /// names it as a blocker, until it is dropped. NOT_JOINED, STALE_ATTEMPT (by mark), ADMISSION_FULL.
    /// A caller that goes away leaves the door; nothing was admitted.
    pub async fn enter(
        &self,
        _episode: &Episode,
        _step: impl Into<Cow<'static, str>>,
    ) -> Result<Permit, Refusal> {
        todo!()
    }

    /// As [`enter`](Self::enter), but never waits for the mesh to open and counts nowhere: for steps that are safe to run twice
    /// (a replayable verify). NOT_JOINED, STALE_ATTEMPT.
    pub fn enter_replay(&self, _episode: &Episode) -> Result<(), Refusal> {
        todo!()
    }

    /// Waits until the phase is IDLE.
    pub async fn opened(&self) {
        todo!()
    }

    /// Waits while a capture is closed over (COMMITTED) or staged (RESTORED): no reply may leave then.
    pub async fn reply_may_leave(&self) {
        todo!()
    }

    /// True exactly in IDLE.
    pub fn is_open(&self) -> bool {
        todo!()
    }

    /// STALE_ATTEMPT when the episode is at or below its rollout's mark.
    pub fn check_mark(&self, _episode: &Episode) -> Result<(), Refusal> {
        todo!()
    }

    /// Time for which the mesh was open: deadlines and times to live are measured on it (protocol 3.2 rule 6).
    pub fn open_time(&self) -> Duration {
        todo!()
    }

    /// Waits until `open_time` has reached a value.
    pub async fn open_time_reaches(&self, _time: Duration) {
        todo!()
    }
}

/// Admitted work. While it lives a checkpoint waits for it.
pub struct Permit;

impl Permit {
    /// The episode.
    pub fn episode(&self) -> &Episode {
        todo!()
    }

    /// Another step begins under the same permit.
    pub fn step(&mut self, _name: impl Into<Cow<'static, str>>) {
        todo!()
    }
}
