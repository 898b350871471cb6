//! What data calls ask: to be admitted, to be told that an attempt is over, how long the mesh was open.

use std::{borrow::Cow, time::Duration};

use crate::{
    ids::Episode,
    refusal::{Reason, Refusal},
};

use super::{
    admission::PermitId,
    machine::{Admit, Machine, RETRY_PAUSE},
    phase::Phase,
};

impl Machine {
    /// Asks to be admitted. NOT_JOINED before a coordinator has opened the mesh, STALE_ATTEMPT at or below the mark.
    pub fn admit(
        &mut self,
        now: Duration,
        episode: &Episode,
        step: Cow<'static, str>,
    ) -> Result<Admit, Refusal> {
        self.check_mark(episode)?;
        match self.phase() {
            Phase::Idle => Ok(Admit::Admitted(self.admission.admit(now, episode, step))),
            Phase::Joining => Err(self.not_joined()),
            _ => Ok(Admit::Closed),
        }
    }

    /// As [`admit`](Self::admit) for a step that is safe to run twice: it is not counted, and no checkpoint holds it up.
    pub fn admit_replay(&self, episode: &Episode) -> Result<(), Refusal> {
        self.check_mark(episode)?;
        match self.phase() {
            Phase::Joining | Phase::Restored => Err(self.not_joined()),
            _ => Ok(()),
        }
    }

    /// Another step begins under the same permit.
    pub fn step(&mut self, now: Duration, permit: PermitId, step: Cow<'static, str>) {
        self.admission.step(now, permit, step);
    }

    /// The work is done: its boundary is recorded. The last to park makes the participant PREPARED.
    pub fn release(&mut self, now: Duration, permit: PermitId) {
        self.admission.release(permit);
        self.settle_readiness(now);
    }

    /// A call that was told `Closed` comes to the door. ADMISSION_FULL.
    pub fn come_to_door(&mut self) -> Result<(), Refusal> {
        if self.admission.come_to_door(self.door) {
            return Ok(());
        }
        Err(Refusal::new(
            Reason::AdmissionFull,
            format!(
                "{} is in {} and {} calls wait at its door already, its limit; try again",
                self.instance,
                self.phase(),
                self.door
            ),
        )
        .instance(&self.instance)
        .with("phase", self.phase())
        .retry(RETRY_PAUSE))
    }

    /// A call leaves the door: admitted, refused, or gone.
    pub fn leave_door(&mut self) {
        self.admission.leave_door();
    }

    /// STALE_ATTEMPT when the episode is at or below its rollout's mark.
    pub fn check_mark(&self, episode: &Episode) -> Result<(), Refusal> {
        self.marks
            .check(episode)
            .map_err(|refusal| refusal.instance(&self.instance))
    }

    /// Time for which the phase was IDLE.
    pub fn open_time(&self, now: Duration) -> Duration {
        self.clock.read(now)
    }
}
