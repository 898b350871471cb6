//! An environment server on real ports, with the rest of its mesh played by the test.

mod checkpoint;
mod control;
mod fakes;
mod runs;

use std::time::Duration;

use belay_core::{
    ids::{Episode, Instance, RolloutId},
    refusal::Refusal,
};
use belay_environment::EnvironmentConfig;
use belay_mesh::{
    channel::{Channels, MeshChannel},
    server::Listeners,
    shutdown::Shutdown,
    status::IntoRefusal as _,
    wire::ToWire as _,
};
use belay_participant::ServerCommon;
use belay_proto::episode::{self as pb, environment_client::EnvironmentClient};
use control::{Control, PATIENCE, member};
use fakes::Fakes;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const TASK: &str = r#"{"responses_create_params":{ "input": "hi" },"n":1e400}"#;

/// One environment process.
pub(crate) struct Server {
    pub(crate) control: Control,
    pub(crate) client: EnvironmentClient<MeshChannel>,
    stop: Shutdown,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn me() -> Instance {
    "environment/default/0".parse().expect("an instance")
}

impl Server {
    /// In JOINING: it knows no members, and serves no data.
    pub(crate) async fn start(root: &TempDir, change: impl FnOnce(&mut EnvironmentConfig)) -> Self {
        let listeners = Listeners::bind("127.0.0.1:0", "127.0.0.1:0")
            .await
            .expect("free ports");
        let (data, control) = listeners.addresses().expect("bound");
        let mut common = ServerCommon::new(me(), root.path(), "test");
        common.patience = Duration::from_secs(5);
        let mut config = EnvironmentConfig::new(common);
        change(&mut config);
        let stop = Shutdown::new();
        tokio::spawn(belay_environment::serve(config, listeners, stop.clone()));
        Self {
            control: Control::connect(control).await,
            client: EnvironmentClient::new(Channels::default().data(&data.to_string())),
            stop,
        }
    }

    /// Joined and open.
    pub(crate) async fn open(root: &TempDir, fakes: &Fakes) -> Self {
        let server = Self::start(root, |_| ()).await;
        server.join(fakes, true).await;
        server
    }

    pub(crate) async fn join(&self, fakes: &Fakes, open: bool) {
        let others = ["resources/counter/0", "agent/default/0", "policy-model/default/0"];
        let mut members: Vec<_> = others.map(|i| member(i, fakes.address())).into();
        members.push(member("environment/default/0", fakes.address()));
        self.control.join(&members, open).await;
    }

    pub(crate) fn run(&self, request: pb::RunRequest) -> JoinHandle<Result<pb::RunResponse, Refusal>> {
        let mut client = self.client.clone();
        tokio::spawn(async move {
            match client.run(request).await {
                Ok(reply) => Ok(reply.into_inner()),
                Err(status) => Err(status.into_refusal()),
            }
        })
    }
}

pub(crate) fn run(id: &str, attempt: u32) -> pb::RunRequest {
    pb::RunRequest {
        episode: Some(episode(id, attempt).to_wire()),
        environment: "counter".into(),
        task: TASK.into(),
        ..Default::default()
    }
}

pub(crate) fn episode(id: &str, attempt: u32) -> Episode {
    Episode::new(RolloutId::new(id).expect("an id"), attempt)
}

pub(crate) async fn done<T>(what: &str, task: JoinHandle<T>) -> T {
    tokio::time::timeout(PATIENCE, task)
        .await
        .unwrap_or_else(|_| panic!("{what}: no answer"))
        .expect("no panic")
}
