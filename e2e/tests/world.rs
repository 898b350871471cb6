//! A mesh for one test, and what scenarios do to it. Nothing here waits for a time: each wait is for a condition, with a bound.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU8, Ordering},
    time::Duration,
};

use belay_core::{ids::Instance, parts::VerifyMode, refusal::Refusal};
use belay_fake_backend::{
    ctl::{CallRecord, CtlClient, RecordState},
    work::{WorkKind, WorkRecord},
};
use belay_local_mesh::{LocalMesh, Spec};
use belay_mesh::{
    channel::Channels,
    config::{MeshConfig, ReplicaAddress},
    status::IntoRefusal as _,
};
use belay_proto::{
    checkpoint::{
        CheckpointRequest, CoordinatorForgetRequest, CoordinatorRestoreRequest, CoordinatorRetireRequest,
        CoordinatorStatusRequest, Mark, Partition, Phase, PlannedEpisode, Published, StatusResponse,
        coordinator_restore_response,
    },
    episode::{
        AcknowledgeRequest, Episode, Expect, GetTrajectoryRequest, RunRequest, RunResponse, TrajectoryRow,
        environment_client::EnvironmentClient,
    },
};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::checkpointing::Checkpointing;

pub const BOUND: Duration = Duration::from_secs(60);

/// The program under test.
pub const BELAY: &str = env!("CARGO_BIN_EXE_belay");

pub type Ran = Result<RunResponse, belay_core::refusal::Refusal>;

pub struct World {
    pub mesh: LocalMesh,
    pub ctl: CtlClient,
    /// The server that Runs are sent to: an environment, or an agent that owns whole episodes.
    pub runs_at: Instance,
    _dir: TempDir,
}

/// Each process's last lines, when the test that the mesh is for fails.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (label, tail) in self.mesh.tails() {
                eprintln!("{label}{tail}");
            }
        }
    }
}

impl World {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Its tool calls and verifiers ask the engine before they go on; the counter's verifier is of this mode.
    pub async fn start_asking(verify: VerifyMode) -> Self {
        Self::start_with(|config| {
            config.faults.work_asks = Some("engine".into());
            let counter = config.servers.iter_mut().find(|server| server.name == "counter");
            counter.unwrap().verify = Some(verify);
        })
        .await
    }

    pub async fn start_with(change: impl FnOnce(&mut MeshConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = MeshConfig {
            root: dir.path().join("checkpoints"),
            state: dir.path().join("state"),
            ..MeshConfig::default()
        };
        change(&mut config);
        own_address(&mut config);
        let mesh = LocalMesh::up(Spec::new(BELAY, dir.path().join("mesh"), config))
            .await
            .unwrap();
        mesh.wait_open(BOUND).await.unwrap();
        // A mesh with an engine of its own has no `/_ctl`.
        let ctl = mesh.ctl().unwrap_or_else(|_| CtlClient::new("127.0.0.1:1"));
        Self {
            mesh,
            ctl,
            runs_at: "environment/default/0".parse().unwrap(),
            _dir: dir,
        }
    }

    /// SIGKILL to every server and the coordinator; each exit has been seen when it returns.
    pub async fn crash(&self) {
        let killed = self.mesh.kill_servers().await.unwrap();
        assert_eq!(
            killed.len(),
            self.mesh.addresses().count() + 1,
            "all were running: {killed:?}"
        );
    }

    /// All of them again, with nothing but what is on disk.
    pub async fn up_again(&mut self) {
        self.mesh.start_servers().await.unwrap();
        let status = self.mesh.wait_joined(BOUND).await.unwrap();
        assert!(
            status.waits_for_restore,
            "a mesh with a checkpoint must not open by itself"
        );
    }

    pub fn environment(&self) -> EnvironmentClient<belay_mesh::channel::MeshChannel> {
        EnvironmentClient::new(Channels::default().data(self.mesh.data_address(&self.runs_at).unwrap()))
    }

    /// Sends a Run of the counter's task in the background.
    pub fn run(&self, rollout: &str, attempt: u32, expect: Expect) -> JoinHandle<Ran> {
        self.run_on("counter", rollout, attempt, expect)
    }

    /// The same on a resources server of another name.
    pub fn run_on(&self, server: &str, rollout: &str, attempt: u32, expect: Expect) -> JoinHandle<Ran> {
        self.run_task(server, rollout, attempt, expect, counter_task(rollout))
    }

    /// The same with a task of one's own.
    pub fn run_task(
        &self,
        server: &str,
        rollout: &str,
        attempt: u32,
        expect: Expect,
        task: String,
    ) -> JoinHandle<Ran> {
        self.send(RunRequest {
            task: task.into(),
            ..self.request(server, rollout, attempt, expect)
        })
    }

    /// A Run of the counter's task as it is sent.
    pub fn request(&self, server: &str, rollout: &str, attempt: u32, expect: Expect) -> RunRequest {
        RunRequest {
            episode: Some(episode(rollout, attempt)),
            expect: expect.into(),
            environment: server.into(),
            task: counter_task(rollout).into(),
            ..Default::default()
        }
    }

    /// Sends a Run in the background.
    pub fn send(&self, request: RunRequest) -> JoinHandle<Ran> {
        let mut environment = self.environment();
        tokio::spawn(async move {
            let ran = tokio::time::timeout(BOUND, environment.run(request))
                .await
                .expect("Run took too long");
            ran.map(tonic::Response::into_inner)
                .map_err(|status| status.into_refusal())
        })
    }

    /// A checkpoint that must be published.
    pub async fn checkpoint(&self) -> (String, Published, Partition) {
        self.begin_checkpoint(CheckpointRequest::default())
            .await
            .published()
            .await
    }

    /// A checkpoint that goes on as its events are taken.
    pub async fn begin_checkpoint(&self, request: CheckpointRequest) -> Checkpointing {
        let mut coordinator = self.mesh.coordinator().unwrap();
        Checkpointing::new(coordinator.checkpoint(request).await.unwrap().into_inner())
    }

    /// Retires an attempt; nothing may be left running.
    pub async fn retire(&self, rollout: &str, attempt: u32) {
        let request = CoordinatorRetireRequest {
            marks: vec![Mark {
                rollout_id: rollout.into(),
                attempt,
            }],
            ..Default::default()
        };
        let mut coordinator = self.mesh.coordinator().unwrap();
        let retired = coordinator.retire(request).await.unwrap().into_inner();
        assert_eq!(retired.unfinished, [], "everything of it has stopped");
        assert_eq!(retired.next, [episode(rollout, attempt + 1)]);
    }

    /// Forgets a rollout: how many marks were dropped.
    pub async fn forget(&self, rollout: &str) -> u64 {
        let request = CoordinatorForgetRequest {
            rollout_ids: vec![rollout.into()],
        };
        let mut coordinator = self.mesh.coordinator().unwrap();
        coordinator.forget(request).await.unwrap().into_inner().forgotten
    }

    /// Waits until a server is there again and every server is in this phase.
    pub async fn until_all_are(&self, phase: Phase) {
        let servers = self.mesh.addresses().count();
        self.until("every server is in the phase", |all| {
            all.len() == servers && all.iter().all(|status| status.phase() == phase)
        })
        .await;
    }

    /// A restore of the newest checkpoint that must succeed: its plan.
    pub async fn restore(&self) -> Vec<PlannedEpisode> {
        use coordinator_restore_response::Event;
        let mut coordinator = self.mesh.coordinator().unwrap();
        let mut events = coordinator
            .restore(CoordinatorRestoreRequest::default())
            .await
            .unwrap()
            .into_inner();
        let mut plan = Vec::new();
        while let Some(message) = events.message().await.unwrap() {
            match message.event {
                Some(Event::Plan(piece)) => plan.extend(piece.episodes),
                Some(Event::Restored(_)) => return plan,
                Some(Event::Abandoned(abandoned)) => panic!("abandoned: {abandoned:?}"),
                _ => {}
            }
        }
        panic!("the stream ended without an end");
    }

    pub async fn trajectory(&self, rollout: &str, attempt: u32) -> Vec<TrajectoryRow> {
        let request = GetTrajectoryRequest {
            episode: Some(episode(rollout, attempt)),
        };
        let mut rows = self
            .environment()
            .get_trajectory(request)
            .await
            .unwrap()
            .into_inner();
        let mut trajectory = Vec::new();
        while let Some(message) = rows.message().await.unwrap() {
            trajectory.extend(message.row);
        }
        trajectory
    }

    /// The engine's log of a rollout: attempt and turn of each call, in order of arrival.
    pub async fn calls(&self, rollout: &str) -> Vec<(u32, u32)> {
        let records = self.ctl.calls_of(rollout).await.unwrap();
        records
            .iter()
            .map(|call| (call.attempt.unwrap(), call.turn.unwrap()))
            .collect()
    }

    /// Calls of an attempt that were sampled to their end.
    pub async fn finished_calls(&self, rollout: &str, attempt: u32) -> Vec<u32> {
        let records: Vec<CallRecord> = self.ctl.calls_of(rollout).await.unwrap();
        let finished = |call: &&CallRecord| {
            call.attempt == Some(attempt)
                && matches!(call.state, RecordState::Finished | RecordState::Returned)
        };
        records
            .iter()
            .filter(finished)
            .map(|call| call.turn.unwrap())
            .collect()
    }

    /// Applied tool calls of a rollout: attempt and operation of each, in order of arrival.
    pub async fn effects(&self, rollout: &str) -> Vec<(u32, (u32, u32))> {
        let effects = self.ctl.effects().await.unwrap();
        let of_rollout = effects.into_iter().filter(|effect| effect.rollout_id == rollout);
        of_rollout
            .map(|effect| (effect.attempt, (effect.turn, effect.index)))
            .collect()
    }

    /// How often a rollout was verified.
    pub async fn verifies(&self, rollout: &str) -> usize {
        let of_it = format!("\"rollout\":\"{rollout}\"");
        let records = self.ctl.work().await.unwrap();
        let verify =
            |record: &&WorkRecord| record.work.what == WorkKind::Verify && record.work.about.contains(&of_it);
        records.iter().filter(verify).count()
    }

    /// Acknowledges a result that is there.
    pub async fn free(&self, rollout: &str, attempt: u32) {
        let request = AcknowledgeRequest {
            episodes: vec![episode(rollout, attempt)],
        };
        let freed = self.environment().acknowledge(request).await.unwrap();
        assert_eq!(freed.into_inner().freed, 1, "one result was there to be freed");
    }

    /// Acknowledges, and waits until every server is IDLE with nothing left of it.
    pub async fn acknowledge_and_see_nothing_left(&self, rollout: &str, attempt: u32) {
        self.free(rollout, attempt).await;
        self.see_nothing_left().await;
    }

    /// Waits until every server is IDLE and holds nothing.
    pub async fn see_nothing_left(&self) {
        let look = async {
            loop {
                let left = self.left().await;
                if left.is_empty() {
                    break;
                }
                tokio::task::yield_now().await;
                LAST_LEFT.with(|last| last.replace(left));
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), look).await.is_err() {
            panic!("still there: {:?}", LAST_LEFT.with(|last| last.take()));
        }
    }

    /// Every server's own status.
    pub async fn statuses(&self) -> Vec<StatusResponse> {
        let mut coordinator = self.mesh.coordinator().unwrap();
        let status = coordinator.status(CoordinatorStatusRequest {}).await.unwrap();
        let participants = status.into_inner().participants.into_iter();
        participants
            .filter_map(|participant| participant.status)
            .collect()
    }

    /// Waits until the statuses are as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&[StatusResponse]) -> bool) -> Vec<StatusResponse> {
        let deadline = tokio::time::Instant::now() + BOUND;
        loop {
            let statuses = self.statuses().await;
            if wanted(&statuses) {
                return statuses;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "never: {what}; {statuses:?}"
            );
        }
    }

    /// What servers hold or are in beside IDLE. That an attempt was acknowledged, failed or was retired, and marks,
    /// stay until the rollout is forgotten.
    async fn left(&self) -> BTreeMap<String, String> {
        let mut coordinator = self.mesh.coordinator().unwrap();
        let status = coordinator
            .status(CoordinatorStatusRequest {})
            .await
            .unwrap()
            .into_inner();
        let mut left = BTreeMap::new();
        for participant in status.participants {
            let status = participant.status.expect("every server answers");
            let name = format!("{:?}", status.instance);
            if status.phase() != belay_proto::checkpoint::Phase::Idle {
                left.insert(format!("{name} phase"), format!("{:?}", status.phase()));
            }
            if status.unclaimed_restored > 0 {
                left.insert(format!("{name} unclaimed"), status.unclaimed_restored.to_string());
            }
            for (what, n) in status.counts {
                let fact = matches!(what.as_str(), "acknowledged" | "failed" | "retired");
                if n > 0 && !fact {
                    left.insert(format!("{name} {what}"), n.to_string());
                }
            }
        }
        left
    }
}

/// The result of a Run that must be good.
pub async fn good(run: JoinHandle<Ran>) -> RunResponse {
    let result = run.await.unwrap().unwrap();
    assert_eq!(result.reward, 1.0);
    assert_eq!((result.model_calls, result.tool_calls), (4, 3));
    result
}

/// The refusal of a Run that must be refused.
pub async fn refused(run: JoinHandle<Ran>) -> Refusal {
    run.await.unwrap().expect_err("it must be refused")
}

thread_local! {
    /// For the message of a wait whose bound was hit.
    static LAST_LEFT: std::cell::RefCell<BTreeMap<String, String>> = const { std::cell::RefCell::new(BTreeMap::new()) };
}

/// Each mesh listens on a loopback address of its own, so that nobody takes the port of a server that was killed and is about to
/// be back. Only Linux has all of 127.0.0.0/8.
fn own_address(config: &mut MeshConfig) {
    static MESHES: AtomicU8 = AtomicU8::new(1);
    if !cfg!(target_os = "linux") {
        return;
    }
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address = format!(
        "127.{}.{low}.{}:0",
        high.max(1),
        MESHES.fetch_add(1, Ordering::Relaxed)
    );
    for server in &mut config.servers {
        let replica = || ReplicaAddress {
            data: address.clone(),
            control: address.clone(),
        };
        server.addresses = (0..server.replicas).map(|_| replica()).collect();
    }
    config.coordinator.address = address;
}

pub fn episode(rollout: &str, attempt: u32) -> Episode {
    Episode {
        rollout_id: rollout.into(),
        attempt,
    }
}

/// Four model calls, three tool calls; the reward needs each of the two increments once.
pub fn counter_task(rollout: &str) -> String {
    let tool = |name: &str, properties| json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": properties}});
    json!({
        "responses_create_params": {
            "input": [{"role": "user", "content": "add 1 then add 2 then get the count"}],
            "tools": [
                tool("increment_counter", json!({"count": {"type": "integer"}})),
                tool("get_counter_value", json!({})),
            ],
        },
        "initial_count": 3, "expected_count": 6, "rollout": rollout,
    })
    .to_string()
}
