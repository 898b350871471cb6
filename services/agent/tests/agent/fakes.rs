//! The policy model and the resources server of a mesh, in this process: they answer by a script, write down who called, and
//! can hold calls.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use belay_core::refusal::{Reason, Refusal};
use belay_mesh::status::to_status;
use belay_proto::episode::{
    self as pb, policy_model_server::PolicyModelServer, resources_server::ResourcesServer,
};
use bytes::Bytes;
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status};

use super::control::PATIENCE;

/// Both on one port.
#[derive(Clone)]
pub(crate) struct Fakes {
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    /// Every call, in the order of arrival: `Generate (0, 0) r#0 <execution>`, `Seed r#0 <execution>`.
    log: watch::Sender<Vec<String>>,
    held: watch::Sender<HashSet<&'static str>>,
    refused: Mutex<HashMap<&'static str, Refusal>>,
    /// The output items of each turn's reply.
    script: Vec<&'static str>,
    /// The request of each model call.
    requests: Mutex<Vec<(u32, Bytes)>>,
    /// The arguments of each tool call.
    arguments: Mutex<Vec<Bytes>>,
}

impl Fakes {
    /// A model that answers each turn with the script's items, and says "done" after its end.
    pub(crate) async fn start(script: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let fakes = Self {
            shared: Arc::new(Shared {
                address: listener.local_addr().expect("bound"),
                log: watch::Sender::new(vec![]),
                held: watch::Sender::new(HashSet::new()),
                refused: Mutex::default(),
                script: script.to_vec(),
                requests: Mutex::default(),
                arguments: Mutex::default(),
            }),
        };
        let server = tonic::transport::Server::builder()
            .add_service(ResourcesServer::new(fakes.clone()))
            .add_service(PolicyModelServer::new(fakes.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        fakes
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.shared.address
    }

    pub(crate) fn hold(&self, call: &'static str) {
        self.shared.held.send_modify(|held| {
            held.insert(call);
        });
    }

    pub(crate) fn release(&self, call: &'static str) {
        self.shared.held.send_modify(|held| {
            held.remove(call);
        });
    }

    pub(crate) fn refuse(&self, call: &'static str, reason: Reason) {
        let refusal = Refusal::new(reason, format!("{call} is refused by a test"));
        let mut refused = self.shared.refused.lock().expect("no test panicked");
        refused.insert(call, refusal);
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.shared.log.borrow().clone()
    }

    /// Calls and places, without the episodes.
    pub(crate) fn calls(&self) -> Vec<String> {
        let head = |line: &String| line.rsplitn(3, ' ').last().unwrap_or_default().to_owned();
        self.log().iter().map(head).collect()
    }

    /// The request of the last model call of a turn.
    pub(crate) fn request(&self, turn: u32) -> Bytes {
        let requests = self.shared.requests.lock().expect("no test panicked");
        let of_turn = requests.iter().rev().find(|(at, _)| *at == turn);
        of_turn.expect("it was called").1.clone()
    }

    pub(crate) fn arguments(&self) -> Vec<Bytes> {
        self.shared.arguments.lock().expect("no test panicked").clone()
    }

    pub(crate) async fn until_called(&self, call: &str) {
        let mut log = self.shared.log.subscribe();
        let there = |log: &Vec<String>| log.iter().any(|line| line.starts_with(call));
        let reached = tokio::time::timeout(PATIENCE, log.wait_for(there)).await;
        assert!(reached.is_ok(), "{call} was not called: {:?}", self.log());
    }

    async fn called(
        &self,
        call: &'static str,
        operation: Option<pb::Operation>,
        life: Option<pb::EpisodeRef>,
    ) -> Result<pb::Operation, Status> {
        let operation = operation.expect("an operation");
        let place = format!("{call} ({}, {})", operation.turn, operation.index);
        self.logged(call, &place, life).await?;
        Ok(operation)
    }

    /// A call that is of no operation.
    async fn told(&self, call: &'static str, life: Option<pb::EpisodeRef>) -> Result<(), Status> {
        self.logged(call, call, life).await
    }

    async fn logged(
        &self,
        call: &'static str,
        place: &str,
        life: Option<pb::EpisodeRef>,
    ) -> Result<(), Status> {
        let life = life.expect("a ref");
        let episode = life.episode.expect("an episode");
        let line = format!(
            "{place} {}#{} {}",
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

/// The chain hash of a turn's row.
pub(crate) fn chain(turn: u32) -> Vec<u8> {
    vec![turn as u8 + 1; 32]
}

#[tonic::async_trait]
impl pb::policy_model_server::PolicyModel for Fakes {
    async fn generate(
        &self,
        request: Request<pb::GenerateRequest>,
    ) -> Result<Response<pb::GenerateResponse>, Status> {
        let request = request.into_inner();
        let turn = request.operation.expect("an operation").turn;
        let parent = turn.checked_sub(1).map(chain).unwrap_or_default();
        assert_eq!(request.parent, parent, "the row before turn {turn}");
        self.shared
            .requests
            .lock()
            .expect("no test panicked")
            .push((turn, request.request));
        self.called("Generate", request.operation, request.r#ref).await?;
        let done = r#"{"type":"message","content":"done"}"#;
        let items = self.shared.script.get(turn as usize).copied().unwrap_or(done);
        Ok(Response::new(pb::GenerateResponse {
            response: format!(r#"{{"model":"fake","output":[{items}]}}"#).into(),
            usage: Some(pb::Usage {
                input_tokens: 10,
                output_tokens: 3,
            }),
            chain_hash: chain(turn).into(),
            kept: false,
            finish_reason: pb::FinishReason::Stop.into(),
            instance: None,
        }))
    }

    type GetTrajectoryStream = ReceiverStream<Result<pb::PolicyModelGetTrajectoryResponse, Status>>;

    async fn get_trajectory(
        &self,
        request: Request<pb::PolicyModelGetTrajectoryRequest>,
    ) -> Result<Response<Self::GetTrajectoryStream>, Status> {
        self.told("GetTrajectory", request.into_inner().r#ref).await?;
        let (send, rows) = tokio::sync::mpsc::channel(1);
        let row = pb::TrajectoryRow {
            operation: Some(pb::Operation { turn: 0, index: 0 }),
            ..Default::default()
        };
        let row = pb::PolicyModelGetTrajectoryResponse { row: Some(row) };
        send.try_send(Ok(row)).expect("room for one");
        Ok(Response::new(ReceiverStream::new(rows)))
    }

    async fn end_episodes(
        &self,
        request: Request<pb::EndEpisodesRequest>,
    ) -> Result<Response<pb::EndEpisodesResponse>, Status> {
        let refs = request.into_inner().refs;
        let ended = refs.len() as u32;
        for life in refs {
            self.told("EndEpisodes", Some(life)).await?;
        }
        Ok(Response::new(pb::EndEpisodesResponse { ended }))
    }
}

#[tonic::async_trait]
impl pb::resources_server::Resources for Fakes {
    async fn seed(&self, request: Request<pb::SeedRequest>) -> Result<Response<pb::SeedResponse>, Status> {
        self.told("Seed", request.into_inner().r#ref).await?;
        Ok(Response::new(pb::SeedResponse {
            instance: Some(pb::Instance {
                kind: pb::Kind::Resources.into(),
                name: "counter".into(),
                replica: 0,
            }),
            mode: pb::CheckpointMode::Exported.into(),
            verify: pb::VerifyMode::Replay.into(),
            revision: 0,
        }))
    }

    async fn call_tool(
        &self,
        request: Request<pb::CallToolRequest>,
    ) -> Result<Response<pb::CallToolResponse>, Status> {
        let request = request.into_inner();
        self.shared
            .arguments
            .lock()
            .expect("no test panicked")
            .push(request.arguments);
        let operation = self.called("CallTool", request.operation, request.r#ref).await?;
        Ok(Response::new(pb::CallToolResponse {
            output: format!("{{\"tool\": \"{}\"}}", request.name).into(),
            is_error: false,
            revision: u64::from(operation.turn * 10 + operation.index),
            kept: false,
        }))
    }

    async fn verify(
        &self,
        request: Request<pb::VerifyRequest>,
    ) -> Result<Response<pb::VerifyResponse>, Status> {
        self.told("Verify", request.into_inner().r#ref).await?;
        Ok(Response::new(pb::VerifyResponse {
            reward: 0.75,
            details: r#"{"why": 1e400}"#.into(),
        }))
    }

    async fn close(&self, request: Request<pb::CloseRequest>) -> Result<Response<pb::CloseResponse>, Status> {
        self.told("Close", request.into_inner().r#ref).await?;
        Ok(Response::new(pb::CloseResponse {}))
    }
}
