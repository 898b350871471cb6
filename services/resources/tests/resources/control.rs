//! What a coordinator says to the participant.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use belay_core::refusal::Refusal;
use belay_mesh::{
    channel::{Channels, MeshChannel},
    status::IntoRefusal as _,
    wire::ToWire as _,
};
use belay_proto::checkpoint::{self as ck, checkpoint_participant_client::CheckpointParticipantClient};

use super::{Life, PATIENCE, me};

/// Between two looks at a status.
const LOOK: Duration = Duration::from_millis(1);

pub const RUN: &str = "00000001-00000001";
pub const RESTORE: &str = "00000001-00000002";

#[derive(Clone)]
pub struct Control {
    client: CheckpointParticipantClient<MeshChannel>,
    incarnation: String,
    version: Arc<AtomicU64>,
}

fn patience() -> Option<prost_types::Duration> {
    Some(PATIENCE.to_wire())
}

impl Control {
    pub async fn connect(address: SocketAddr) -> Self {
        let mut client = CheckpointParticipantClient::new(Channels::default().control(&address.to_string()));
        let status = client.status(ck::StatusRequest::default()).await.expect("status");
        Self {
            client,
            incarnation: status.into_inner().incarnation,
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
        let reply = self.client.clone().status(ck::StatusRequest::default()).await;
        reply.expect("status").into_inner()
    }

    pub async fn join(&self, open: bool) {
        let request = ck::JoinRequest {
            fence: self.fence(),
            marks: Some(ck::MarkSet::default()),
            members: None,
            open,
        };
        self.client.clone().join(request).await.expect("join");
    }

    pub async fn prepare(&self, timeout: Duration) -> ck::PrepareResponse {
        self.prepare_softly(timeout, None).await
    }

    /// With a soft limit.
    pub async fn prepare_softly(
        &self,
        timeout: Duration,
        soft_limit: Option<Duration>,
    ) -> ck::PrepareResponse {
        let request = ck::PrepareRequest {
            fence: self.fence(),
            checkpoint_id: RUN.into(),
            timeout: Some(timeout.to_wire()),
            soft_limit: soft_limit.map(|limit| limit.to_wire()),
            ..Default::default()
        };
        self.client
            .clone()
            .prepare(request)
            .await
            .expect("prepare")
            .into_inner()
    }

    /// Prepares, and must be PREPARED.
    pub async fn prepared(&self) -> ck::PrepareResponse {
        let reply = self.prepare(PATIENCE).await;
        assert_eq!(reply.phase(), ck::Phase::Prepared, "{reply:?}");
        reply
    }

    pub async fn commit(&self, scope: &[&Life]) -> ck::CommitResponse {
        let request = ck::CommitRequest {
            fence: self.fence(),
            checkpoint_id: RUN.into(),
            timeout: patience(),
            scope: scope.iter().map(|life| life.episode.to_wire()).collect(),
        };
        self.client
            .clone()
            .commit(request)
            .await
            .expect("commit")
            .into_inner()
    }

    pub async fn resume(&self, run: &str, decision: ck::Decision) {
        let request = ck::ResumeRequest {
            fence: self.fence(),
            checkpoint_id: run.into(),
            decision: decision.into(),
        };
        self.client.clone().resume(request).await.expect("resume");
    }

    /// Published.
    pub async fn settle(&self) {
        self.settle_dropping(&[]).await;
    }

    /// Published; of these restored episodes nobody has claimed any.
    pub async fn settle_dropping(&self, lives: &[&Life]) {
        let mark = |life: &&Life| ck::Mark {
            rollout_id: life.episode.rollout.as_str().into(),
            attempt: life.episode.attempt,
        };
        let request = ck::SettleRequest {
            fence: self.fence(),
            checkpoint_id: RUN.into(),
            outcome: ck::Outcome::Published.into(),
            drop: lives.iter().map(mark).collect(),
            marks_version: self.next_version(),
        };
        self.client.clone().settle(request).await.expect("settle");
    }

    /// The capture on disk, as a restore names it.
    pub async fn durable(&self) -> ck::Shard {
        let request = ck::AwaitRequest {
            fence: self.fence(),
            checkpoint_id: RUN.into(),
            timeout: patience(),
        };
        let written = self
            .client
            .clone()
            .r#await(request)
            .await
            .expect("await")
            .into_inner();
        ck::Shard {
            instance: Some(me().to_wire()),
            manifest: written.manifest,
            digest: written.digest,
        }
    }

    pub async fn restore(
        &self,
        shard: ck::Shard,
        from: &Life,
        to: &Life,
    ) -> Result<ck::RestoreResponse, Refusal> {
        self.restore_all(shard, &[(from, to)]).await
    }

    pub async fn restore_all(
        &self,
        shard: ck::Shard,
        lives: &[(&Life, &Life)],
    ) -> Result<ck::RestoreResponse, Refusal> {
        let planned = |(from, to): &(&Life, &Life)| ck::PlannedEpisode {
            saved: Some(from.episode.to_wire()),
            attempt: to.episode.attempt,
            execution: uuid::Uuid::from_u128(to.execution).to_string(),
            placement: vec![me().to_wire()],
        };
        let request = ck::RestoreRequest {
            fence: self.fence(),
            checkpoint_id: RESTORE.into(),
            source: RUN.into(),
            timeout: patience(),
            marks: None,
            plan: lives.iter().map(planned).collect(),
            shards: vec![shard],
        };
        match self.client.clone().restore(request).await {
            Ok(reply) => Ok(reply.into_inner()),
            Err(status) => Err(status.into_refusal()),
        }
    }

    pub async fn retire(&self, life: &Life, timeout: Duration) -> ck::RetireResponse {
        let request = ck::RetireRequest {
            fence: self.fence(),
            marks: vec![ck::Mark {
                rollout_id: life.episode.rollout.as_str().into(),
                attempt: life.episode.attempt,
            }],
            marks_version: self.next_version(),
            timeout: Some(timeout.to_wire()),
        };
        self.client
            .clone()
            .retire(request)
            .await
            .expect("retire")
            .into_inner()
    }

    pub async fn forget(&self, life: &Life) -> Result<u64, Refusal> {
        let request = ck::ForgetRequest {
            fence: self.fence(),
            rollout_ids: vec![life.episode.rollout.as_str().into()],
            marks_version: self.next_version(),
            check: false,
        };
        match self.client.clone().forget(request).await {
            Ok(reply) => Ok(reply.into_inner().forgotten),
            Err(status) => Err(status.into_refusal()),
        }
    }

    /// Waits until the status is as wanted.
    pub async fn until(&self, what: &str, wanted: impl Fn(&ck::StatusResponse) -> bool) {
        let reached = async {
            while !wanted(&self.status().await) {
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(PATIENCE, reached).await.is_err() {
            panic!("{what}: not reached; the status is {:#?}", self.status().await);
        }
    }
}
