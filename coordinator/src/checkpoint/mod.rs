//! A run of checkpoint: the driver that does what [`CheckpointRun`] asks for, one step after the other, in a task of its own.

mod ask;
mod decide;
mod file;
mod hold;
mod lease;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use belay_core::{
    coordinator::{
        budget,
        checkpoint_run::{CheckpointRun, Done, Ending, Failure, Step},
        orders,
    },
    ids::{CheckpointId, Incarnation, Instance, RolloutId},
    parts::Standing,
    refusal::{Reason, Refusal},
};
use belay_proto::checkpoint as pb;
use belay_store::ShardRef;
use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use self::lease::Lease;
use crate::{
    coordinator::{Coordinator, RunCommand},
    error::CoordinatorError,
    events::{CheckpointEvent, Events, PublishedReport, StageReport},
    journal::{EndedRun, Entry, OpenRun, Outcome},
    keeper::{self, STATUS_BOUND},
    peer::Peer,
};

/// What a checkpoint is asked for with.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// Only these rollouts; empty means all.
    pub listed: BTreeSet<RolloutId>,
    /// One budget for the whole run.
    pub timeout: Duration,
    /// After this, episodes still in a `wait` step become restarts.
    pub soft_limit: Option<Duration>,
    /// The lease of each closed participant.
    pub grace: Duration,
    /// Stay closed after the capture, for at most so long.
    pub hold: Option<Duration>,
    /// How long generation cuts may take.
    pub cut_budget: Duration,
}

impl Default for CheckpointOptions {
    fn default() -> Self {
        Self {
            listed: BTreeSet::new(),
            timeout: Duration::from_secs(60),
            soft_limit: None,
            grace: Duration::from_secs(60),
            hold: None,
            cut_budget: Duration::from_millis(200),
        }
    }
}

/// A run that has begun: its id, and what it tells.
pub type Begun<T> = (CheckpointId, mpsc::UnboundedReceiver<T>);

/// Begins a run, or refuses it with the mesh untouched. The run goes on in a task of its own.
pub async fn begin(
    coordinator: &Arc<Coordinator>,
    options: CheckpointOptions,
) -> Result<Begun<CheckpointEvent>, CoordinatorError> {
    let turn = coordinator
        .turn(
            "a checkpoint",
            options.timeout.min(Duration::from_secs(10)),
            false,
        )
        .await?;
    coordinator.catalogue.probe().await?;
    // What is owed is linked before anything else is published there.
    keeper::tend(coordinator, &turn).await?;
    let views = coordinator.mesh.refresh(1, STATUS_BOUND).await;
    if let Some(refusal) = keeper::not_ready(&views, &[pb::Phase::Idle]) {
        return Err(refusal.into());
    }
    let pins = coordinator.mesh.processes(&views);

    let id = coordinator.next_id();
    let begun = OpenRun::Checkpoint {
        id,
        kept: false,
        drop: Vec::new(),
    };
    coordinator.journal.commit(vec![Entry::Run(begun)]).await?;
    let commands = coordinator.opened(&turn, id, "checkpoint");
    let (events, told) = Events::new();
    let (run, first) = CheckpointRun::begin(pins.keys().cloned().collect(), options.listed.clone());
    let now = Instant::now();
    let driver = Driver {
        coordinator: coordinator.clone(),
        id,
        deadline: now + options.timeout,
        lease: Lease::new(id, options.grace),
        options,
        pins,
        events,
        commands,
        run,
        began: now,
        prepare_began: None,
        report: PublishedReport::default(),
        shards: Vec::new(),
        controller_state: Bytes::new(),
        waiting: None,
    };
    tokio::spawn(async move {
        driver.drive(first).await;
        drop(turn);
    });
    Ok((id, told))
}

struct Driver {
    coordinator: Arc<Coordinator>,
    id: CheckpointId,
    options: CheckpointOptions,
    /// The processes that were there when the run began; another one refuses.
    pins: BTreeMap<Instance, Peer>,
    events: Events<CheckpointEvent>,
    commands: mpsc::UnboundedReceiver<RunCommand>,
    run: CheckpointRun,
    began: Instant,
    deadline: Instant,
    lease: Lease,
    prepare_began: Option<Instant>,
    report: PublishedReport,
    shards: Vec<ShardRef>,
    controller_state: Bytes,
    /// Who called Publish or Abort, and waits for the end.
    waiting: Option<hold::Waiting>,
}

impl Driver {
    async fn drive(mut self, first: Step) {
        let mut step = first;
        let failure = loop {
            let (stage, began) = (self.run.stage(), Instant::now());
            self.coordinator.in_stage(stage);
            let kind = kinds(&step);
            let done = match step {
                Step::End(Ending::Published) => break None,
                Step::End(Ending::Abandoned(failure)) => break Some(failure),
                step => self.perform(step).await,
            };
            let detail = self.detail(stage, &done);
            if !matches!(done, Done::Failed { .. }) {
                let report = StageReport {
                    stage,
                    kind,
                    took: began.elapsed(),
                    detail,
                };
                tracing::debug!(id = %self.id, ?report, "a stage ended");
                self.events.tell(CheckpointEvent::Stage(report));
            }
            step = self.run.after(done);
        };
        self.finish(failure).await;
    }

    async fn perform(&mut self, step: Step) -> Done {
        match step {
            Step::Prepare { on, restarts } => self.prepare(&on, &restarts).await,
            Step::Cuts { on } => self.cuts(&on).await,
            Step::Commit { on, scope } => self.commit(&on, &scope).await,
            Step::Report => self.report_and_hold().await,
            Step::Journal => {
                let kept = OpenRun::Checkpoint {
                    id: self.id,
                    kept: true,
                    drop: self.run.partition().dropped(),
                };
                done(self.coordinator.journal.commit(vec![Entry::Run(kept)]).await)
            }
            Step::Keep { on } => self.keep(&on).await,
            Step::Await { on } => self.await_durable(&on).await,
            Step::Publish => self.publish().await,
            Step::Record => {
                let drop = self.run.partition().dropped();
                let recorded = self.record(Outcome::Published, drop).await;
                if let Err(error) = &recorded {
                    tracing::error!(id = %self.id, %error, "it is published, and the journal does not know it yet");
                }
                done(recorded)
            }
            Step::Settle { on, drop } => {
                self.settle(&on, Outcome::Published, drop).await;
                Done::Ok
            }
            Step::Abandon { on } => {
                self.abandon(&on).await;
                Done::Ok
            }
            Step::Bury { why } => self.bury(&why).await,
            Step::Discard { on, abandon_first } => {
                self.abandon(&abandon_first).await;
                if let Err(error) = self.record(Outcome::Discarded, Vec::new()).await {
                    tracing::error!(id = %self.id, %error, "a discarded run is not in the journal");
                }
                self.settle(&on, Outcome::Discarded, Vec::new()).await;
                Done::Ok
            }
            Step::End(_) => Done::Ok,
        }
    }

    /// What the stage that runs may take of what is left.
    fn share(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        budget::share(left, self.run.later_stages()).max(Duration::from_millis(10))
    }

    fn peers(&self, on: &[Instance]) -> Vec<Peer> {
        on.iter()
            .filter_map(|instance| self.pins.get(instance).cloned())
            .collect()
    }

    fn incarnation(&self, instance: &Instance) -> Option<Incarnation> {
        self.pins.get(instance).map(|peer| peer.incarnation)
    }

    async fn finish(mut self, failure: Option<Failure>) {
        self.lease.end();
        self.report.total = self.began.elapsed();
        let event = match failure {
            None => {
                let partition = self.run.partition();
                self.report.episodes = self.run.closure().whole.len() as u64;
                self.report.restarts = partition.count(Standing::Restart);
                self.report.path = self
                    .coordinator
                    .catalogue
                    .checkpoint_dir(self.id)
                    .display()
                    .to_string();
                tracing::info!(id = %self.id, episodes = self.report.episodes, stall = ?self.report.stall, "published");
                CheckpointEvent::Published(self.report.clone())
            }
            Some(failure) => {
                tracing::warn!(id = %self.id, stage = failure.stage, refusal = %failure.refusal, "abandoned");
                let message = format!("abandoned in {}: {}", failure.stage, failure.refusal.message);
                let ended = EndedRun {
                    complete: false,
                    message,
                };
                let over = vec![Entry::RunOver(Some((self.id, ended)))];
                if let Err(error) = self.coordinator.journal.commit(over).await {
                    tracing::error!(id = %self.id, %error, "an abandoned run is not in the journal");
                }
                CheckpointEvent::Abandoned(failure)
            }
        };
        self.coordinator.closed();
        if let Some(waiting) = self.waiting.take() {
            waiting.answer(&event);
        }
        self.events.tell(event);
    }

    fn detail(&self, stage: &str, done: &Done) -> String {
        match (stage, done) {
            ("prepare", Done::Prepared(replies)) => {
                let (roots, restarts) = replies
                    .iter()
                    .fold((0, 0), |(a, b), (_, p)| (a + p.roots.len(), b + p.restarts.len()));
                format!("{roots} roots, {restarts} restarts")
            }
            ("commit", Done::Committed(replies)) => {
                format!(
                    "{} parts",
                    replies.iter().map(|(_, c)| c.parts.len()).sum::<usize>()
                )
            }
            ("closure", _) => format!(
                "{} whole, {} restarts, {} parts left out",
                self.run.closure().whole.len(),
                self.run.partition().restarts.len(),
                self.run.closure().left_out
            ),
            ("await", _) => format!("{} bytes in {} shards", self.report.bytes, self.shards.len()),
            _ => String::new(),
        }
    }
}

fn done(result: Result<(), CoordinatorError>) -> Done {
    match result {
        Ok(()) => Done::Ok,
        Err(error) => Done::Failed {
            instance: None,
            refusal: error.into(),
        },
    }
}

fn kinds(step: &Step) -> String {
    match step {
        Step::Prepare { on, .. } | Step::Commit { on, .. } | Step::Keep { on } => orders::kinds_of(on),
        _ => String::new(),
    }
}

/// The stage in which a checkpoint is held.
pub const HELD_IN: &str = "closure";

/// Answers a Publish or Abort that comes when nothing is held.
pub fn nothing_held(id: CheckpointId, stage: &str) -> Refusal {
    Refusal::new(
        Reason::InvalidPhase,
        format!("checkpoint {id} is in stage {stage} and not held: Publish and Abort are for a checkpoint with `hold`, after its `held` message"),
    )
    .with("checkpoint_id", id)
}

/// Refuses a command that does not fit.
fn refuse(command: RunCommand, refusal: Refusal) {
    match command {
        RunCommand::Publish { reply, .. } => answer(reply, Err(refusal)),
        RunCommand::Abort { reply } => answer(reply, Err(refusal)),
        RunCommand::Removed(_) => {}
    }
}

fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    // Whoever asked has gone: the run does not depend on it.
    let _ = reply.send(value);
}
