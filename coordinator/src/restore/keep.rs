//! The stages of a restore that ask participants, and what comes in while they do.

use std::time::Duration;

use belay_core::{
    coordinator::{
        attempts::Why,
        restore_run::{Done, KeepAnswer, RestoreRun},
    },
    ids::Instance,
    parts::{Mark, PlannedEpisode},
    refusal::{Reason, Refusal},
};
use belay_mesh::wire::ToWire as _;
use belay_proto::checkpoint as pb;
use belay_store::ShardRef;
use tokio::time::{Instant, sleep};

use super::{Driver, as_done, too_late};
use crate::{
    coordinator::RunCommand,
    error::CoordinatorError,
    events::RestoreEvent,
    journal::{EndedRun, Entry},
    keeper::{self, END_BOUND, STATUS_BOUND},
    peer::{Peer, all, each},
    wire,
};

/// The participant's own timeout ends first.
const MARGIN: Duration = Duration::from_secs(1);
/// Between two tries to reach whoever does not answer.
const PAUSE: Duration = Duration::from_millis(200);

impl Driver {
    /// Stages on all at once, while commands are heard: nothing is decided yet, and an Abort need not wait.
    pub(super) async fn stage_or_abort(&mut self, run: &mut RestoreRun, on: &[Instance]) -> Done {
        let request = match self.request(self.left()).await {
            Ok(request) => request,
            Err(error) => return as_done(Err(error)),
        };
        let staging = stage(request, self.shards(), self.peers(on));
        tokio::pin!(staging);
        loop {
            tokio::select! {
                staged = &mut staging => return self.staged(staged),
                Some(command) = self.commands.recv() => {
                    self.take(run, command);
                    if self.aborting.is_some() {
                        return Done::Ok;
                    }
                }
            }
        }
    }

    fn staged(&mut self, staged: Result<u64, (Instance, Refusal)>) -> Done {
        match staged {
            Ok(prefixes_lost) => {
                self.prefixes_lost += prefixes_lost;
                Done::Ok
            }
            Err((instance, refusal)) => Done::Failed {
                instance: Some(instance),
                refusal,
            },
        }
    }

    fn shards(&self) -> Vec<ShardRef> {
        self.file.as_ref().map(|f| f.shards.clone()).unwrap_or_default()
    }

    pub(super) fn peers(&self, on: &[Instance]) -> Vec<Peer> {
        on.iter().filter_map(|i| self.pins.get(i).cloned()).collect()
    }

    async fn request(&mut self, bound: Duration) -> Result<pb::RestoreRequest, CoordinatorError> {
        self.file().await?;
        Ok(pb::RestoreRequest {
            fence: None,
            checkpoint_id: self.id.to_string(),
            source: self.source.to_string(),
            timeout: Some(bound.to_wire()),
            marks: Some(self.coordinator.journal.read(keeper::mark_set)),
            plan: self.plan.iter().map(|e| e.to_wire()).collect(),
            shards: Vec::new(),
        })
    }

    /// KEEP on all at once.
    pub(super) async fn keep(&mut self, on: &[Instance]) -> Done {
        // After a restart of the coordinator nobody is pinned yet: whoever answers now is asked.
        for instance in on {
            if !self.pins.contains_key(instance)
                && let Some(peer) = self.coordinator.mesh.peer(instance)
            {
                self.pins.insert(instance.clone(), peer);
            }
        }
        let peers = self.peers(on);
        let request = pb::ResumeRequest {
            fence: None,
            checkpoint_id: self.id.to_string(),
            decision: pb::Decision::Keep.into(),
        };
        let replies = each(&peers, |peer| {
            let request = request.clone();
            async move { peer.resume(request, END_BOUND).await }
        })
        .await;
        let answers = replies.into_iter().map(|(peer, reply)| {
            let answer = match reply {
                Ok(_) => KeepAnswer::Kept,
                Err(refusal) => match refusal.reason {
                    Reason::OtherIncarnation | Reason::StaleCheckpoint | Reason::InvalidPhase => {
                        KeepAnswer::NeedsStaging
                    }
                    _ => {
                        tracing::warn!(instance = %peer.instance, id = %self.id, %refusal, "not kept yet");
                        KeepAnswer::Silent
                    }
                },
            };
            (peer.instance, answer)
        });
        Done::Answers(answers.collect())
    }

    /// Processes that came back have nothing staged: they are staged as they are now.
    pub(super) async fn restage(&mut self, on: &[Instance]) -> Done {
        self.coordinator.mesh.refresh(1, STATUS_BOUND).await;
        for instance in on {
            if let Some(peer) = self.coordinator.mesh.peer(instance) {
                self.pins.insert(instance.clone(), peer);
            }
        }
        let peers = self.peers(on);
        // They are fresh: epoch, marks and members first. What opens them is the decision that was made.
        keeper::join(&self.coordinator, &peers, false).await;
        let request = match self.request(self.coordinator.config.restore_timeout).await {
            Ok(request) => request,
            Err(error) => return as_done(Err(error)),
        };
        let staged = stage(request, self.shards(), peers).await;
        let done = self.staged(staged);
        if let Done::Failed { instance, refusal } = &done {
            tracing::warn!(?instance, id = %self.id, %refusal, "not staged again yet");
        }
        done
    }

    /// A moment, in which commands are heard; after `restore_timeout` it says who is missing.
    pub(super) async fn pause(&mut self, run: &mut RestoreRun, missing: &[Instance]) {
        let since = self.activated.map(|at| at.elapsed()).unwrap_or_default();
        if since >= self.coordinator.config.restore_timeout {
            let now = missing.iter().cloned().collect();
            if self.doubted != now {
                self.doubted = now;
                self.coordinator.in_doubt(true);
                self.events.tell(RestoreEvent::InDoubt {
                    missing: missing.to_vec(),
                    since,
                });
            }
        }
        let until = Instant::now() + PAUSE;
        tokio::select! {
            command = self.commands.recv() => {
                if let Some(command) = command {
                    self.take(run, command);
                }
            }
            () = sleep(until - Instant::now()) => {}
        }
    }

    /// Takes what was commanded since.
    pub(super) fn obey(&mut self, run: &mut RestoreRun) {
        while let Ok(command) = self.commands.try_recv() {
            self.take(run, command);
        }
    }

    fn take(&mut self, run: &mut RestoreRun, command: RunCommand) {
        match command {
            RunCommand::Abort { reply } if run.abort() => self.aborting = Some(reply),
            // Whoever asked may have gone.
            RunCommand::Abort { reply } => drop(reply.send(Err(too_late(self.id)))),
            RunCommand::Publish { reply, .. } => drop(reply.send(Err(too_late(self.id)))),
            RunCommand::Removed(instance) => {
                run.remove(&instance);
                self.pins.remove(&instance);
                self.removed.push(instance);
            }
        }
    }

    /// The run was aborted after *activate*, before anything could run: what is live on these is retired, under marks that keep
    /// the checkpoint's records restorable.
    pub(super) async fn undo(&mut self, on: &[Instance]) -> Done {
        let marks: Vec<Mark> = self.plan.iter().map(planned_mark).collect();
        let (id, raise) = (self.id, marks.clone());
        let committed = self
            .coordinator
            .journal
            .decide(move |state| {
                let raised = state.book.raised(&raise, Why::Superseded);
                let message = "aborted before an environment or agent had opened".to_owned();
                let mut entries = vec![
                    Entry::MarksVersion(state.marks_version() + 1),
                    Entry::RunOver(Some((
                        id,
                        EndedRun {
                            complete: false,
                            message,
                        },
                    ))),
                ];
                entries.extend(
                    raised
                        .into_iter()
                        .map(|(rollout, row)| Entry::Rollout(rollout, row)),
                );
                entries
            })
            .await;
        let request = pb::RetireRequest {
            fence: None,
            marks: marks.iter().map(|m| m.to_wire()).collect(),
            marks_version: self.coordinator.journal.read(|s| s.marks_version()),
            timeout: Some(END_BOUND.to_wire()),
        };
        let peers = self.peers(on);
        for (peer, reply) in each(&peers, |peer| {
            let request = request.clone();
            async move { peer.retire(request, END_BOUND + MARGIN).await }
        })
        .await
        {
            if let Err(refusal) = reply {
                tracing::warn!(instance = %peer.instance, %id, %refusal, "what an aborted restore made live is not freed yet");
            }
        }
        as_done(committed)
    }
}

/// Restore on all at once: each reads all shards of its kind and name, and stages what is placed on it. Replies how many cut
/// prefixes are lost.
async fn stage(
    request: pb::RestoreRequest,
    shards: Vec<ShardRef>,
    peers: Vec<Peer>,
) -> Result<u64, (Instance, Refusal)> {
    let bound = wire::read_span(request.timeout) + MARGIN;
    let replies = all(&peers, |peer| {
        let own = shards.iter().filter(|s| s.instance.same_server(&peer.instance));
        let request = pb::RestoreRequest {
            shards: own.map(wire::shard_to_wire).collect(),
            ..request.clone()
        };
        async move { peer.restore(request, bound).await }
    })
    .await?;
    Ok(replies.iter().map(|(_, r)| r.prefixes_lost).sum())
}

fn planned_mark(planned: &PlannedEpisode) -> Mark {
    Mark {
        rollout: planned.saved.rollout.clone(),
        attempt: planned.attempt,
    }
}
