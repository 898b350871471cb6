//! A resources server that does what a test says, and the waits that every test has.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use belay_core::ids::{Episode, ExecutionId, Instance, Operation, RolloutId};
use belay_mesh::{
    channel::Channels,
    members::{Member, Members},
    peers::Peers,
    server::{HealthHandle, Listeners, MAX_MESSAGE, MeshServer, ServeError},
    shutdown::Shutdown,
    wire::ToWire as _,
};
use belay_proto::episode as pb;
use pb::resources_server::{Resources, ResourcesServer};
use tokio::task::JoinHandle;
use tonic::{Request, Response, Status};

type Answer = Pin<Box<dyn Future<Output = Result<pb::CallToolResponse, Status>> + Send>>;

/// A resources server whose tool calls do what a test says; the closure is told which call it is, from 1.
#[derive(Clone)]
pub struct Scripted {
    tool: Arc<dyn Fn(u32, pb::CallToolRequest) -> Answer + Send + Sync>,
    calls: Arc<AtomicU32>,
}

impl Scripted {
    pub fn new<F>(tool: impl Fn(u32, pb::CallToolRequest) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<pb::CallToolResponse, Status>> + Send + 'static,
    {
        Self {
            tool: Arc::new(move |nth, request| Box::pin(tool(nth, request))),
            calls: Arc::default(),
        }
    }

    /// Replies with the arguments.
    pub fn echo() -> Self {
        Self::new(|_, request| async { Ok(output(request.arguments)) })
    }

    pub fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    pub fn service(&self) -> ResourcesServer<Self> {
        ResourcesServer::new(self.clone())
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE)
    }
}

pub fn output(output: impl Into<bytes::Bytes>) -> pb::CallToolResponse {
    pb::CallToolResponse {
        output: output.into(),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl Resources for Scripted {
    async fn call_tool(
        &self,
        request: Request<pb::CallToolRequest>,
    ) -> Result<Response<pb::CallToolResponse>, Status> {
        let nth = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        (self.tool)(nth, request.into_inner()).await.map(Response::new)
    }

    async fn seed(&self, _: Request<pb::SeedRequest>) -> Result<Response<pb::SeedResponse>, Status> {
        Err(Status::unimplemented("no test seeds"))
    }

    async fn verify(&self, _: Request<pb::VerifyRequest>) -> Result<Response<pb::VerifyResponse>, Status> {
        Err(Status::unimplemented("no test verifies"))
    }

    async fn close(&self, _: Request<pb::CloseRequest>) -> Result<Response<pb::CloseResponse>, Status> {
        Err(Status::unimplemented("no test closes"))
    }
}

pub fn instance() -> Instance {
    "resources/counter/0".parse().unwrap()
}

pub fn tool_call(arguments: impl Into<bytes::Bytes>) -> pb::CallToolRequest {
    let episode = Episode::new(RolloutId::new("task-1").unwrap(), 0);
    let execution: ExecutionId = "01930000-0000-7000-8000-000000000001".parse().unwrap();
    pb::CallToolRequest {
        r#ref: Some((&episode, execution).to_wire()),
        operation: Some(Operation::tool_call(0, 0).to_wire()),
        name: "echo".into(),
        arguments: arguments.into(),
    }
}

/// A server that runs.
pub struct Running {
    pub data: String,
    pub control: String,
    pub health: HealthHandle,
    shutdown: Shutdown,
    ended: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    pub async fn start(server: MeshServer) -> Self {
        let listeners = Listeners::bind("127.0.0.1:0", "127.0.0.1:0").await.unwrap();
        Self::start_on(server, listeners)
    }

    pub fn start_on(server: MeshServer, listeners: Listeners) -> Self {
        let (data, control) = listeners.addresses().unwrap();
        let (health, shutdown) = (server.health(), Shutdown::new());
        Self {
            data: data.to_string(),
            control: control.to_string(),
            health,
            ended: tokio::spawn(server.run(listeners, shutdown.clone())),
            shutdown,
        }
    }

    /// Peers that know this server.
    pub fn peers(&self, channels: Channels) -> Peers {
        peers(&self.data, &self.control, channels)
    }

    /// Asks for the end, which comes later.
    pub fn ask_to_stop(&self) {
        self.shutdown.cancel();
    }

    /// Waits for the end, and says how long it took.
    pub async fn stop(self) -> Duration {
        let begun = Instant::now();
        self.shutdown.cancel();
        within("the server's end", self.ended).await.unwrap().unwrap();
        begun.elapsed()
    }
}

pub fn peers(data: &str, control: &str, channels: Channels) -> Peers {
    let members = Members::default();
    members.install(
        1,
        vec![Member {
            instance: instance(),
            data: data.into(),
            control: control.into(),
        }],
    );
    Peers::new(members, channels)
}

/// Every wait has a bound and a name.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    const BOUND: Duration = Duration::from_secs(30);
    tokio::time::timeout(BOUND, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not come within {BOUND:?}"))
}
