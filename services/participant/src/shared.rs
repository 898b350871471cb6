//! The machine behind its lock, with the clock, and what wakes those who wait for it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use belay_core::{
    ids::{Incarnation, Instance},
    participant::{Effect, Machine, Phase},
};
use tokio::{sync::watch, time::Instant};
use tracing::debug;

/// Shared by the gate, its permits and the participant. The lock is held for a few instructions at a time, never across an
/// await and never while an owner's function runs.
pub(crate) struct Shared {
    instance: Instance,
    incarnation: Incarnation,
    /// The machine's time begins here.
    start: Instant,
    machine: Mutex<Machine>,
    /// The phase, sent under the machine's lock, so that it never runs behind. A watch stores its value: whoever subscribes
    /// before looking at the machine misses no change.
    phase: watch::Sender<Phase>,
    /// Changes when the machine's next deadline does.
    timer: watch::Sender<()>,
}

impl Shared {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            instance: machine.instance().clone(),
            incarnation: machine.incarnation(),
            start: Instant::now(),
            phase: watch::Sender::new(machine.phase()),
            timer: watch::Sender::new(()),
            machine: Mutex::new(machine),
        }
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The phase from now on: changes after this call are seen.
    pub(crate) fn watch_phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn watch_timer(&self) -> watch::Receiver<()> {
        self.timer.subscribe()
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn instant(&self, time: Duration) -> Instant {
        self.start + time
    }

    /// Looks at the machine.
    pub(crate) fn read<R>(&self, look: impl FnOnce(&Machine, Duration) -> R) -> R {
        let machine = self.lock();
        look(&machine, self.now())
    }

    /// One turn of the machine. A phase that was entered and a deadline that changed are told to whoever waits; all other
    /// effects are the caller's, and only control calls have any.
    pub(crate) fn turn<R>(&self, act: impl FnOnce(&mut Machine, Duration) -> R) -> (R, Vec<Effect>) {
        let mut machine = self.lock();
        // The time is read under the lock: it never goes back from one turn to the next.
        let now = self.now();
        let result = act(&mut machine, now);
        let mut effects = machine.take_effects();
        effects.retain(|effect| match effect {
            Effect::Phase(phase) => {
                debug!(instance = %self.instance, %phase, "entered");
                self.phase.send_replace(*phase);
                false
            }
            Effect::Timer => {
                self.timer.send_replace(());
                false
            }
            _ => true,
        });
        (result, effects)
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        // A turn that panicked has broken nothing that another turn could mend; the checks of the machine stand.
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
