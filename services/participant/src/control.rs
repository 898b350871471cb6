//! What orders control calls: one lock, under which the machine takes a turn, the owner's functions run, and tasks start.
//!
//! A call's handler does its work in turns and only waits in between, so it can be dropped at any await: what it began is
//! in the machine or in a task, and the next call finds it there.

use std::{
    any::Any,
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use belay_core::{
    ids::{CheckpointId, Episode},
    participant::{Effect, Machine, Phase},
    parts::PlannedEpisode,
    refusal::{Reason, Refusal},
};
use belay_mesh::members::Members;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info};

use crate::{
    gate::Gate,
    owner::StateOwner,
    participant::ParticipantOptions,
    persist::{CapturedRecords, Writer},
    restore::StagingTask,
    retire::RetireTask,
    shared::Shared,
};

/// Records that were staged and wait for their decision.
pub(crate) type StagedRecords<S> = Vec<(PlannedEpisode, S)>;

/// A participant, shared by its handlers and its tasks.
pub(crate) struct Inner<O: StateOwner> {
    pub(crate) options: ParticipantOptions,
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Arc<O>,
    pub(crate) members: Members,
    control: Mutex<Control<O>>,
    /// Changes after every turn of control: who waits for a task's result looks again.
    progress: watch::Sender<()>,
    pub(crate) tasks: TaskTracker,
}

/// What control calls hold beside the machine: the things that the machine only names.
pub(crate) struct Control<O: StateOwner> {
    /// The owner's `closing`, while its id is open.
    closing: HashMap<CheckpointId, Closing>,
    /// What was captured, until it is settled.
    pub(crate) capture: Option<(CheckpointId, Arc<CapturedRecords>)>,
    /// Writers that have not ended, also those that were told to stop.
    pub(crate) writers: HashMap<CheckpointId, Writer>,
    /// The restore that is being staged, or whose staging ended last.
    pub(crate) staging: Option<StagingTask>,
    pub(crate) staged: Option<(CheckpointId, StagedRecords<O::Staged>)>,
    /// Retires that have not ended, by the attempts that they stop.
    pub(crate) retires: HashMap<Vec<Episode>, RetireTask>,
    serving: bool,
}

struct Closing {
    over: CancellationToken,
    task: JoinHandle<()>,
}

impl<O: StateOwner> Inner<O> {
    pub(crate) fn start(
        options: ParticipantOptions,
        gate: Gate,
        owner: Arc<O>,
        members: Members,
    ) -> Arc<Self> {
        let inner = Arc::new(Self {
            shared: gate.shared,
            owner,
            members,
            control: Mutex::new(Control {
                closing: HashMap::new(),
                capture: None,
                writers: HashMap::new(),
                staging: None,
                staged: None,
                retires: HashMap::new(),
                serving: false,
            }),
            progress: watch::Sender::new(()),
            tasks: TaskTracker::new(),
            options,
        });
        let ParticipantOptions {
            record_limit,
            standalone,
            ..
        } = inner.options;
        let shares = inner.owner.shares_state();
        let mut control = inner.control();
        inner.turn(&mut control, |machine, now| {
            machine.set_record_limit(record_limit);
            machine.set_shares_state(shares);
            if standalone {
                machine.stand_alone(now);
            }
        });
        drop(control);
        tokio::spawn(watch_time(Arc::downgrade(&inner), inner.shared.watch_timer()));
        inner
    }

    /// Lets one control call in at a time. Held for turns and the owner's synchronous functions, never across an await.
    pub(crate) fn control(&self) -> MutexGuard<'_, Control<O>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on: changes after this call are seen.
    pub(crate) fn watch_progress(&self) -> watch::Receiver<()> {
        self.progress.subscribe()
    }

    /// One turn of the machine, and everything that follows from it.
    pub(crate) fn turn<R>(
        self: &Arc<Self>,
        control: &mut Control<O>,
        act: impl FnOnce(&mut Machine, Duration) -> R,
    ) -> R {
        let (result, effects) = self.shared.turn(act);
        for effect in effects {
            self.carry_out(control, effect);
        }
        if !control.serving && self.shared.read(|machine, _| machine.is_open()) {
            control.serving = true;
            (self.options.on_serving)(true);
        }
        self.progress.send_replace(());
        result
    }

    fn carry_out(self: &Arc<Self>, control: &mut Control<O>, effect: Effect) {
        match effect {
            // Told by the shared part, under the machine's lock.
            Effect::Phase(_) | Effect::Timer => {}
            Effect::Closing(id) => self.tell_closing(control, id),
            Effect::Over(id) => {
                if let Some(closing) = control.closing.get(&id) {
                    closing.over.cancel();
                }
            }
            Effect::StartPersist(id) => self.start_persist(control, id),
            Effect::StopPersist(id) => {
                if let Some(writer) = control.writers.get(&id) {
                    writer.stop();
                }
            }
            Effect::FreeCapture(id) => {
                control.capture.take_if(|(captured, _)| *captured == id);
            }
            Effect::DiscardStaged(id) => {
                control.staged.take_if(|(staged, _)| *staged == id);
                if let Some(staging) = control.staging.as_ref().filter(|s| s.id == id) {
                    staging.over.cancel();
                }
            }
            Effect::Discarded(id) => self.tell_discarded(control, id),
        }
    }

    fn tell_closing(self: &Arc<Self>, control: &mut Control<O>, id: CheckpointId) {
        // Those that have ended need no more to be remembered.
        control.closing.retain(|_, closing| !closing.task.is_finished());
        let over = CancellationToken::new();
        let work = {
            let (owner, over) = (self.owner.clone(), over.clone());
            tokio::spawn(async move {
                over.run_until_cancelled(owner.closing(id)).await;
            })
        };
        let inner = self.clone();
        let task = self.tasks.spawn(async move {
            if let Err(failed) = work.await
                && failed.is_panic()
            {
                let what = panic_text(&*failed.into_panic());
                inner.fail(&mut inner.control(), id, "closing", &what);
            }
        });
        control.closing.insert(id, Closing { over, task });
    }

    fn tell_discarded(self: &Arc<Self>, control: &mut Control<O>, id: CheckpointId) {
        let closing = control.closing.remove(&id);
        let owner = self.owner.clone();
        self.tasks.spawn(async move {
            // What `closing` makes is freed only once it makes no more of it.
            if let Some(closing) = closing {
                closing.over.cancel();
                let _ = closing.task.await;
            }
            owner.discarded(id).await;
        });
    }

    /// Calls the owner; a panic is a refusal, and where the checkpoint is not yet captured it ends as ABANDONED.
    pub(crate) fn ask<R>(
        self: &Arc<Self>,
        control: &mut Control<O>,
        id: CheckpointId,
        what: &'static str,
        call: impl FnOnce(&O) -> R,
    ) -> Result<R, Refusal> {
        catch_unwind(AssertUnwindSafe(|| call(&self.owner))).map_err(|panic| {
            let text = panic_text(&*panic);
            self.fail(control, id, what, &text)
        })
    }

    /// An unexpected error: ends an uncaptured checkpoint as ABANDONED and reopens.
    pub(crate) fn fail(
        self: &Arc<Self>,
        control: &mut Control<O>,
        id: CheckpointId,
        what: &str,
        text: &str,
    ) -> Refusal {
        let ended = self.turn(control, |machine, now| machine.fail(now, id));
        let instance = self.shared.instance();
        error!(%instance, checkpoint = %id, ended, "{what} panicked: {text}");
        Refusal::new(
            Reason::Internal,
            format!("{instance} failed in {what} of {id}: {text}; this is a defect, see its log"),
        )
        .instance(instance)
        .with("checkpoint_id", id)
    }

    /// A participant's own timeout, told apart from the transport's by its reason.
    pub(crate) fn deadline_passed(&self, message: String) -> Refusal {
        let instance = self.shared.instance();
        Refusal::new(Reason::DeadlinePassed, message).instance(instance)
    }
}

/// Lets leases lapse and soft limits strike, on time. Ends with the participant.
async fn watch_time<O: StateOwner>(inner: Weak<Inner<O>>, mut timer: watch::Receiver<()>) {
    loop {
        timer.borrow_and_update();
        let deadline = match inner.upgrade() {
            Some(inner) => inner.next_deadline(),
            None => return,
        };
        let due = async {
            match deadline {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = timer.changed() => if changed.is_err() { return },
            () = due => match inner.upgrade() {
                Some(inner) => inner.tick(),
                None => return,
            },
        }
    }
}

impl<O: StateOwner> Inner<O> {
    fn next_deadline(&self) -> Option<Instant> {
        let next = self.shared.read(|machine, _| machine.next_deadline());
        next.map(|time| self.shared.instant(time))
    }

    fn tick(self: &Arc<Self>) {
        let mut control = self.control();
        let (open, phase) = self
            .shared
            .read(|machine, _| (machine.open_id(), machine.phase()));
        self.turn(&mut control, Machine::tick);
        let now = self.shared.read(|machine, _| machine.phase());
        if let (Some(id), true) = (open, phase != now && now == Phase::Idle) {
            info!(instance = %self.shared.instance(), checkpoint = %id, "the lease lapsed in {phase}: open again");
        }
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it said nothing".to_owned())
}
