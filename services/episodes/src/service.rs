//! The data port: converts and validates, nothing else.

use std::sync::Arc;

use belay_core::{
    episode::{Expect, Finished, Request as Run, Work},
    ids::{Episode, RolloutId},
    refusal::Refusal,
};
use belay_mesh::{
    peers,
    status::to_status,
    wire::{self, ToWire as _},
};
use belay_proto::episode::{self as pb, environment_server::Environment as Service};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use crate::{agents::AgentSessions, error::EpisodeError, record::usage_to_wire, row, runner::Runner};

/// Rows that wait for a slow reader.
const ROWS_AHEAD: usize = 8;

/// `belay.episode.v1.Environment`, served.
pub struct RunService<A>(pub Arc<Runner<A>>);

impl<A: AgentSessions> RunService<A> {
    /// Every refusal names a server: the one that refused, else this one.
    fn status(&self, error: impl Into<EpisodeError>) -> Status {
        let refusal = Refusal::from(error.into());
        match refusal.get("instance") {
            Some(_) => to_status(&refusal),
            None => to_status(&refusal.instance(self.0.gate.instance())),
        }
    }
}

fn read_run(request: pb::RunRequest, default_agent: &str) -> Result<(Run, Vec<Episode>), EpisodeError> {
    let episode = wire::episode(request.episode)?;
    let expect = match pb::Expect::try_from(request.expect) {
        Ok(pb::Expect::Fresh) => Expect::Fresh,
        Ok(pb::Expect::Restored) => Expect::Restored,
        Ok(pb::Expect::Either | pb::Expect::Unspecified) => Expect::Either,
        Err(_) => {
            return Err(EpisodeError::Field {
                field: "expect",
                what: format!(
                    "{} is none of 1 (fresh), 2 (restored), 3 (either)",
                    request.expect
                ),
            });
        }
    };
    if request.environment.is_empty() {
        return Err(EpisodeError::Field {
            field: "environment",
            what: "is missing; name the resources server of the task, for example \"counter\"".into(),
        });
    }
    row::params(&request.task)?;
    let agent = match request.agent.as_str() {
        "" => default_agent,
        agent => agent,
    };
    let run = Run {
        episode,
        expect,
        work: Arc::new(Work::new(
            request.task,
            &request.environment,
            agent,
            request.max_steps,
        )),
        deadline: wire::duration("deadline", request.deadline)?,
    };
    Ok((run, read_episodes(request.acknowledge)?))
}

fn read_episodes(episodes: Vec<pb::Episode>) -> Result<Vec<Episode>, Refusal> {
    episodes.into_iter().map(|e| wire::episode(Some(e))).collect()
}

fn response(finished: &Finished) -> pb::RunResponse {
    pb::RunResponse {
        episode: Some(finished.episode.to_wire()),
        execution: finished.execution.to_string(),
        reward: finished.verdict.reward,
        response: finished.outcome.response.clone(),
        verification: finished.verdict.details.clone(),
        usage: Some(usage_to_wire(finished.outcome.usage)),
        model_calls: finished.outcome.model_calls,
        tool_calls: finished.outcome.tool_calls,
        restored: finished.restored,
        environment: finished.work.environment.to_string(),
    }
}

#[tonic::async_trait]
impl<A: AgentSessions> Service for RunService<A> {
    async fn run(&self, request: Request<pb::RunRequest>) -> Result<Response<pb::RunResponse>, Status> {
        let (run, acknowledged) =
            read_run(request.into_inner(), self.0.agents.default_name()).map_err(|e| self.status(e))?;
        // The ledgers end beside the episode.
        let _ = self.0.acknowledge(&acknowledged);
        let finished = self.0.run(run).await.map_err(|e| self.status(e))?;
        Ok(Response::new(response(&finished)))
    }

    async fn acknowledge(
        &self,
        request: Request<pb::AcknowledgeRequest>,
    ) -> Result<Response<pb::AcknowledgeResponse>, Status> {
        let episodes = read_episodes(request.into_inner().episodes).map_err(|e| self.status(e))?;
        let (freed, ended) = self.0.acknowledge(&episodes);
        ended.await;
        Ok(Response::new(pb::AcknowledgeResponse { freed }))
    }

    type GetTrajectoryStream = ReceiverStream<Result<pb::GetTrajectoryResponse, Status>>;

    async fn get_trajectory(
        &self,
        request: Request<pb::GetTrajectoryRequest>,
    ) -> Result<Response<Self::GetTrajectoryStream>, Status> {
        let episode = wire::episode(request.into_inner().episode).map_err(|e| self.status(e))?;
        let finished = self.0.finished(&episode).map_err(|e| self.status(e))?;
        let (send, receive) = mpsc::channel(ROWS_AHEAD);
        // An agent that never asked the model has no ledger.
        if finished.outcome.cursor.chain.is_some() {
            let rows = self.rows(&finished).await.map_err(|e| self.status(e))?;
            tokio::spawn(forward(rows, send));
        }
        Ok(Response::new(ReceiverStream::new(receive)))
    }

    async fn locate(
        &self,
        request: Request<pb::LocateRequest>,
    ) -> Result<Response<pb::LocateResponse>, Status> {
        let rollout = RolloutId::new(&request.into_inner().rollout_id).map_err(|e| self.status(e))?;
        let held = self.0.holds(&rollout);
        Ok(Response::new(pb::LocateResponse { held }))
    }
}

impl<A: AgentSessions> RunService<A> {
    /// The rows as the policy model has them.
    async fn rows(
        &self,
        finished: &Finished,
    ) -> Result<Streaming<pb::PolicyModelGetTrajectoryResponse>, Refusal> {
        let policy_model = &finished.parts.policy_model;
        let client = self.0.peers.policy_model(policy_model)?;
        let request = pb::PolicyModelGetTrajectoryRequest {
            r#ref: Some((&finished.episode, finished.execution).to_wire()),
        };
        peers::call(policy_model, "GetTrajectory", self.0.patience, || {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.get_trajectory(request).await }
        })
        .await
    }
}

async fn forward(
    mut rows: Streaming<pb::PolicyModelGetTrajectoryResponse>,
    send: mpsc::Sender<Result<pb::GetTrajectoryResponse, Status>>,
) {
    while let Some(row) = rows.next().await {
        let last = row.is_err();
        let row = row.map(|row| pb::GetTrajectoryResponse { row: row.row });
        if send.send(row).await.is_err() || last {
            return; // Nobody listens any more, or no more is to come.
        }
    }
}
