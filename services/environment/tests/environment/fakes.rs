//! The other servers of a mesh, in this process: they answer as they should, write down who called, and can hold calls.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use belay_core::refusal::{Reason, Refusal};
use belay_mesh::status::to_status;
use belay_proto::episode::{
    self as pb, agent_server::AgentServer, policy_model_server::PolicyModelServer,
    resources_server::ResourcesServer,
};
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};

use super::control::PATIENCE;

/// All of them on one port.
#[derive(Clone)]
pub struct Fakes {
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    /// Every call, in the order of arrival: `Verify a#0 <execution>`.
    log: watch::Sender<Vec<String>>,
    held: watch::Sender<HashSet<&'static str>>,
    refused: Mutex<HashMap<&'static str, Refusal>>,
    /// What seeds say.
    modes: Mutex<(pb::CheckpointMode, pb::VerifyMode)>,
}

impl Fakes {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let fakes = Self {
            shared: Arc::new(Shared {
                address: listener.local_addr().expect("bound"),
                log: watch::Sender::new(vec![]),
                held: watch::Sender::new(HashSet::new()),
                refused: Mutex::default(),
                modes: Mutex::new((pb::CheckpointMode::Exported, pb::VerifyMode::Wait)),
            }),
        };
        let server = tonic::transport::Server::builder()
            .add_service(ResourcesServer::new(fakes.clone()))
            .add_service(AgentServer::new(fakes.clone()))
            .add_service(PolicyModelServer::new(fakes.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        fakes
    }

    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    pub fn seed_says(&self, mode: pb::CheckpointMode, verify: pb::VerifyMode) {
        *self.shared.modes.lock().expect("no test panicked") = (mode, verify);
    }

    pub fn hold(&self, call: &'static str) {
        self.shared.held.send_modify(|held| {
            held.insert(call);
        });
    }

    pub fn release(&self, call: &'static str) {
        self.shared.held.send_modify(|held| {
            held.remove(call);
        });
    }

    pub fn refuse(&self, call: &'static str, reason: Reason) {
        let refusal = Refusal::new(reason, format!("{call} is refused by a test"));
        let refusal = refusal.with("instance", "agent/default/0");
        self.shared
            .refused
            .lock()
            .expect("no test panicked")
            .insert(call, refusal);
    }

    pub fn log(&self) -> Vec<String> {
        self.shared.log.borrow().clone()
    }

    /// The names of the calls, in order.
    pub fn calls(&self) -> Vec<String> {
        let first = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
        self.log().iter().map(first).collect()
    }

    pub async fn until_called(&self, call: &str) {
        self.until_called_times(call, 1).await;
    }

    pub async fn until_called_times(&self, call: &str, times: usize) {
        let mut log = self.shared.log.subscribe();
        let count = |log: &Vec<String>| log.iter().filter(|line| line.starts_with(call)).count();
        let reached = tokio::time::timeout(PATIENCE, log.wait_for(|log| count(log) >= times)).await;
        assert!(
            reached.is_ok(),
            "{call} was not called {times} times: {:?}",
            self.log()
        );
    }

    async fn called(&self, call: &'static str, life: Option<pb::EpisodeRef>) -> Result<(), Status> {
        let life = life.expect("a ref");
        let episode = life.episode.expect("an episode");
        let line = format!(
            "{call} {}#{} {}",
            episode.rollout_id, episode.attempt, life.execution
        );
        self.shared.log.send_modify(|log| log.push(line));
        let mut held = self.shared.held.subscribe();
        let _ = held.wait_for(|held| !held.contains(call)).await;
        match self.shared.refused.lock().expect("no test panicked").get(call) {
            Some(refusal) => Err(to_status(refusal)),
            None => Ok(()),
        }
    }
}

fn instance(kind: pb::Kind, name: &str) -> Option<pb::Instance> {
    Some(pb::Instance {
        kind: kind.into(),
        name: name.into(),
        replica: 0,
    })
}

#[tonic::async_trait]
impl pb::resources_server::Resources for Fakes {
    async fn seed(&self, request: Request<pb::SeedRequest>) -> Result<Response<pb::SeedResponse>, Status> {
        self.called("Seed", request.into_inner().r#ref).await?;
        let (mode, verify) = *self.shared.modes.lock().expect("no test panicked");
        Ok(Response::new(pb::SeedResponse {
            instance: instance(pb::Kind::Resources, "counter"),
            mode: mode.into(),
            verify: verify.into(),
            revision: 0,
        }))
    }

    async fn call_tool(
        &self,
        _request: Request<pb::CallToolRequest>,
    ) -> Result<Response<pb::CallToolResponse>, Status> {
        Err(Status::internal("an environment calls no tools"))
    }

    async fn verify(
        &self,
        request: Request<pb::VerifyRequest>,
    ) -> Result<Response<pb::VerifyResponse>, Status> {
        let request = request.into_inner();
        assert_eq!(
            request.response, r#"{ "output": [] }"#,
            "the agent's response, as it came"
        );
        self.called("Verify", request.r#ref).await?;
        Ok(Response::new(pb::VerifyResponse {
            reward: 0.75,
            details: r#"{"why": 1e400}"#.into(),
        }))
    }

    async fn close(&self, request: Request<pb::CloseRequest>) -> Result<Response<pb::CloseResponse>, Status> {
        self.called("Close", request.into_inner().r#ref).await?;
        Ok(Response::new(pb::CloseResponse {}))
    }
}

#[tonic::async_trait]
impl pb::agent_server::Agent for Fakes {
    async fn seed_session(
        &self,
        request: Request<pb::SeedSessionRequest>,
    ) -> Result<Response<pb::SeedSessionResponse>, Status> {
        let request = request.into_inner();
        assert_eq!(request.params, r#"{ "input": "hi" }"#, "the params, as they came");
        self.called("SeedSession", request.r#ref).await?;
        Ok(Response::new(pb::SeedSessionResponse {
            instance: instance(pb::Kind::Agent, "default"),
            mode: pb::CheckpointMode::Exported.into(),
            policy_model: instance(pb::Kind::PolicyModel, "default"),
        }))
    }

    async fn invoke(
        &self,
        request: Request<pb::InvokeRequest>,
    ) -> Result<Response<pb::InvokeResponse>, Status> {
        self.called("Invoke", request.into_inner().r#ref).await?;
        Ok(Response::new(pb::InvokeResponse {
            response: r#"{ "output": [] }"#.into(),
            usage: Some(pb::Usage {
                input_tokens: 11,
                output_tokens: 5,
            }),
            cursor: Some(pb::Cursor {
                operation: Some(pb::Operation { turn: 1, index: 0 }),
                chain_hash: vec![7; 32].into(),
                revision: 1,
            }),
            model_calls: 2,
            tool_calls: 1,
        }))
    }

    async fn close_session(
        &self,
        request: Request<pb::CloseSessionRequest>,
    ) -> Result<Response<pb::CloseSessionResponse>, Status> {
        self.called("CloseSession", request.into_inner().r#ref).await?;
        Ok(Response::new(pb::CloseSessionResponse {}))
    }
}

#[tonic::async_trait]
impl pb::policy_model_server::PolicyModel for Fakes {
    async fn generate(
        &self,
        _request: Request<pb::GenerateRequest>,
    ) -> Result<Response<pb::GenerateResponse>, Status> {
        Err(Status::internal("an environment asks no model"))
    }

    type GetTrajectoryStream = ReceiverStream<Result<pb::PolicyModelGetTrajectoryResponse, Status>>;

    async fn get_trajectory(
        &self,
        request: Request<pb::PolicyModelGetTrajectoryRequest>,
    ) -> Result<Response<Self::GetTrajectoryStream>, Status> {
        self.called("GetTrajectory", request.into_inner().r#ref).await?;
        let (send, rows) = tokio::sync::mpsc::channel(2);
        for turn in 0..2 {
            let row = pb::TrajectoryRow {
                operation: Some(pb::Operation { turn, index: 0 }),
                ..Default::default()
            };
            let row = pb::PolicyModelGetTrajectoryResponse { row: Some(row) };
            send.try_send(Ok(row)).expect("room for two");
        }
        Ok(Response::new(ReceiverStream::new(rows)))
    }

    async fn end_episodes(
        &self,
        request: Request<pb::EndEpisodesRequest>,
    ) -> Result<Response<pb::EndEpisodesResponse>, Status> {
        let refs = request.into_inner().refs;
        let ended = refs.len() as u32;
        for life in refs {
            self.called("EndEpisodes", Some(life)).await?;
        }
        Ok(Response::new(pb::EndEpisodesResponse { ended }))
    }
}
