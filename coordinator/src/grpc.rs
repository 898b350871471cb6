//! The coordinator's service: reads and checks what comes in, calls, writes what goes out. Decides nothing.

use std::{pin::Pin, sync::Arc, time::Duration};

use belay_core::{
    coordinator::plan::Scope,
    ids::{CheckpointId, Instance, RolloutId},
    refusal::{Reason, Refusal},
};
use belay_mesh::{
    status::to_status,
    wire::{self as mesh_wire, ToWire as _},
};
use belay_proto::checkpoint::{self as pb, coordinator_server};
use belay_store::store::MAX_CONTROLLER_STATE;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status};

use crate::{
    checkpoint::{self, CheckpointOptions},
    coordinator::{Coordinator, RunCommand},
    events::{CheckpointEvent, PublishedReport, RestoreEvent, StageReport},
    operator, report,
    report::RunState,
    restore::{self, RestoreOptions, Which},
    retire,
};

/// Entries in one message of a partition or a plan.
const PIECE: usize = 5_000;

/// The service.
pub struct Service(pub Arc<Coordinator>);

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn refused(error: impl Into<Refusal>) -> Status {
    to_status(&error.into())
}

#[tonic::async_trait]
impl coordinator_server::Coordinator for Service {
    type CheckpointStream = Streamed<pb::CheckpointResponse>;
    type RestoreStream = Streamed<pb::CoordinatorRestoreResponse>;

    async fn checkpoint(
        &self,
        request: Request<pb::CheckpointRequest>,
    ) -> Result<Response<Self::CheckpointStream>, Status> {
        let options = checkpoint_options(request.into_inner()).map_err(refused)?;
        let (id, events) = checkpoint::begin(&self.0, options).await.map_err(refused)?;
        let messages = UnboundedReceiverStream::new(events).flat_map(move |event| {
            futures_util::stream::iter(checkpoint_messages(id, event).into_iter().map(Ok))
        });
        Ok(Response::new(Box::pin(messages)))
    }

    async fn publish(
        &self,
        request: Request<pb::PublishRequest>,
    ) -> Result<Response<pb::PublishResponse>, Status> {
        let request = request.into_inner();
        let size = request.controller_state.len() as u64;
        if size > MAX_CONTROLLER_STATE {
            let what = format_args!("{size} bytes, over the limit of {MAX_CONTROLLER_STATE}");
            return Err(refused(mesh_wire::invalid("controller_state", what)));
        }
        let published = self
            .command(&request.checkpoint_id, |reply| RunCommand::Publish {
                controller_state: request.controller_state,
                reply,
            })
            .await
            .map_err(refused)?;
        Ok(Response::new(pb::PublishResponse {
            published: Some(published_to_wire(&published)),
        }))
    }

    async fn abort(&self, request: Request<pb::AbortRequest>) -> Result<Response<pb::AbortResponse>, Status> {
        let id = request.into_inner().checkpoint_id;
        self.command(&id, |reply| RunCommand::Abort { reply })
            .await
            .map_err(refused)?;
        Ok(Response::new(pb::AbortResponse {}))
    }

    async fn get_run(
        &self,
        request: Request<pb::GetRunRequest>,
    ) -> Result<Response<pb::GetRunResponse>, Status> {
        let id: CheckpointId = request.into_inner().checkpoint_id.parse().map_err(refused)?;
        let Some((state, message)) = report::run(&self.0, id).await.map_err(refused)? else {
            return Err(Status::not_found(format!(
                "no run {id} is known: neither a name in {} nor the journal has it",
                self.0.catalogue.directory().display()
            )));
        };
        let state = match state {
            RunState::Running => pb::RunState::Running,
            RunState::Published => pb::RunState::Published,
            RunState::Abandoned => pb::RunState::Abandoned,
            RunState::Restored => pb::RunState::Restored,
            RunState::InDoubt => pb::RunState::InDoubt,
        };
        Ok(Response::new(pb::GetRunResponse {
            state: state.into(),
            message,
        }))
    }

    async fn restore(
        &self,
        request: Request<pb::CoordinatorRestoreRequest>,
    ) -> Result<Response<Self::RestoreStream>, Status> {
        let options = restore_options(request.into_inner()).map_err(refused)?;
        let (id, events) = restore::begin(&self.0, options).await.map_err(refused)?;
        let messages = UnboundedReceiverStream::new(events).flat_map(move |event| {
            futures_util::stream::iter(restore_messages(id, event).into_iter().map(Ok))
        });
        Ok(Response::new(Box::pin(messages)))
    }

    async fn get_controller_state(
        &self,
        request: Request<pb::GetControllerStateRequest>,
    ) -> Result<Response<pb::GetControllerStateResponse>, Status> {
        let asked = request.into_inner().checkpoint_id;
        let asked: Option<CheckpointId> = if asked.is_empty() {
            None
        } else {
            Some(asked.parse().map_err(refused)?)
        };
        let (id, state) = operator::controller_state(&self.0, asked)
            .await
            .map_err(refused)?;
        Ok(Response::new(pb::GetControllerStateResponse {
            checkpoint_id: id.to_string(),
            controller_state: state,
        }))
    }

    async fn open(&self, _: Request<pb::OpenRequest>) -> Result<Response<pb::OpenResponse>, Status> {
        let opened = operator::open(&self.0).await.map_err(refused)?;
        Ok(Response::new(pb::OpenResponse { opened }))
    }

    async fn retire(
        &self,
        request: Request<pb::CoordinatorRetireRequest>,
    ) -> Result<Response<pb::CoordinatorRetireResponse>, Status> {
        let request = request.into_inner();
        let bound = time("timeout", request.timeout, HOUR)
            .map_err(refused)?
            .unwrap_or(Duration::from_secs(30));
        let marks = request
            .marks
            .into_iter()
            .map(mesh_wire::mark)
            .collect::<Result<Vec<_>, _>>()
            .map_err(refused)?;
        let coordinator = self.0.clone();
        // Once it is in the journal it goes on, whether the caller stays or not.
        let retired = tokio::spawn(async move {
            let turn = coordinator.turn("a retire", bound, true).await?;
            retire::retire(&coordinator, &turn, marks, bound).await
        })
        .await
        .map_err(|e| refused(crate::error::CoordinatorError::from(e)))?
        .map_err(refused)?;
        let next = retired
            .next
            .into_iter()
            .map(|(rollout, attempt)| belay_proto::episode::Episode {
                rollout_id: rollout.as_str().into(),
                attempt,
            });
        Ok(Response::new(pb::CoordinatorRetireResponse {
            next: next.collect(),
            unfinished: retired.unfinished.iter().map(|b| b.to_wire()).collect(),
        }))
    }

    async fn forget(
        &self,
        request: Request<pb::CoordinatorForgetRequest>,
    ) -> Result<Response<pb::CoordinatorForgetResponse>, Status> {
        let rollouts = rollout_ids(&request.into_inner().rollout_ids).map_err(refused)?;
        let coordinator = self.0.clone();
        let forgotten = tokio::spawn(async move {
            let turn = coordinator
                .turn("a forget", Duration::from_secs(30), true)
                .await?;
            retire::forget(&coordinator, &turn, rollouts).await
        })
        .await
        .map_err(|e| refused(crate::error::CoordinatorError::from(e)))?
        .map_err(refused)?;
        Ok(Response::new(pb::CoordinatorForgetResponse { forgotten }))
    }

    async fn status(
        &self,
        _: Request<pb::CoordinatorStatusRequest>,
    ) -> Result<Response<pb::CoordinatorStatusResponse>, Status> {
        let mesh = report::mesh(&self.0).await;
        let (open_run, open_run_stage) = match self.0.current() {
            Some(run) => (run.id.to_string(), format!("{} {}", run.kind, run.stage)),
            None => Default::default(),
        };
        let participants = mesh.members.into_iter().map(|m| {
            let member = Some(m.member.to_wire());
            match m.status {
                Ok(status) => pb::ParticipantStatus {
                    member,
                    status: Some((*status).clone()),
                    unreachable: String::new(),
                },
                Err(refusal) => pb::ParticipantStatus {
                    member,
                    status: None,
                    unreachable: refusal.message,
                },
            }
        });
        let participants = participants.collect();
        Ok(Response::new(self.0.journal.read(|state| {
            pb::CoordinatorStatusResponse {
                epoch: self.0.epoch,
                deployment: self.0.config.deployment.clone(),
                open_run,
                open_run_stage,
                participants,
                newest_checkpoint: state
                    .published
                    .last()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                checkpoints: state.published.len() as u64,
                waits_for_restore: mesh.waits_for_restore,
                marks: state.book.mark_count(),
                unfinished_retires: state.unfinished.len() as u64,
                warnings: mesh.warnings,
                version: env!("CARGO_PKG_VERSION").into(),
                root: self.0.catalogue.root().display().to_string(),
            }
        })))
    }

    async fn remove_instance(
        &self,
        request: Request<pb::RemoveInstanceRequest>,
    ) -> Result<Response<pb::RemoveInstanceResponse>, Status> {
        let instance: Instance = mesh_wire::instance(request.into_inner().instance).map_err(refused)?;
        operator::remove(&self.0, instance).await.map_err(refused)?;
        Ok(Response::new(pb::RemoveInstanceResponse {}))
    }
}

impl Service {
    /// Tells the open run, and waits for its answer.
    async fn command<T>(
        &self,
        id: &str,
        command: impl FnOnce(oneshot::Sender<Result<T, Refusal>>) -> RunCommand,
    ) -> Result<T, Refusal> {
        let id: CheckpointId = id.parse()?;
        let not_open = || {
            let open = self.0.current().map_or_else(
                || "no run is open".to_owned(),
                |run| format!("the open run is {} {}", run.kind, run.id),
            );
            Refusal::new(
                Reason::StaleCheckpoint,
                format!("{id} is not open: {open}; GetRun says how it ended"),
            )
            .with("checkpoint_id", id)
        };
        let run = self.0.current().filter(|run| run.id == id).ok_or_else(not_open)?;
        if run.kind == "checkpoint" && run.stage != checkpoint::HELD_IN {
            return Err(checkpoint::nothing_held(id, run.stage));
        }
        let (reply, answer) = oneshot::channel();
        run.commands.send(command(reply)).map_err(|_| not_open())?;
        answer.await.unwrap_or_else(|_| Err(not_open()))
    }
}

const HOUR: Duration = Duration::from_secs(3600);

/// A time in (0, most]; unset is the caller's default.
fn time(
    field: &'static str,
    wire: Option<prost_types::Duration>,
    most: Duration,
) -> Result<Option<Duration>, Refusal> {
    let Some(time) = mesh_wire::duration(field, wire)? else {
        return Ok(None);
    };
    if time.is_zero() || time > most {
        return Err(Refusal::new(
            Reason::InvalidRequest,
            format!("{field} is {time:?}, and must be above 0 and at most {most:?}"),
        )
        .with("field", field));
    }
    Ok(Some(time))
}

fn rollout_ids(ids: &[String]) -> Result<Vec<RolloutId>, Refusal> {
    ids.iter().map(|id| RolloutId::new(id)).collect()
}

fn checkpoint_options(request: pb::CheckpointRequest) -> Result<CheckpointOptions, Refusal> {
    let default = CheckpointOptions::default();
    let timeout = time("timeout", request.timeout, HOUR)?.unwrap_or(default.timeout);
    let soft_limit = time("soft_limit", request.soft_limit, HOUR)?;
    if soft_limit.is_some_and(|limit| limit >= timeout) {
        return Err(Refusal::new(
            Reason::InvalidRequest,
            format!("soft_limit must be below the timeout of {timeout:?}"),
        )
        .with("field", "soft_limit"));
    }
    let hold_timeout = time("hold_timeout", request.hold_timeout, HOUR)?.unwrap_or(Duration::from_secs(300));
    Ok(CheckpointOptions {
        listed: rollout_ids(&request.rollout_ids)?.into_iter().collect(),
        timeout,
        soft_limit,
        grace: time("grace", request.grace, Duration::from_secs(600))?.unwrap_or(default.grace),
        hold: request.hold.then_some(hold_timeout),
        cut_budget: mesh_wire::duration("cut_budget", request.cut_budget)?.unwrap_or(default.cut_budget),
    })
}

fn restore_options(request: pb::CoordinatorRestoreRequest) -> Result<RestoreOptions, Refusal> {
    let which = match (request.checkpoint_id.as_str(), request.previous) {
        ("", false) => Which::Newest,
        ("", true) => Which::Previous,
        (id, _) => Which::Id(id.parse()?),
    };
    Ok(RestoreOptions {
        which,
        scope: Scope {
            only: rollout_ids(&request.rollout_ids)?.into_iter().collect(),
            leave_out: rollout_ids(&request.leave_out)?.into_iter().collect(),
        },
        timeout: time("timeout", request.timeout, HOUR)?.unwrap_or(RestoreOptions::default().timeout),
    })
}

fn stage_to_wire(report: StageReport) -> pb::StageReport {
    pb::StageReport {
        stage: report.stage.into(),
        kind: report.kind,
        took: Some(report.took.to_wire()),
        detail: report.detail,
    }
}

fn published_to_wire(report: &PublishedReport) -> pb::Published {
    pb::Published {
        episodes: report.episodes,
        restarts: report.restarts,
        bytes: report.bytes,
        stall: Some(report.stall.to_wire()),
        total: Some(report.total.to_wire()),
        path: report.path.clone(),
        cut_generations: report.cut_generations,
        cut_tokens: report.cut_tokens,
    }
}

fn abandoned_to_wire(failure: belay_core::coordinator::checkpoint_run::Failure) -> pb::Abandoned {
    let place = failure.instance.map(|i| format!(" on {i}")).unwrap_or_default();
    pb::Abandoned {
        reason: failure.refusal.reason.as_str().into(),
        message: format!(
            "stage {} failed{place}: {}",
            failure.stage, failure.refusal.message
        ),
        stage: failure.stage.into(),
        blockers: failure.refusal.blockers.iter().map(|b| b.to_wire()).collect(),
    }
}

fn checkpoint_messages(id: CheckpointId, event: CheckpointEvent) -> Vec<pb::CheckpointResponse> {
    use pb::checkpoint_response::Event;
    let events = match event {
        CheckpointEvent::Stage(report) => vec![Event::Stage(stage_to_wire(report))],
        CheckpointEvent::Waiting {
            stage,
            blockers,
            count,
        } => vec![Event::Waiting(pb::StageWaiting {
            stage: stage.into(),
            blockers: blockers.iter().map(|b| b.to_wire()).collect(),
            blocker_count: count,
        })],
        CheckpointEvent::Partition(partition) => {
            let mut pieces: Vec<pb::Partition> = partition
                .entries
                .chunks(PIECE)
                .map(|entries| pb::Partition {
                    entries: entries.iter().map(|e| e.to_wire()).collect(),
                    ..Default::default()
                })
                .collect();
            pieces.extend(partition.restarts.chunks(PIECE).map(|restarts| pb::Partition {
                restarts: restarts.iter().map(|r| r.to_wire()).collect(),
                ..Default::default()
            }));
            let mut last = pieces.pop().unwrap_or_default();
            (last.at_door, last.last) = (partition.at_door, true);
            pieces.push(last);
            pieces.into_iter().map(Event::Partition).collect()
        }
        CheckpointEvent::Held(hold) => vec![Event::Held(pb::Held {
            hold_timeout: Some(hold.to_wire()),
        })],
        CheckpointEvent::Published(report) => vec![Event::Published(published_to_wire(&report))],
        CheckpointEvent::Abandoned(failure) => vec![Event::Abandoned(abandoned_to_wire(failure))],
    };
    events
        .into_iter()
        .map(|event| pb::CheckpointResponse {
            checkpoint_id: id.to_string(),
            event: Some(event),
        })
        .collect()
}

fn restore_messages(id: CheckpointId, event: RestoreEvent) -> Vec<pb::CoordinatorRestoreResponse> {
    use pb::coordinator_restore_response::Event;
    let events = match event {
        RestoreEvent::Stage(report) => vec![Event::Stage(stage_to_wire(report))],
        RestoreEvent::Plan {
            source,
            episodes,
            retired,
        } => {
            let mut pieces: Vec<pb::RestorePlan> = episodes
                .chunks(PIECE)
                .map(|episodes| pb::RestorePlan {
                    source: source.to_string(),
                    episodes: episodes.iter().map(|e| e.to_wire()).collect(),
                    ..Default::default()
                })
                .collect();
            let mut last = pieces.pop().unwrap_or_else(|| pb::RestorePlan {
                source: source.to_string(),
                ..Default::default()
            });
            last.retired = retired.iter().map(|r| r.as_str().into()).collect();
            last.last = true;
            pieces.push(last);
            pieces.into_iter().map(Event::Plan).collect()
        }
        RestoreEvent::InDoubt { missing, since } => vec![Event::InDoubt(pb::InDoubt {
            instances: missing.iter().map(|i| i.to_wire()).collect(),
            since: Some(since.to_wire()),
        })],
        RestoreEvent::Restored {
            source,
            episodes,
            total,
            prefixes_lost,
        } => {
            vec![Event::Restored(pb::Restored {
                source: source.to_string(),
                episodes,
                total: Some(total.to_wire()),
                prefixes_lost,
            })]
        }
        RestoreEvent::Abandoned(failure) => vec![Event::Abandoned(abandoned_to_wire(failure))],
    };
    events
        .into_iter()
        .map(|event| pb::CoordinatorRestoreResponse {
            run_id: id.to_string(),
            event: Some(event),
        })
        .collect()
}
