//! What a coordinator says to one participant, call by call.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use belay_core::ids::{Episode, Instance};
use belay_mesh::{
    channel::{Channels, MeshChannel},
    members::Member,
    wire::ToWire as _,
};
use belay_proto::checkpoint::{self as ck, checkpoint_participant_client::CheckpointParticipantClient};

pub const RUN: &str = "00000001-00000001";
pub const RESTORE: &str = "00000001-00000002";

/// Long enough for a loaded machine: a wait that takes longer is a failure.
pub const PATIENCE: Duration = Duration::from_secs(20);

fn seconds(n: u64) -> Option<prost_types::Duration> {
    Some(Duration::from_secs(n).to_wire())
}

/// The coordinator's end of one participant.
#[derive(Clone)]
pub struct Control {
    client: CheckpointParticipantClient<MeshChannel>,
    incarnation: String,
    /// Grows with every change of the marks.
    version: Arc<AtomicU64>,
}

impl Control {
    pub async fn connect(address: SocketAddr) -> Self {
        let channel = Channels::default().control(&address.to_string());
        let mut client = CheckpointParticipantClient::new(channel);
        let status = client
            .status(ck::StatusRequest::default())
            .await
            .expect("status")
            .into_inner();
        Self {
            client,
            incarnation: status.incarnation,
            version: Arc::new(AtomicU64::new(2)),
        }
    }

    fn fence(&self) -> Option<ck::Fence> {
        Some(ck::Fence {
            coordinator_epoch: 1,
            incarnation: self.incarnation.clone(),
        })
    }

    fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub async fn status(&self) -> ck::StatusResponse {
        self.client
            .clone()
            .status(ck::StatusRequest::default())
            .await
            .expect("status")
            .into_inner()
    }

    pub async fn join(&self, members: &[Member], open: bool) {
        let request = ck::JoinRequest {
            fence: self.fence(),
            marks: Some(ck::MarkSet::default()),
            members: Some(ck::MemberList {
                version: 1,
                members: members.iter().map(|m| m.to_wire()).collect(),
            }),
            open,
        };
        self.client.clone().join(request).await.expect("join");
    }

    pub async fn prepare(&self, timeout: Duration) -> ck::PrepareResponse {
        let request = ck::PrepareRequest {
            fence: self.fence(),
            checkpoint_id: RUN.into(),
            timeout: Some(timeout.to_wire()),
            grace: seconds(60),
            soft_limit: None,
            restarts: vec![],
        };
        self.client
            .clone()
            .prepare(request)
            .await
            .expect("prepare")
            .into_inner()
    }

    pub async fn commit(&self, scope: &[Episode]) -> ck::CommitResponse {
        let request = ck::CommitRequest {
            fence: self.fence(),
            checkpoint_id: RUN.into(),
            timeout: seconds(20),
            scope: scope.iter().map(|e| e.to_wire()).collect(),
        };
        self.client
            .clone()
            .commit(request)
            .await
            .expect("commit")
            .into_inner()
    }

    pub async fn keep(&self, run: &str) -> ck::ResumeResponse {
        let request = ck::ResumeRequest {
            fence: self.fence(),
            checkpoint_id: run.into(),
            decision: ck::Decision::Keep.into(),
        };
        self.client
            .clone()
            .resume(request)
            .await
            .expect("resume")
            .into_inner()
    }

    /// The capture on disk, as a restore names it.
    pub async fn durable(&self, instance: &Instance) -> ck::Shard {
        let request = ck::AwaitRequest {
            fence: self.fence(),
            checkpoint_id: RUN.into(),
            timeout: seconds(20),
        };
        let written = self
            .client
            .clone()
            .r#await(request)
            .await
            .expect("await")
            .into_inner();
        ck::Shard {
            instance: Some(instance.to_wire()),
            manifest: written.manifest,
            digest: written.digest,
        }
    }

    pub async fn restore(&self, shard: ck::Shard, plan: Vec<ck::PlannedEpisode>) -> ck::RestoreResponse {
        let marks = plan.iter().filter_map(|planned| {
            Some(ck::Mark {
                rollout_id: planned.saved.as_ref()?.rollout_id.clone(),
                attempt: planned.attempt.checked_sub(1)?,
            })
        });
        let request = ck::RestoreRequest {
            fence: self.fence(),
            checkpoint_id: RESTORE.into(),
            source: RUN.into(),
            timeout: seconds(20),
            marks: Some(ck::MarkSet {
                version: 2,
                marks: marks.collect(),
            }),
            plan,
            shards: vec![shard],
        };
        self.client
            .clone()
            .restore(request)
            .await
            .expect("restore")
            .into_inner()
    }

    /// The checkpoint is published; nobody has claimed the restored attempt.
    pub async fn settle_dropping(&self, run: &str, left: &Episode) -> ck::SettleResponse {
        let request = ck::SettleRequest {
            fence: self.fence(),
            checkpoint_id: run.into(),
            outcome: ck::Outcome::Published.into(),
            drop: vec![ck::Mark {
                rollout_id: left.rollout.as_str().into(),
                attempt: left.attempt,
            }],
            marks_version: self.next_version(),
        };
        let reply = self.client.clone().settle(request).await.expect("settle");
        reply.into_inner()
    }

    pub async fn retire(&self, rollout: &str, attempt: u32) -> ck::RetireResponse {
        let request = ck::RetireRequest {
            fence: self.fence(),
            marks: vec![ck::Mark {
                rollout_id: rollout.into(),
                attempt,
            }],
            marks_version: self.next_version(),
            timeout: seconds(20),
        };
        self.client
            .clone()
            .retire(request)
            .await
            .expect("retire")
            .into_inner()
    }

    pub async fn forget(&self, rollout: &str) -> Result<u64, tonic::Status> {
        let request = ck::ForgetRequest {
            fence: self.fence(),
            rollout_ids: vec![rollout.into()],
            marks_version: self.next_version(),
            check: false,
        };
        let reply = self.client.clone().forget(request).await?;
        Ok(reply.into_inner().forgotten)
    }

    /// Waits until the status is as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&ck::StatusResponse) -> bool) {
        let reached = async {
            while !wanted(&self.status().await) {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(PATIENCE, reached).await.is_err() {
            panic!("{what}: not reached; the status is {:#?}", self.status().await);
        }
    }
}

pub fn planned(saved: &Episode, attempt: u32, execution: u128, placement: &[&str]) -> ck::PlannedEpisode {
    ck::PlannedEpisode {
        saved: Some(saved.to_wire()),
        attempt,
        execution: uuid::Uuid::from_u128(execution).to_string(),
        placement: placement
            .iter()
            .map(|text| text.parse::<Instance>().expect("an instance").to_wire())
            .collect(),
    }
}

pub fn member(instance: &str, data: SocketAddr) -> Member {
    Member {
        instance: instance.parse().expect("an instance"),
        data: data.to_string(),
        control: data.to_string(),
    }
}
