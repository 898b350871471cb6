//! An agent server on real ports, with the rest of its mesh played by the test.

mod checkpoint;
/// The same for every participant, hence one file.
#[path = "../../../environment/tests/environment/control.rs"]
mod control;
mod fakes;
mod loops;
mod runs;

use std::time::Duration;

use belay_agent::AgentConfig;
use belay_core::{
    ids::{Episode, ExecutionId, Instance, RolloutId},
    refusal::Refusal,
};
use belay_mesh::{
    channel::{Channels, MeshChannel},
    server::Listeners,
    shutdown::Shutdown,
    status::IntoRefusal as _,
    wire::ToWire as _,
};
use belay_participant::ServerCommon;
use belay_proto::episode::{self as pb, agent_client::AgentClient, environment_client::EnvironmentClient};
use control::{Control, PATIENCE, member};
use fakes::Fakes;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const PARAMS: &str = r#"{"input": "go", "temperature":1e400 }"#;

/// One agent process.
pub(crate) struct Server {
    pub(crate) control: Control,
    pub(crate) client: AgentClient<MeshChannel>,
    /// Whole episodes are sent to the same port.
    pub(crate) runs: EnvironmentClient<MeshChannel>,
    stop: Shutdown,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn me() -> Instance {
    "agent/default/0".parse().expect("an instance")
}

impl Server {
    /// In JOINING: it knows no members, and serves no data.
    pub(crate) async fn start(root: &TempDir) -> Self {
        Self::start_with(root, |_| ()).await
    }

    pub(crate) async fn start_with(root: &TempDir, change: impl FnOnce(&mut AgentConfig)) -> Self {
        let listeners = Listeners::bind("127.0.0.1:0", "127.0.0.1:0")
            .await
            .expect("free ports");
        let (data, control) = listeners.addresses().expect("bound");
        let mut common = ServerCommon::new(me(), root.path(), "test");
        common.patience = Duration::from_secs(5);
        let mut config = AgentConfig::new(common);
        change(&mut config);
        let stop = Shutdown::new();
        tokio::spawn(belay_agent::serve(config, listeners, stop.clone()));
        let channel = Channels::default().data(&data.to_string());
        Self {
            control: Control::connect(control).await,
            client: AgentClient::new(channel.clone()),
            runs: EnvironmentClient::new(channel),
            stop,
        }
    }

    /// Joined and open.
    pub(crate) async fn open(root: &TempDir, fakes: &Fakes) -> Self {
        let server = Self::start(root).await;
        server.join(fakes, true).await;
        server
    }

    pub(crate) async fn join(&self, fakes: &Fakes, open: bool) {
        let others = ["resources/counter/0", "policy-model/default/0", "agent/default/0"];
        let members = others.map(|i| member(i, fakes.address()));
        self.control.join(&members, open).await;
    }

    pub(crate) async fn seed(
        &self,
        request: pb::SeedSessionRequest,
    ) -> Result<pb::SeedSessionResponse, Refusal> {
        match self.client.clone().seed_session(request).await {
            Ok(reply) => Ok(reply.into_inner()),
            Err(status) => Err(status.into_refusal()),
        }
    }

    pub(crate) fn invoke(&self, attempt: u32, n: u128) -> JoinHandle<Result<pb::InvokeResponse, Refusal>> {
        self.activate(attempt, n, 0, "")
    }

    pub(crate) fn activate(
        &self,
        attempt: u32,
        n: u128,
        activation: u32,
        input: &'static str,
    ) -> JoinHandle<Result<pb::InvokeResponse, Refusal>> {
        let mut client = self.client.clone();
        let request = pb::InvokeRequest {
            r#ref: life(attempt, n),
            activation,
            input: input.into(),
        };
        tokio::spawn(async move {
            match client.invoke(request).await {
                Ok(reply) => Ok(reply.into_inner()),
                Err(status) => Err(status.into_refusal()),
            }
        })
    }

    pub(crate) async fn close(&self, attempt: u32, n: u128) -> Result<(), Refusal> {
        let request = pb::CloseSessionRequest {
            r#ref: life(attempt, n),
        };
        match self.client.clone().close_session(request).await {
            Ok(_) => Ok(()),
            Err(status) => Err(status.into_refusal()),
        }
    }
}

pub(crate) fn episode(attempt: u32) -> Episode {
    Episode::new(RolloutId::new("r").expect("an id"), attempt)
}

pub(crate) fn life(attempt: u32, n: u128) -> Option<pb::EpisodeRef> {
    Some((&episode(attempt), ExecutionId(uuid::Uuid::from_u128(n))).to_wire())
}

pub(crate) fn seed(attempt: u32, n: u128) -> pb::SeedSessionRequest {
    let resources: Instance = "resources/counter/0".parse().expect("an instance");
    pb::SeedSessionRequest {
        r#ref: life(attempt, n),
        params: PARAMS.into(),
        resources: Some(resources.to_wire()),
        resources_mode: pb::CheckpointMode::Exported.into(),
        revision: 0,
        max_steps: 0,
    }
}

pub(crate) async fn done<T>(what: &str, task: JoinHandle<T>) -> T {
    tokio::time::timeout(PATIENCE, task)
        .await
        .unwrap_or_else(|_| panic!("{what}: no answer"))
        .expect("no panic")
}
