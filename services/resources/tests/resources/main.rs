//! A resources server on real ports; the coordinator, the agent and the environment server are played by the test.

mod calls;
mod checkpoint;
mod control;
mod effects;
mod external;
mod held;
mod lifetime;
mod shared;
mod verify;
mod workplace;

use std::{fmt::Debug, future::Future, time::Duration};

use belay_core::{
    ids::{Episode, Instance, RolloutId},
    refusal::{Reason, Refusal},
};
use belay_mesh::{
    channel::{Channels, MeshChannel},
    server::Listeners,
    shutdown::Shutdown,
    status::IntoRefusal as _,
    wire::ToWire as _,
};
use belay_participant::ServerCommon;
use belay_proto::episode::{self as pb, resources_client::ResourcesClient};
use belay_resources::{Environment, ResourcesConfig, environments::Counter, serve_environment};
use control::Control;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tonic::{Response, Status};

/// Long enough for a loaded machine: a wait that takes longer is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const TASK: &str =
    r#"{"responses_create_params":{}, "initial_count":3, "expected_count":6, "n":1e400}"#;

/// One process.
pub(crate) struct Server {
    pub(crate) control: Control,
    pub(crate) client: ResourcesClient<MeshChannel>,
    stop: Shutdown,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn me() -> Instance {
    "resources/counter/0".parse().expect("an instance")
}

impl Server {
    /// In JOINING.
    pub(crate) async fn start<E: Environment>(
        root: &TempDir,
        environment: E,
        change: impl FnOnce(&mut ResourcesConfig),
    ) -> Self {
        let listeners = Listeners::bind("127.0.0.1:0", "127.0.0.1:0")
            .await
            .expect("free ports");
        let (data, control) = listeners.addresses().expect("bound");
        let mut config = ResourcesConfig::new(ServerCommon::new(me(), root.path(), "test"), "");
        change(&mut config);
        let stop = Shutdown::new();
        tokio::spawn(serve_environment(config, environment, listeners, stop.clone()));
        Self {
            control: Control::connect(control).await,
            client: ResourcesClient::new(Channels::default().data(&data.to_string())),
            stop,
        }
    }

    /// Joined and open.
    pub(crate) async fn open<E: Environment>(root: &TempDir, environment: E) -> Self {
        let server = Self::start(root, environment, |_| ()).await;
        server.control.join(true).await;
        server
    }

    /// The counter, joined and open.
    pub(crate) async fn counter(root: &TempDir) -> Self {
        Self::open(root, Counter).await
    }

    pub(crate) async fn seed(&self, life: &Life) -> Result<pb::SeedResponse, Refusal> {
        let request = pb::SeedRequest {
            r#ref: life.wire(),
            task: TASK.into(),
        };
        answer(self.client.clone().seed(request)).await
    }

    pub(crate) async fn call(
        &self,
        life: &Life,
        operation: (u32, u32),
        name: &str,
        arguments: &str,
    ) -> Result<pb::CallToolResponse, Refusal> {
        let request = pb::CallToolRequest {
            r#ref: life.wire(),
            operation: Some(pb::Operation {
                turn: operation.0,
                index: operation.1,
            }),
            name: name.into(),
            arguments: arguments.to_owned().into(),
        };
        answer(self.client.clone().call_tool(request)).await
    }

    /// increment_counter, as `operation`.
    pub(crate) async fn add(
        &self,
        life: &Life,
        operation: (u32, u32),
        n: i64,
    ) -> Result<pb::CallToolResponse, Refusal> {
        let arguments = format!("{{\"count\": {n}}}");
        self.call(life, operation, "increment_counter", &arguments).await
    }

    /// get_counter_value, as `operation`: the output.
    pub(crate) async fn count(&self, life: &Life, operation: (u32, u32)) -> String {
        let reply = self
            .call(life, operation, "get_counter_value", "{}")
            .await
            .expect("a reply");
        String::from_utf8(reply.output.to_vec()).expect("text")
    }

    /// In a task of its own.
    pub(crate) fn begin_add(
        &self,
        life: &Life,
        operation: (u32, u32),
        n: i64,
    ) -> JoinHandle<Result<pb::CallToolResponse, Refusal>> {
        let (client, life) = (self.client.clone(), life.clone());
        let request = pb::CallToolRequest {
            r#ref: life.wire(),
            operation: Some(pb::Operation {
                turn: operation.0,
                index: operation.1,
            }),
            name: "increment_counter".into(),
            arguments: format!("{{\"count\": {n}}}").into(),
        };
        tokio::spawn(async move { answer(client.clone().call_tool(request)).await })
    }

    pub(crate) async fn verify(&self, life: &Life, response: &str) -> Result<pb::VerifyResponse, Refusal> {
        let request = pb::VerifyRequest {
            r#ref: life.wire(),
            response: response.to_owned().into(),
        };
        answer(self.client.clone().verify(request)).await
    }

    pub(crate) async fn close(&self, life: &Life) -> Result<pb::CloseResponse, Refusal> {
        let request = pb::CloseRequest { r#ref: life.wire() };
        answer(self.client.clone().close(request)).await
    }

    /// How many sessions and calls Status counts.
    pub(crate) async fn counts(&self) -> (u64, u64) {
        let counts = self.control.status().await.counts;
        (counts["sessions"], counts["calls"])
    }
}

async fn answer<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Refusal> {
    let answered = tokio::time::timeout(PATIENCE, call)
        .await
        .expect("an answer in time");
    answered.map(Response::into_inner).map_err(Status::into_refusal)
}

/// An episode in one of its lives.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) episode: Episode,
    pub(crate) execution: u128,
}

pub(crate) fn life(id: &str, attempt: u32, execution: u128) -> Life {
    Life {
        episode: Episode::new(RolloutId::new(id).expect("an id"), attempt),
        execution,
    }
}

impl Life {
    pub(crate) fn wire(&self) -> Option<pb::EpisodeRef> {
        Some(pb::EpisodeRef {
            episode: Some(self.episode.to_wire()),
            execution: uuid::Uuid::from_u128(self.execution).to_string(),
        })
    }
}

#[track_caller]
pub(crate) fn refused<T: Debug>(outcome: Result<T, Refusal>, reason: Reason) -> Refusal {
    let refusal = outcome.expect_err("refused");
    assert_eq!(refusal.reason, reason, "{refusal}");
    assert_eq!(
        refusal.get("instance"),
        Some("resources/counter/0"),
        "{refusal:?}"
    );
    refusal
}

/// The task's outcome.
pub(crate) async fn done<T>(what: &str, task: JoinHandle<T>) -> T {
    tokio::time::timeout(PATIENCE, task)
        .await
        .unwrap_or_else(|_| panic!("{what}: no answer"))
        .expect("no panic")
}
