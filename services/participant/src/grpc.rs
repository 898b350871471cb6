//! The edge: messages in, one call, messages out.

use belay_core::{
    participant::{DEFAULT_BLOCKERS, Resumed},
    refusal::Refusal,
};
use belay_mesh::{status::to_status, wire::ToWire};
use belay_proto::checkpoint::{self as pb, checkpoint_participant_server::CheckpointParticipant};
use tonic::{Request, Response, Status};

use crate::{convert, owner::StateOwner, participant::Participant};

type Reply<T> = Result<Response<T>, Status>;

fn reply<T>(result: Result<T, Refusal>) -> Reply<T> {
    result.map(Response::new).map_err(|refusal| to_status(&refusal))
}

#[tonic::async_trait]
impl<O: StateOwner> CheckpointParticipant for Participant<O> {
    async fn status(&self, request: Request<pb::StatusRequest>) -> Reply<pb::StatusResponse> {
        let most = match request.into_inner().max_blockers {
            0 => DEFAULT_BLOCKERS,
            most => most as usize,
        };
        let shared = &self.inner.shared;
        let seen = self.inner.status(most);
        reply(Ok(convert::seen_to_wire(
            seen,
            shared.instance(),
            shared.incarnation(),
        )))
    }

    async fn join(&self, request: Request<pb::JoinRequest>) -> Reply<pb::JoinResponse> {
        let call = convert::join(request.into_inner());
        let phase = call
            .and_then(|(fence, join, (version, members))| self.inner.join(&fence, join, version, members));
        reply(phase.map(|phase| pb::JoinResponse {
            phase: convert::phase_to_wire(phase),
        }))
    }

    async fn prepare(&self, request: Request<pb::PrepareRequest>) -> Reply<pb::PrepareResponse> {
        let call = convert::prepare(request.into_inner());
        reply(match call {
            Ok((fence, prepare, timeout)) => {
                let prepared = self.inner.prepare(fence, prepare, timeout).await;
                prepared.map(|prepared| convert::prepared_to_wire(&prepared))
            }
            Err(refusal) => Err(refusal),
        })
    }

    async fn renew(&self, request: Request<pb::RenewRequest>) -> Reply<pb::RenewResponse> {
        let call = request.into_inner();
        reply((|| {
            let id = convert::checkpoint_id(&call.checkpoint_id)?;
            let left = self.inner.renew(&convert::fence(call.fence)?, id)?;
            Ok(pb::RenewResponse {
                lease_left: left.map(|left| left.to_wire()),
            })
        })())
    }

    async fn commit(&self, request: Request<pb::CommitRequest>) -> Reply<pb::CommitResponse> {
        let call = convert::commit(request.into_inner());
        let report = call.and_then(|(fence, commit)| self.inner.commit(&fence, &commit));
        reply(report.map(|report| convert::committed_to_wire(&report)))
    }

    async fn r#await(&self, request: Request<pb::AwaitRequest>) -> Reply<pb::AwaitResponse> {
        let call = request.into_inner();
        let arguments = (|| {
            let id = convert::checkpoint_id(&call.checkpoint_id)?;
            Ok((convert::fence(call.fence)?, id, convert::timeout(call.timeout)?))
        })();
        reply(match arguments {
            Ok((fence, id, timeout)) => {
                let durable = self.inner.wait_durable(fence, id, timeout).await;
                durable.map(convert::durable_to_wire)
            }
            Err(refusal) => Err(refusal),
        })
    }

    async fn resume(&self, request: Request<pb::ResumeRequest>) -> Reply<pb::ResumeResponse> {
        let call = request.into_inner();
        let arguments = (|| {
            let id = convert::checkpoint_id(&call.checkpoint_id)?;
            Ok((convert::fence(call.fence)?, id, convert::decision(call.decision)?))
        })();
        reply(match arguments {
            Ok((fence, id, decision)) => {
                let resumed = self.inner.resume(fence, id, decision).await;
                resumed.map(|Resumed { phase, activated }| pb::ResumeResponse {
                    phase: convert::phase_to_wire(phase),
                    activated,
                })
            }
            Err(refusal) => Err(refusal),
        })
    }

    async fn settle(&self, request: Request<pb::SettleRequest>) -> Reply<pb::SettleResponse> {
        let call = convert::settle(request.into_inner());
        reply(match call {
            Ok((fence, settle)) => {
                let dropped = self.inner.settle(fence, settle).await;
                dropped.map(|dropped| pb::SettleResponse { dropped })
            }
            Err(refusal) => Err(refusal),
        })
    }

    async fn restore(&self, request: Request<pb::RestoreRequest>) -> Reply<pb::RestoreResponse> {
        let call = convert::restore(request.into_inner());
        reply(match call {
            Ok((fence, restore, timeout)) => {
                let report = self.inner.restore(fence, restore, timeout).await;
                report.map(convert::restored_to_wire)
            }
            Err(refusal) => Err(refusal),
        })
    }

    async fn retire(&self, request: Request<pb::RetireRequest>) -> Reply<pb::RetireResponse> {
        let call = request.into_inner();
        let arguments = (|| {
            let marks = convert::marks(call.marks_version, call.marks)?;
            Ok((
                convert::fence(call.fence)?,
                marks,
                convert::timeout(call.timeout)?,
            ))
        })();
        reply(match arguments {
            Ok((fence, marks, timeout)) => {
                let unfinished = self.inner.retire(fence, marks, timeout).await;
                unfinished.map(|unfinished| pb::RetireResponse {
                    unfinished: convert::all(&unfinished),
                })
            }
            Err(refusal) => Err(refusal),
        })
    }

    async fn forget(&self, request: Request<pb::ForgetRequest>) -> Reply<pb::ForgetResponse> {
        let call = request.into_inner();
        reply((|| {
            let rollouts = convert::rollouts(&call.rollout_ids)?;
            let fence = convert::fence(call.fence)?;
            let forgotten = self
                .inner
                .forget(&fence, &rollouts, call.marks_version, call.check)?;
            Ok(pb::ForgetResponse { forgotten })
        })())
    }
}
