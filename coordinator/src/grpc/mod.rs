//! The coordinator's service: reads and checks what comes in, calls, writes what goes out. Decides nothing.

mod messages;
mod options;

use std::{pin::Pin, sync::Arc, time::Duration};

use belay_core::{
    ids::{CheckpointId, Instance},
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
    checkpoint,
    coordinator::{Coordinator, RunCommand},
    error::CoordinatorError,
    operator, report,
    report::RunState,
    restore, retire,
};

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
        let options = options::checkpoint_options(request.into_inner()).map_err(refused)?;
        let (id, events) = self
            .outliving(move |coordinator| async move { checkpoint::begin(&coordinator, options).await })
            .await?;
        let messages = UnboundedReceiverStream::new(events).flat_map(move |event| {
            futures_util::stream::iter(messages::checkpoint_messages(id, event).into_iter().map(Ok))
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
            published: Some(messages::published_to_wire(&published)),
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
        let options = options::restore_options(request.into_inner()).map_err(refused)?;
        let (id, events) = self
            .outliving(move |coordinator| async move { restore::begin(&coordinator, options).await })
            .await?;
        let messages = UnboundedReceiverStream::new(events).flat_map(move |event| {
            futures_util::stream::iter(messages::restore_messages(id, event).into_iter().map(Ok))
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
        let opened = self
            .outliving(|coordinator| async move { operator::open(&coordinator).await })
            .await?;
        Ok(Response::new(pb::OpenResponse { opened }))
    }

    async fn retire(
        &self,
        request: Request<pb::CoordinatorRetireRequest>,
    ) -> Result<Response<pb::CoordinatorRetireResponse>, Status> {
        let request = request.into_inner();
        let bound = options::time("timeout", request.timeout, options::HOUR)
            .map_err(refused)?
            .unwrap_or(Duration::from_secs(30));
        let marks = request
            .marks
            .into_iter()
            .map(mesh_wire::mark)
            .collect::<Result<Vec<_>, _>>()
            .map_err(refused)?;
        let retired = self
            .outliving(move |coordinator| async move {
                let turn = coordinator.turn("a retire", bound, true).await?;
                retire::retire(&coordinator, &turn, marks, bound).await
            })
            .await?;
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
        let rollouts = options::rollout_ids(&request.into_inner().rollout_ids).map_err(refused)?;
        let forgotten = self
            .outliving(move |coordinator| async move {
                let turn = coordinator
                    .turn("a forget", Duration::from_secs(30), true)
                    .await?;
                retire::forget(&coordinator, &turn, rollouts).await
            })
            .await?;
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
        self.outliving(move |coordinator| async move { operator::remove(&coordinator, instance).await })
            .await?;
        Ok(Response::new(pb::RemoveInstanceResponse {}))
    }
}

impl Service {
    /// What is begun and in the journal goes on, whether the caller stays or not.
    async fn outliving<T, F, Fut>(&self, work: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Coordinator>) -> Fut,
        Fut: Future<Output = Result<T, CoordinatorError>> + Send + 'static,
    {
        tokio::spawn(work(self.0.clone()))
            .await
            .map_err(|error| refused(CoordinatorError::from(error)))?
            .map_err(refused)
    }

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
