//! A run of restore: the driver that does what [`RestoreRun`] asks for, in a task of its own.

mod begin;
mod keep;
mod select;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use belay_core::{
    coordinator::{
        attempts::Why,
        checkpoint_run::Failure,
        plan::{Scope, superseded},
        restore_run::{Done, Ending, KeepAnswer, RestoreRun, Step},
    },
    ids::{CheckpointId, Instance, RolloutId},
    parts::PlannedEpisode,
    refusal::{Reason, Refusal},
};
use belay_proto::checkpoint as pb;
use belay_store::CheckpointFile;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::{
    coordinator::{Coordinator, RunCommand, Turn},
    error::CoordinatorError,
    events::{Events, RestoreEvent, StageReport},
    journal::{EndedRun, Entry, OpenRun},
    keeper::{self, END_BOUND},
    peer::{Peer, each},
};

pub use begin::{RestoreOptions, begin, complete};
pub use select::Which;

fn stage(stage: &'static str, took: Duration, detail: String) -> RestoreEvent {
    RestoreEvent::Stage(StageReport {
        stage,
        kind: String::new(),
        took,
        detail,
    })
}

struct Driver {
    coordinator: Arc<Coordinator>,
    id: CheckpointId,
    source: CheckpointId,
    file: Option<CheckpointFile>,
    plan: Vec<PlannedEpisode>,
    events: Events<RestoreEvent>,
    commands: mpsc::UnboundedReceiver<RunCommand>,
    began: Instant,
    deadline: Instant,
    activated: Option<Instant>,
    /// The processes that are, or are to be, staged.
    pins: BTreeMap<Instance, Peer>,
    prefixes_lost: u64,
    /// Told as in doubt.
    doubted: BTreeSet<Instance>,
    /// Taken out of the mesh meanwhile: its share is planned anew.
    removed: Vec<Instance>,
    aborting: Option<oneshot::Sender<Result<(), Refusal>>>,
}

impl Driver {
    /// To the end; what an instance that was removed meanwhile was to hold is restored once more, on the others.
    async fn drive(&mut self, mut run: RestoreRun, mut step: Step, turn: &Turn) {
        loop {
            let ending = self.run_to_end(&mut run, step).await;
            let orphans = self.orphans();
            if orphans.is_empty() || !matches!(ending, Ending::Restored) {
                return self.finish(ending).await;
            }
            if let Err(error) = self.plan_anew(turn, orphans).await {
                let failure = Failure {
                    stage: "plan",
                    instance: None,
                    refusal: error.into(),
                };
                return self.finish(Ending::Abandoned(failure)).await;
            }
            (run, step) = RestoreRun::begin(self.coordinator.mesh.instances());
        }
    }

    async fn run_to_end(&mut self, run: &mut RestoreRun, first: Step) -> Ending {
        let mut step = first;
        loop {
            self.obey(run);
            let (name, began) = (run.stage(), Instant::now());
            self.coordinator.in_stage(name);
            let paused = matches!(step, Step::Pause { .. });
            let done = match step {
                Step::End(ending) => return ending,
                step => self.perform(run, step).await,
            };
            let moved = match &done {
                Done::Ok => !paused,
                Done::Answers(answers) => answers.iter().any(|(_, answer)| *answer == KeepAnswer::Kept),
                Done::Failed { .. } => false,
            };
            if moved {
                self.events.tell(stage(name, began.elapsed(), String::new()));
            }
            step = run.after(done);
        }
    }

    async fn perform(&mut self, run: &mut RestoreRun, step: Step) -> Done {
        match step {
            Step::Stage { on } => self.stage_or_abort(run, &on).await,
            Step::Activate => self.activate().await,
            Step::Keep { on } => self.keep(&on).await,
            Step::Restage { on } => self.restage(&on).await,
            Step::Pause { on } => {
                self.pause(run, &on).await;
                Done::Ok
            }
            Step::Record => self.record().await,
            Step::Abandon { on } => {
                self.abandon(&on).await;
                Done::Ok
            }
            Step::Undo { abandon, retire } => {
                self.abandon(&abandon).await;
                self.undo(&retire).await
            }
            Step::End(_) => Done::Ok,
        }
    }

    fn left(&self) -> Duration {
        self.deadline
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(100))
    }

    /// The decision: from here on the run is completed, whatever happens. Whatever is below the planned attempts is refused.
    async fn activate(&mut self) -> Done {
        let (id, source, plan) = (self.id, self.source, self.plan.clone());
        let committed = self
            .coordinator
            .journal
            .decide(move |state| {
                let raised = state.book.raised(&superseded(&plan), Why::Superseded);
                let mut entries = Vec::new();
                if !raised.is_empty() {
                    entries.push(Entry::MarksVersion(state.marks_version() + 1));
                }
                entries.extend(
                    raised
                        .into_iter()
                        .map(|(rollout, row)| Entry::Rollout(rollout, row)),
                );
                entries.push(Entry::Run(OpenRun::Restore {
                    id,
                    source,
                    activated: Some(plan),
                }));
                entries
            })
            .await;
        self.activated = Some(Instant::now());
        as_done(committed)
    }

    /// Complete: everybody that was kept is open.
    async fn record(&mut self) -> Done {
        let (id, source, episodes) = (self.id, self.source, self.plan.len());
        let mut entries: Vec<Entry> = self
            .pins
            .values()
            .map(|p| Entry::Opened(p.instance.clone(), p.incarnation))
            .collect();
        let message = format!("checkpoint {source} is restored, {episodes} episodes");
        entries.push(Entry::RunOver(Some((
            id,
            EndedRun {
                complete: true,
                message,
            },
        ))));
        let committed = self.coordinator.journal.commit(entries).await;
        if let Err(error) = &committed {
            tracing::error!(%id, %error, "a complete restore is not in the journal: it is completed once more at the next start");
        }
        as_done(committed)
    }

    async fn abandon(&mut self, on: &[Instance]) {
        let request = pb::ResumeRequest {
            fence: None,
            checkpoint_id: self.id.to_string(),
            decision: pb::Decision::Abandon.into(),
        };
        let peers = self.peers(on);
        for (peer, reply) in each(&peers, |peer| {
            let request = request.clone();
            async move { peer.resume(request, END_BOUND).await }
        })
        .await
        {
            if let Err(refusal) = reply {
                tracing::warn!(instance = %peer.instance, id = %self.id, %refusal, "not abandoned yet");
            }
        }
    }

    /// The rollouts that were to have a part on an instance that was removed meanwhile.
    fn orphans(&self) -> BTreeSet<RolloutId> {
        let planned = self.plan.iter();
        planned
            .filter(|e| e.placement.iter().any(|p| self.removed.contains(p)))
            .map(|e| e.saved.rollout.clone())
            .collect()
    }

    /// These are restored once more, on the members that are left, as attempts above those that had a hole.
    async fn plan_anew(&mut self, turn: &Turn, orphans: BTreeSet<RolloutId>) -> Result<(), CoordinatorError> {
        let scope = Scope {
            only: orphans,
            ..Scope::default()
        };
        keeper::tend(&self.coordinator, turn).await?;
        let file = self.file().await?;
        self.coordinator.closed();
        let events = std::mem::replace(&mut self.events, Events::new().0);
        let deadline = Instant::now() + Duration::from_secs(600);
        let anew = begin::plan(
            &self.coordinator,
            turn,
            file,
            &scope,
            events,
            self.began,
            deadline,
        )
        .await?;
        *self = anew;
        Ok(())
    }

    /// What is read, read again after a restart of the coordinator.
    async fn file(&mut self) -> Result<CheckpointFile, CoordinatorError> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let file = select::select(&self.coordinator, &Which::Id(self.source)).await?;
        Ok(self.file.insert(file).clone())
    }

    async fn finish(&mut self, ending: Ending) {
        let event = match ending {
            Ending::Restored => {
                tracing::info!(id = %self.id, source = %self.source, episodes = self.plan.len(), "restored");
                RestoreEvent::Restored {
                    source: self.source,
                    episodes: self.plan.len() as u64,
                    total: self.began.elapsed(),
                    prefixes_lost: self.prefixes_lost,
                }
            }
            Ending::Abandoned(failure) => {
                tracing::warn!(id = %self.id, stage = failure.stage, refusal = %failure.refusal, "abandoned");
                let message = format!("abandoned in {}: {}", failure.stage, failure.refusal.message);
                let ended = EndedRun {
                    complete: false,
                    message,
                };
                let over = vec![Entry::RunOver(Some((self.id, ended)))];
                if let Err(error) = self.coordinator.journal.commit(over).await {
                    tracing::error!(id = %self.id, %error, "an abandoned restore is not in the journal");
                }
                RestoreEvent::Abandoned(failure)
            }
        };
        self.coordinator.closed();
        if let Some(reply) = self.aborting.take() {
            // Whoever asked may have gone.
            let _ = reply.send(match &event {
                RestoreEvent::Abandoned(_) => Ok(()),
                _ => Err(too_late(self.id)),
            });
        }
        self.events.tell(event);
    }
}

fn too_late(id: CheckpointId) -> Refusal {
    Refusal::new(
        Reason::InvalidPhase,
        format!("restore {id} cannot be aborted any more: an environment or agent has opened, and what was restored may run"),
    )
    .with("checkpoint_id", id)
}

fn as_done(result: Result<(), CoordinatorError>) -> Done {
    match result {
        Ok(()) => Done::Ok,
        Err(error) => Done::Failed {
            instance: None,
            refusal: error.into(),
        },
    }
}
