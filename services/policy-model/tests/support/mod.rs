//! A policy-model server in this process, and the coordinator's side of it.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod worker;

use std::{path::Path, sync::Arc, time::Duration};

use belay_core::{ids::Instance, refusal::Reason};
use belay_mesh::{server::Listeners, shutdown::Shutdown, status::from_status};
use belay_participant::ServerCommon;
use belay_policy_model::{EngineConfig, PolicyModelConfig, serve};
use belay_proto::{
    checkpoint::{self as cp, checkpoint_participant_client::CheckpointParticipantClient},
    episode::{self as ep, policy_model_client::PolicyModelClient},
};
use bytes::Bytes;
use tonic::{Status, transport::Channel};

/// Long enough for the slowest machine; nothing waits for it to pass.
pub const BOUND: Duration = Duration::from_secs(30);
const INSTANCE: &str = "policy-model/default/0";

pub fn config(root: &Path, engine: EngineConfig) -> PolicyModelConfig {
    let instance: Instance = INSTANCE.parse().expect("legal");
    let mut config = PolicyModelConfig::new(ServerCommon::new(instance, root, "test"), engine);
    config.engine_patience = Duration::from_secs(2);
    config
}

/// One server, joined by a coordinator of epoch 1.
pub struct Server {
    pub data: PolicyModelClient<Channel>,
    pub control: CheckpointParticipantClient<Channel>,
    incarnation: String,
    shutdown: Shutdown,
}

/// What a restore needs to know of a checkpoint that was taken.
#[derive(Clone)]
pub struct Taken {
    pub id: String,
    pub commit: cp::CommitResponse,
    manifest: String,
    digest: Bytes,
}

pub fn worker_at(address: &str) -> EngineConfig {
    EngineConfig::StagingWorker {
        address: address.into(),
        model: None,
    }
}

impl Server {
    /// Starts one in JOINING.
    pub async fn start(root: &Path, engine: EngineConfig) -> Self {
        let config = config(root, engine);
        let listeners = Listeners::bind("127.0.0.1:0", "127.0.0.1:0")
            .await
            .expect("binds");
        let (data, control) = listeners.addresses().expect("bound");
        let shutdown = Shutdown::new();
        tokio::spawn(serve(config, listeners, shutdown.clone()));
        let data = PolicyModelClient::connect(format!("http://{data}"))
            .await
            .expect("listens");
        let mut control = CheckpointParticipantClient::connect(format!("http://{control}"))
            .await
            .expect("listens");
        let status = control
            .status(cp::StatusRequest::default())
            .await
            .expect("answers")
            .into_inner();
        Self {
            data,
            control,
            incarnation: status.incarnation,
            shutdown,
        }
    }

    /// Starts one that is open.
    pub async fn open(root: &Path, engine: EngineConfig) -> Self {
        let mut server = Self::start(root, engine).await;
        let join = cp::JoinRequest {
            fence: server.fence(),
            marks: Some(cp::MarkSet::default()),
            members: Some(cp::MemberList::default()),
            open: true,
        };
        server.control.join(join).await.expect("joins");
        server
    }

    pub fn stop(self) {
        self.shutdown.cancel();
    }

    pub fn fence(&self) -> Option<cp::Fence> {
        Some(cp::Fence {
            coordinator_epoch: 1,
            incarnation: self.incarnation.clone(),
        })
    }

    pub async fn count(&mut self, name: &str) -> u64 {
        let status = self
            .control
            .status(cp::StatusRequest::default())
            .await
            .expect("answers")
            .into_inner();
        *status
            .counts
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not counted"))
    }

    /// Waits until a count has a value.
    pub async fn until(&mut self, name: &str, value: u64) {
        let reached = async {
            while self.count(name).await != value {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(BOUND, reached)
            .await
            .unwrap_or_else(|_| panic!("{name} never becomes {value}"));
    }

    pub async fn prepare(&mut self, id: &str) {
        let prepare = cp::PrepareRequest {
            fence: self.fence(),
            checkpoint_id: id.into(),
            timeout: seconds(20),
            ..cp::PrepareRequest::default()
        };
        let reply = self
            .control
            .prepare(prepare)
            .await
            .expect("prepares")
            .into_inner();
        assert_eq!(reply.phase(), cp::Phase::Prepared);
        assert!(reply.blockers.is_empty());
    }

    pub async fn commit(&mut self, id: &str, scope: &[ep::Episode]) -> cp::CommitResponse {
        let commit = cp::CommitRequest {
            fence: self.fence(),
            checkpoint_id: id.into(),
            timeout: seconds(20),
            scope: scope.to_vec(),
        };
        self.control.commit(commit).await.expect("commits").into_inner()
    }

    pub async fn resume(&mut self, id: &str, decision: cp::Decision) {
        let resume = cp::ResumeRequest {
            fence: self.fence(),
            checkpoint_id: id.into(),
            decision: decision.into(),
        };
        self.control.resume(resume).await.expect("resumes");
    }

    /// Waits until the capture is on disk.
    pub async fn durable(&mut self, id: &str, commit: cp::CommitResponse) -> Taken {
        let wait = cp::AwaitRequest {
            fence: self.fence(),
            checkpoint_id: id.into(),
            timeout: seconds(20),
        };
        let reply = self.control.r#await(wait).await.expect("is written").into_inner();
        Taken {
            id: id.into(),
            commit,
            manifest: reply.manifest,
            digest: reply.digest,
        }
    }

    /// Prepare, cuts, commit, KEEP, durable.
    pub async fn checkpoint(&mut self, id: &str, scope: &[ep::Episode]) -> Taken {
        self.prepare(id).await;
        self.until("cuts_pending", 0).await;
        let commit = self.commit(id, scope).await;
        self.resume(id, cp::Decision::Keep).await;
        self.durable(id, commit).await
    }

    /// Stages the episodes of a checkpoint as their next lives. Replies how many prefixes were lost.
    pub async fn stage(&mut self, id: &str, taken: &Taken, lives: &[Life]) -> Result<u64, Status> {
        let plan = lives.iter().map(|life| cp::PlannedEpisode {
            saved: Some(ep::Episode {
                attempt: 0,
                ..life.episode()
            }),
            attempt: life.attempt,
            execution: life.execution.clone(),
            placement: vec![instance()],
        });
        let restore = cp::RestoreRequest {
            fence: self.fence(),
            checkpoint_id: id.into(),
            source: taken.id.clone(),
            timeout: seconds(20),
            marks: Some(cp::MarkSet {
                version: 1,
                marks: Vec::new(),
            }),
            plan: plan.collect(),
            shards: vec![cp::Shard {
                instance: Some(instance()),
                manifest: taken.manifest.clone(),
                digest: taken.digest.clone(),
            }],
        };
        let reply = self.control.restore(restore).await?.into_inner();
        assert_eq!(reply.staged, lives.len() as u64);
        Ok(reply.prefixes_lost)
    }

    /// Stages and opens.
    pub async fn restore(&mut self, id: &str, taken: &Taken, lives: &[Life]) -> u64 {
        let lost = self.stage(id, taken, lives).await.expect("stages");
        self.resume(id, cp::Decision::Keep).await;
        lost
    }

    pub async fn retire(&mut self, life: &Life) -> Result<(), Status> {
        let retire = cp::RetireRequest {
            fence: self.fence(),
            marks: vec![cp::Mark {
                rollout_id: life.rollout.clone(),
                attempt: life.attempt,
            }],
            marks_version: 5,
            timeout: seconds(20),
        };
        let reply = self.control.retire(retire).await?.into_inner();
        assert!(reply.unfinished.is_empty());
        Ok(())
    }

    pub async fn end(&mut self, life: &Life) -> u32 {
        let end = ep::EndEpisodesRequest {
            refs: vec![life.wire()],
        };
        self.data
            .end_episodes(end)
            .await
            .expect("ends")
            .into_inner()
            .ended
    }

    pub async fn trajectory(&mut self, life: &Life) -> Vec<ep::TrajectoryRow> {
        let request = ep::PolicyModelGetTrajectoryRequest {
            r#ref: Some(life.wire()),
        };
        let mut rows = self
            .data
            .get_trajectory(request)
            .await
            .expect("is held")
            .into_inner();
        let mut all = Vec::new();
        while let Some(reply) = rows.message().await.expect("reads") {
            all.push(reply.row.expect("has a row"));
        }
        all
    }
}

/// An episode in one life, as an agent calls for it.
#[derive(Clone, Debug)]
pub struct Life {
    pub rollout: String,
    pub attempt: u32,
    pub execution: String,
}

impl Life {
    pub fn new(rollout: &str, attempt: u32) -> Self {
        let execution = format!("01930000-0000-7000-8000-{attempt:012}");
        Self {
            rollout: rollout.into(),
            attempt,
            execution,
        }
    }

    pub fn episode(&self) -> ep::Episode {
        ep::Episode {
            rollout_id: self.rollout.clone(),
            attempt: self.attempt,
        }
    }

    pub fn wire(&self) -> ep::EpisodeRef {
        ep::EpisodeRef {
            episode: Some(self.episode()),
            execution: self.execution.clone(),
        }
    }

    /// The model call of a turn, as every life of the rollout makes it.
    pub fn call(&self, turn: u32, parent: &Bytes) -> ep::GenerateRequest {
        ep::GenerateRequest {
            r#ref: Some(self.wire()),
            operation: Some(ep::Operation { turn, index: 0 }),
            parent: parent.clone(),
            request: format!(r#"{{"input":"turn {turn} of {}"}}"#, self.rollout).into(),
        }
    }
}

/// Makes a call in a task of its own.
pub fn spawn(
    server: &Server,
    call: ep::GenerateRequest,
) -> tokio::task::JoinHandle<Result<ep::GenerateResponse, Status>> {
    let mut data = server.data.clone();
    tokio::spawn(async move { data.generate(call).await.map(tonic::Response::into_inner) })
}

/// Makes a call and waits for its reply.
pub async fn generate(server: &Server, call: ep::GenerateRequest) -> ep::GenerateResponse {
    finished(spawn(server, call)).await.expect("replies")
}

pub async fn finished(
    call: tokio::task::JoinHandle<Result<ep::GenerateResponse, Status>>,
) -> Result<ep::GenerateResponse, Status> {
    tokio::time::timeout(BOUND, call)
        .await
        .expect("ends in time")
        .expect("no panic")
}

/// Waits until something is true.
pub async fn until(what: &str, is: impl Fn() -> bool) {
    let reached = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(BOUND, reached)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}

pub fn reason(status: &Status) -> Reason {
    from_status(status)
        .unwrap_or_else(|| panic!("{status:?} has no reason"))
        .reason
}

pub fn instance() -> ep::Instance {
    ep::Instance {
        kind: ep::Kind::PolicyModel.into(),
        name: "default".into(),
        replica: 0,
    }
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// A worker, an open server, and their directory.
pub async fn mesh() -> (worker::Worker, Server, Arc<tempfile::TempDir>) {
    let dir = Arc::new(tempfile::tempdir().expect("a directory"));
    let worker = worker::Worker::start().await;
    let server = Server::open(dir.path(), worker_at(&worker.address)).await;
    (worker, server, dir)
}
