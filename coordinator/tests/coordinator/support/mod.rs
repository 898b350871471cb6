//! A mesh of toy participants in this process, each on a runtime of its own, so that it can be killed; and a coordinator likewise.

pub mod toy;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use belay_coordinator::{CoordinatorConfig, CoordinatorError, serve};
use belay_core::ids::{Episode, ExecutionId, Instance, RolloutId};
use belay_mesh::{
    channel::Channels,
    members::{Member, Members},
    server::{Listeners, MeshServer},
    shutdown::Shutdown,
};
use belay_participant::{Gate, GateOptions, Participant, ParticipantOptions};
use belay_proto::checkpoint::{
    self as pb, checkpoint_participant_client::CheckpointParticipantClient,
    coordinator_client::CoordinatorClient,
};
use belay_store::{CheckpointStore, fs::RealFs, testing::FailingFs};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use uuid::Uuid;

use self::toy::{Part, Toy};

pub const ENV: &str = "environment/default/0";
pub const AGENT: &str = "agent/default/0";
pub const RES: &str = "resources/counter/0";
pub const POLICY: &str = "policy-model/default/0";
pub const ALL: [&str; 4] = [ENV, AGENT, RES, POLICY];

/// Conditions are waited for, at most so long.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn instance(text: &str) -> Instance {
    text.parse().unwrap()
}

pub fn episode(id: &str, attempt: u32) -> Episode {
    Episode::new(RolloutId::new(id).unwrap(), attempt)
}

pub struct Server {
    pub toy: Arc<Toy>,
    pub gate: Gate,
    pub control: SocketAddr,
    runtime: Option<Runtime>,
}

pub struct CoordinatorProcess {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
    pub ended: tokio::sync::oneshot::Receiver<Result<(), CoordinatorError>>,
}

pub struct Mesh {
    pub dir: TempDir,
    pub names: Vec<&'static str>,
    pub servers: BTreeMap<&'static str, Server>,
    /// The participants' disk.
    pub disk: Arc<FailingFs>,
    /// The coordinator's.
    pub coordinator_disk: Arc<FailingFs>,
    pub coordinator: Option<CoordinatorProcess>,
    pub restore_timeout: Duration,
    pub next_execution: u128,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

impl Mesh {
    pub async fn new(names: &[&'static str]) -> Self {
        let mut mesh = Self {
            dir: tempfile::tempdir().unwrap(),
            names: names.to_vec(),
            servers: BTreeMap::new(),
            disk: Arc::new(FailingFs::new(RealFs)),
            coordinator_disk: Arc::new(FailingFs::new(RealFs)),
            coordinator: None,
            restore_timeout: Duration::from_secs(600),
            next_execution: 1,
        };
        for name in names {
            mesh.start(name, "127.0.0.1:0").await;
        }
        mesh
    }

    /// All four kinds, and a coordinator, open.
    pub async fn open() -> Self {
        let mut mesh = Self::new(&ALL).await;
        mesh.start_coordinator().await;
        mesh.all_in(pb::Phase::Idle).await;
        mesh
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub fn store(&self) -> CheckpointStore {
        CheckpointStore::open(&self.root(), "test").unwrap()
    }

    async fn start(&mut self, name: &'static str, address: &str) {
        let (root, disk, address) = (self.root(), self.disk.clone(), address.to_owned());
        let runtime = runtime();
        let (toy, gate, control) = runtime
            .spawn(async move {
                let instance = instance(name);
                let mut listeners = None;
                // A killed server's port may be busy for a moment.
                for _ in 0..500 {
                    match Listeners::bind("127.0.0.1:0", &address).await {
                        Ok(bound) => {
                            listeners = Some(bound);
                            break;
                        }
                        Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                    }
                }
                let listeners = listeners.expect("the port is free");
                let gate = Gate::new(GateOptions {
                    instance: instance.clone(),
                    door: 100,
                    standalone: false,
                });
                let toy = Arc::new(Toy::new(instance.clone()));
                let options = ParticipantOptions {
                    file_system: disk,
                    ..ParticipantOptions::new(root, "test")
                };
                let participant = Participant::new(options, gate.clone(), toy.clone(), Members::default());
                let control = listeners.control.local_addr().unwrap();
                let server = MeshServer::new(&instance).control(participant.into_service());
                tokio::spawn(server.run(listeners, Shutdown::new()));
                (toy, gate, control)
            })
            .await
            .unwrap();
        self.servers.insert(
            name,
            Server {
                toy,
                gate,
                control,
                runtime: Some(runtime),
            },
        );
    }

    pub fn kill(&mut self, name: &str) {
        self.servers
            .get_mut(name)
            .unwrap()
            .runtime
            .take()
            .unwrap()
            .shutdown_background();
    }

    pub async fn restart(&mut self, name: &'static str) {
        let address = self.servers[name].control.to_string();
        self.start(name, &address).await;
    }

    pub async fn restart_all(&mut self) {
        for name in self.names.clone() {
            self.kill(name);
        }
        for name in self.names.clone() {
            self.restart(name).await;
        }
    }

    fn config(&self) -> CoordinatorConfig {
        let members = self.servers.iter().map(|(name, server)| Member {
            instance: instance(name),
            data: server.control.to_string(),
            control: server.control.to_string(),
        });
        CoordinatorConfig {
            members: members.collect(),
            poll: Duration::from_millis(50),
            restore_timeout: self.restore_timeout,
            fs: self.coordinator_disk.clone(),
            ..CoordinatorConfig::new(
                "test",
                self.root(),
                self.dir.path().join("state"),
                Channels::default(),
            )
        }
    }

    pub async fn start_coordinator(&mut self) {
        let began = Instant::now();
        loop {
            let config = self.config();
            let runtime = runtime();
            let (up, told) = tokio::sync::oneshot::channel();
            let (ends, ended) = tokio::sync::oneshot::channel();
            runtime.spawn(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                let _ = up.send(address);
                let _ = ends.send(serve(config, listener, Shutdown::new()).await);
            });
            let mut process = CoordinatorProcess {
                address: told.await.unwrap(),
                runtime: Some(runtime),
                ended,
            };
            // Until it serves, or ends because the one before has not let go of its directory yet.
            loop {
                if process
                    .client()
                    .status(pb::CoordinatorStatusRequest {})
                    .await
                    .is_ok()
                {
                    self.coordinator = Some(process);
                    return;
                }
                if let Ok(result) = process.ended.try_recv() {
                    let error = result.expect_err("it did not serve").to_string();
                    assert!(
                        error.contains("held by another") || error.contains("journal"),
                        "{error}"
                    );
                    break;
                }
                assert!(began.elapsed() < PATIENCE, "the coordinator does not start");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            process.runtime.take().unwrap().shutdown_background();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn kill_coordinator(&mut self) {
        self.coordinator
            .as_mut()
            .unwrap()
            .runtime
            .take()
            .unwrap()
            .shutdown_background();
    }

    pub fn client(&self) -> CoordinatorClient<Channel> {
        self.coordinator.as_ref().unwrap().client()
    }

    /// An episode with a part on the first server of each kind and name.
    pub fn seed(&mut self, id: &str) -> Episode {
        let episode = episode(id, 0);
        let execution = ExecutionId(Uuid::from_u128(self.next_execution));
        self.next_execution += 1;
        let mut places: Vec<Instance> = Vec::new();
        for name in self.servers.keys() {
            let place = instance(name);
            if !places.iter().any(|p| p.same_server(&place)) {
                places.push(place);
            }
        }
        for place in &places {
            let part = Part {
                execution,
                places: places.clone(),
                revision: 3,
                unclaimed: false,
            };
            self.servers[place.to_string().as_str()]
                .toy
                .parts()
                .insert(episode.clone(), part);
        }
        episode
    }

    pub fn held(&self, name: &str) -> Vec<Episode> {
        self.servers[name].toy.parts().keys().cloned().collect()
    }

    pub async fn status(&self, name: &str) -> Option<pb::StatusResponse> {
        let address = format!("http://{}", self.servers[name].control);
        let mut client = CheckpointParticipantClient::connect(address).await.ok()?;
        client
            .status(pb::StatusRequest::default())
            .await
            .ok()
            .map(tonic::Response::into_inner)
    }

    /// Waits until every server is in a phase, with nothing open and nothing unsettled.
    pub async fn all_in(&self, phase: pb::Phase) {
        let began = Instant::now();
        loop {
            let mut statuses = Vec::new();
            for name in &self.names {
                statuses.push(self.status(name).await);
            }
            let well = statuses.iter().flatten().all(|s| {
                s.phase() == phase
                    && s.checkpoint_id.is_empty()
                    && s.unsettled.is_none()
                    && s.coordinator_epoch > 0
            });
            if well && statuses.iter().all(Option::is_some) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "not all are {phase:?}: {statuses:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn checkpoint(&self, request: pb::CheckpointRequest) -> CheckpointStory {
        let stream = self.client().checkpoint(request).await.unwrap().into_inner();
        CheckpointStory::read(stream).await
    }

    pub async fn restore(&self, request: pb::CoordinatorRestoreRequest) -> RestoreStory {
        let stream = self.client().restore(request).await.unwrap().into_inner();
        RestoreStory::read(stream).await
    }

    pub async fn retire(&self, id: &str, attempt: u32) -> pb::CoordinatorRetireResponse {
        let marks = vec![pb::Mark {
            rollout_id: id.into(),
            attempt,
        }];
        let request = pb::CoordinatorRetireRequest { marks, timeout: None };
        self.client().retire(request).await.unwrap().into_inner()
    }

    pub async fn coordinator_status(&self) -> pb::CoordinatorStatusResponse {
        self.client()
            .status(pb::CoordinatorStatusRequest {})
            .await
            .unwrap()
            .into_inner()
    }

    pub async fn run_state(&self, id: &str) -> pb::RunState {
        let request = pb::GetRunRequest {
            checkpoint_id: id.into(),
        };
        self.client().get_run(request).await.unwrap().into_inner().state()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let servers = self.servers.values_mut().filter_map(|s| s.runtime.take());
        let coordinator = self.coordinator.iter_mut().filter_map(|c| c.runtime.take());
        servers.chain(coordinator).for_each(Runtime::shutdown_background);
    }
}

impl CoordinatorProcess {
    fn client(&self) -> CoordinatorClient<Channel> {
        let channel = Channel::from_shared(format!("http://{}", self.address))
            .unwrap()
            .connect_lazy();
        CoordinatorClient::new(channel)
    }
}

/// What a checkpoint told.
#[derive(Default, Debug)]
pub struct CheckpointStory {
    pub id: String,
    pub stages: Vec<String>,
    pub waiting: Vec<pb::StageWaiting>,
    pub partition: Vec<pb::PartitionEntry>,
    pub restarts: Vec<pb::Restart>,
    pub published: Option<pb::Published>,
    pub abandoned: Option<pb::Abandoned>,
}

impl CheckpointStory {
    pub async fn read(mut stream: tonic::Streaming<pb::CheckpointResponse>) -> Self {
        use pb::checkpoint_response::Event;
        let mut story = Self::default();
        while let Ok(Some(message)) = stream.message().await {
            story.id = message.checkpoint_id;
            match message.event.unwrap() {
                Event::Stage(stage) => story.stages.push(stage.stage),
                Event::Waiting(waiting) => story.waiting.push(waiting),
                Event::Partition(piece) => {
                    story.partition.extend(piece.entries);
                    story.restarts.extend(piece.restarts);
                }
                Event::Held(_) => {}
                Event::Published(published) => story.published = Some(published),
                Event::Abandoned(abandoned) => story.abandoned = Some(abandoned),
            }
        }
        story
    }

    pub fn published(self) -> (String, pb::Published) {
        let Self {
            id,
            published: Some(published),
            ..
        } = self
        else {
            panic!("{self:#?}")
        };
        (id, published)
    }

    pub fn abandoned(self) -> (String, pb::Abandoned) {
        let Self {
            id,
            abandoned: Some(abandoned),
            ..
        } = self
        else {
            panic!("{self:#?}")
        };
        (id, abandoned)
    }
}

/// What a restore told.
#[derive(Default, Debug)]
pub struct RestoreStory {
    pub id: String,
    pub plan: Vec<pb::PlannedEpisode>,
    pub retired: Vec<String>,
    pub in_doubt: Vec<pb::InDoubt>,
    pub restored: Option<pb::Restored>,
    pub abandoned: Option<pb::Abandoned>,
}

impl RestoreStory {
    pub async fn read(mut stream: tonic::Streaming<pb::CoordinatorRestoreResponse>) -> Self {
        use pb::coordinator_restore_response::Event;
        let mut story = Self::default();
        while let Ok(Some(message)) = stream.message().await {
            story.id = message.run_id;
            match message.event.unwrap() {
                Event::Stage(_) => {}
                Event::Plan(piece) => {
                    story.plan.extend(piece.episodes);
                    story.retired.extend(piece.retired);
                }
                Event::InDoubt(doubt) => story.in_doubt.push(doubt),
                Event::Restored(restored) => story.restored = Some(restored),
                Event::Abandoned(abandoned) => story.abandoned = Some(abandoned),
            }
        }
        story
    }

    pub fn restored(self) -> Self {
        assert!(self.restored.is_some(), "{self:#?}");
        self
    }
}
