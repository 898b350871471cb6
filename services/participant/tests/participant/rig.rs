//! A participant in this process, with words for what its coordinator says.

use std::{path::PathBuf, sync::Arc, time::Duration};

use belay_core::{
    ids::{CheckpointId, Episode, Instance, RolloutId},
    refusal::{Reason, Refusal},
};
use belay_mesh::{members::Members, status::from_status, wire::ToWire};
use belay_participant::{Gate, Participant, ParticipantOptions, ServerCommon};
use belay_proto::checkpoint::{self as pb, checkpoint_participant_server::CheckpointParticipant};
use belay_store::CheckpointStore;
use tempfile::TempDir;
use tonic::{Request, Response, Status};

use crate::counters::Counters;

/// A bound for what must happen soon: long enough for a machine that does other things as well.
pub const SOON: Duration = Duration::from_secs(20);

pub fn id(sequence: u64) -> CheckpointId {
    CheckpointId { epoch: 1, sequence }
}

pub fn rollout(name: &str) -> RolloutId {
    RolloutId::new(name).unwrap()
}

pub fn episode(name: &str) -> Episode {
    Episode::new(rollout(name), 0)
}

pub fn instance(replica: u32) -> Instance {
    format!("resources/counter/{replica}").parse().unwrap()
}

pub fn restart(name: &str) -> belay_core::parts::Restart {
    belay_core::parts::Restart {
        episode: episode(name),
        instance: instance(0),
        reason: "cannot be saved".into(),
    }
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T, Status>, reason: Reason) -> Refusal {
    let status = result.expect_err("must be refused");
    let refusal = from_status(&status).unwrap_or_else(|| panic!("no reason in {status:?}"));
    assert_eq!(refusal.reason, reason, "{refusal}");
    assert!(!refusal.message.contains('\n'), "one line: {refusal}");
    refusal
}

/// Waits for a condition that something else brings about.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let waited = tokio::time::timeout(SOON, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what} did not come about in {SOON:?}");
}

#[derive(Clone)]
pub struct Rig {
    pub participant: Participant<Counters>,
    pub owner: Arc<Counters>,
    pub gate: Gate,
    pub root: PathBuf,
    _dir: Arc<TempDir>,
}

impl Rig {
    /// A fresh process in JOINING.
    pub fn joining() -> Self {
        Self::with(Arc::new(TempDir::new().unwrap()), 0, |_| {})
    }

    /// Another process over the same root.
    pub fn beside(&self, replica: u32) -> Self {
        Self::with(self._dir.clone(), replica, |_| {})
    }

    pub fn with(dir: Arc<TempDir>, replica: u32, change: impl FnOnce(&mut ParticipantOptions)) -> Self {
        let mut common = ServerCommon::new(instance(replica), dir.path(), "test");
        common.door = 3;
        let gate = common.gate();
        let (_, mut options) = common.server();
        change(&mut options);
        let root = options.root.clone();
        let owner = Arc::new(Counters::new(gate.clone()));
        let participant = Participant::new(options, gate.clone(), owner.clone(), Members::default());
        Self {
            participant,
            owner,
            gate,
            root,
            _dir: dir,
        }
    }

    pub async fn idle() -> Self {
        Self::joining().opened().await
    }

    pub async fn opened(self) -> Self {
        self.join(true).await.unwrap();
        self
    }

    /// Open, with a counter for each name.
    pub async fn holding(names: &[&str]) -> Self {
        let rig = Self::idle().await;
        for (value, name) in names.iter().enumerate() {
            rig.owner.set(&episode(name), value as u64 + 1);
        }
        rig
    }

    pub fn fence(&self) -> Option<pb::Fence> {
        Some(pb::Fence {
            coordinator_epoch: 1,
            incarnation: self.gate.incarnation().to_string(),
        })
    }

    pub async fn status(&self) -> pb::StatusResponse {
        let status = self
            .participant
            .status(Request::new(pb::StatusRequest::default()));
        status.await.unwrap().into_inner()
    }

    pub fn join_request(&self, open: bool) -> pb::JoinRequest {
        pb::JoinRequest {
            fence: self.fence(),
            marks: None,
            members: None,
            open,
        }
    }

    pub async fn join(&self, open: bool) -> Result<pb::JoinResponse, Status> {
        let reply = self.participant.join(Request::new(self.join_request(open)));
        reply.await.map(Response::into_inner)
    }

    pub fn prepare_request(&self, id: CheckpointId) -> pb::PrepareRequest {
        pb::PrepareRequest {
            fence: self.fence(),
            checkpoint_id: id.to_string(),
            timeout: Some(SOON.to_wire()),
            grace: None,
            soft_limit: None,
            restarts: Vec::new(),
        }
    }

    pub async fn prepare(&self, id: CheckpointId) -> Result<pb::PrepareResponse, Status> {
        self.prepare_with(self.prepare_request(id)).await
    }

    pub async fn prepare_with(&self, request: pb::PrepareRequest) -> Result<pb::PrepareResponse, Status> {
        let reply = self.participant.prepare(Request::new(request));
        reply.await.map(Response::into_inner)
    }

    pub async fn renew(&self, id: CheckpointId) -> Result<pb::RenewResponse, Status> {
        let request = pb::RenewRequest {
            fence: self.fence(),
            checkpoint_id: id.to_string(),
        };
        let reply = self.participant.renew(Request::new(request));
        reply.await.map(Response::into_inner)
    }

    pub async fn commit(&self, id: CheckpointId, names: &[&str]) -> Result<pb::CommitResponse, Status> {
        let request = pb::CommitRequest {
            fence: self.fence(),
            checkpoint_id: id.to_string(),
            timeout: Some(SOON.to_wire()),
            scope: names.iter().map(|name| episode(name).to_wire()).collect(),
        };
        let reply = self.participant.commit(Request::new(request));
        reply.await.map(Response::into_inner)
    }

    pub async fn wait_durable(&self, id: CheckpointId) -> Result<pb::AwaitResponse, Status> {
        self.wait_durable_for(id, SOON).await
    }

    pub async fn wait_durable_for(
        &self,
        id: CheckpointId,
        timeout: Duration,
    ) -> Result<pb::AwaitResponse, Status> {
        let request = pb::AwaitRequest {
            fence: self.fence(),
            checkpoint_id: id.to_string(),
            timeout: Some(timeout.to_wire()),
        };
        let reply = self.participant.r#await(Request::new(request));
        reply.await.map(Response::into_inner)
    }

    pub async fn resume(
        &self,
        id: CheckpointId,
        decision: pb::Decision,
    ) -> Result<pb::ResumeResponse, Status> {
        let request = pb::ResumeRequest {
            fence: self.fence(),
            checkpoint_id: id.to_string(),
            decision: decision.into(),
        };
        let reply = self.participant.resume(Request::new(request));
        reply.await.map(Response::into_inner)
    }

    pub async fn keep(&self, id: CheckpointId) -> Result<pb::ResumeResponse, Status> {
        self.resume(id, pb::Decision::Keep).await
    }

    pub async fn abandon(&self, id: CheckpointId) -> Result<pb::ResumeResponse, Status> {
        self.resume(id, pb::Decision::Abandon).await
    }

    pub async fn settle(&self, id: CheckpointId, outcome: pb::Outcome) -> Result<pb::SettleResponse, Status> {
        self.settle_dropping(id, outcome, &[]).await
    }

    pub async fn settle_dropping(
        &self,
        id: CheckpointId,
        outcome: pb::Outcome,
        names: &[&str],
    ) -> Result<pb::SettleResponse, Status> {
        let request = pb::SettleRequest {
            fence: self.fence(),
            checkpoint_id: id.to_string(),
            outcome: outcome.into(),
            drop: names.iter().map(|name| mark(name, 0)).collect(),
            marks_version: 5,
        };
        let reply = self.participant.settle(Request::new(request));
        reply.await.map(Response::into_inner)
    }

    /// A whole checkpoint; replies this participant's share.
    pub async fn checkpoint(&self, id: CheckpointId, names: &[&str]) -> pb::Shard {
        self.prepare(id).await.unwrap();
        self.commit(id, names).await.unwrap();
        self.keep(id).await.unwrap();
        let durable = self.wait_durable(id).await.unwrap();
        self.settle(id, pb::Outcome::Published).await.unwrap();
        pb::Shard {
            instance: Some(self.gate.instance().to_wire()),
            manifest: durable.manifest,
            digest: durable.digest,
        }
    }

    pub fn restore_request(
        &self,
        id: CheckpointId,
        source: CheckpointId,
        names: &[&str],
        shards: &[pb::Shard],
    ) -> pb::RestoreRequest {
        let planned = |name: &&str| pb::PlannedEpisode {
            saved: Some(episode(name).to_wire()),
            attempt: 1,
            execution: "01900000-0000-7000-8000-000000000001".into(),
            placement: vec![self.gate.instance().to_wire()],
        };
        pb::RestoreRequest {
            fence: self.fence(),
            checkpoint_id: id.to_string(),
            source: source.to_string(),
            timeout: Some(SOON.to_wire()),
            marks: None,
            plan: names.iter().map(planned).collect(),
            shards: shards.to_vec(),
        }
    }

    pub async fn restore(&self, request: pb::RestoreRequest) -> Result<pb::RestoreResponse, Status> {
        let reply = self.participant.restore(Request::new(request));
        reply.await.map(Response::into_inner)
    }

    pub async fn retire(
        &self,
        version: u64,
        names: &[&str],
        timeout: Duration,
    ) -> Result<pb::RetireResponse, Status> {
        let request = pb::RetireRequest {
            fence: self.fence(),
            marks: names.iter().map(|name| mark(name, 0)).collect(),
            marks_version: version,
            timeout: Some(timeout.to_wire()),
        };
        let reply = self.participant.retire(Request::new(request));
        reply.await.map(Response::into_inner)
    }

    pub async fn forget(
        &self,
        version: u64,
        names: &[&str],
        check: bool,
    ) -> Result<pb::ForgetResponse, Status> {
        let request = pb::ForgetRequest {
            fence: self.fence(),
            rollout_ids: names.iter().map(|name| (*name).to_owned()).collect(),
            marks_version: version,
            check,
        };
        let reply = self.participant.forget(Request::new(request));
        reply.await.map(Response::into_inner)
    }

    /// Where this participant's files of a checkpoint lie.
    pub fn share(&self, id: CheckpointId) -> PathBuf {
        let store = CheckpointStore::open(&self.root, "test").unwrap();
        store.checkpoint_dir(id).join(self.gate.instance().to_string())
    }

    pub fn has_manifest(&self, id: CheckpointId) -> bool {
        self.share(id).join("manifest.json").exists()
    }
}

pub fn mark(name: &str, attempt: u32) -> pb::Mark {
    pb::Mark {
        rollout_id: name.into(),
        attempt,
    }
}
