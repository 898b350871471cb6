//! Between the control plane's messages and the core's values: each field is checked here, once.

use std::time::Duration;

use belay_core::{
    ids::{CheckpointId, Incarnation, Instance, RolloutId},
    participant::{
        Commit, CommitReport, Decision, Durable, Fence, Join, MarkList, Outcome, Phase, Prepare, Restore,
        RestoreReport, Settle, Shard,
    },
    parts::Mark,
    refusal::Refusal,
};
use belay_mesh::{
    members::Member,
    wire::{self, ToWire},
};
use belay_proto::checkpoint as pb;

use crate::{prepare::Prepared, status::Seen};

// ---- from the wire

pub(crate) fn fence(fence: Option<pb::Fence>) -> Result<Fence, Refusal> {
    let fence = fence.ok_or_else(|| {
        wire::invalid(
            "fence",
            "is missing: every call but Status names the coordinator's epoch and the incarnation that it is meant for",
        )
    })?;
    Ok(Fence {
        epoch: fence.coordinator_epoch,
        incarnation: fence.incarnation.parse::<Incarnation>()?,
    })
}

pub(crate) fn checkpoint_id(id: &str) -> Result<CheckpointId, Refusal> {
    id.parse()
}

pub(crate) fn timeout(timeout: Option<prost_types::Duration>) -> Result<Duration, Refusal> {
    wire::timeout("timeout", timeout)
}

pub(crate) fn marks(version: u64, marks: Vec<pb::Mark>) -> Result<MarkList, Refusal> {
    let marks: Result<Vec<Mark>, Refusal> = marks.into_iter().map(wire::mark).collect();
    Ok(MarkList {
        version,
        marks: marks?,
    })
}

fn mark_set(set: Option<pb::MarkSet>) -> Result<MarkList, Refusal> {
    let (version, marks) = wire::mark_set(set)?;
    Ok(MarkList { version, marks })
}

/// A member list and its version.
type MemberList = (u64, Vec<Member>);

/// A Join, and the member list that it brings.
pub(crate) fn join(call: pb::JoinRequest) -> Result<(Fence, Join, MemberList), Refusal> {
    let join = Join {
        marks: mark_set(call.marks)?,
        open: call.open,
    };
    Ok((fence(call.fence)?, join, wire::member_list(call.members)?))
}

pub(crate) fn prepare(call: pb::PrepareRequest) -> Result<(Fence, Prepare, Duration), Refusal> {
    let timeout = timeout(call.timeout)?;
    let soft_limit = wire::duration("soft_limit", call.soft_limit)?;
    if let Some(limit) = soft_limit.filter(|limit| *limit >= timeout) {
        let rule = format!("{limit:?} is not below the call's timeout {timeout:?}");
        return Err(wire::invalid("soft_limit", rule));
    }
    let prepare = Prepare {
        id: checkpoint_id(&call.checkpoint_id)?,
        grace: wire::grace(call.grace)?,
        soft_limit,
        restarts: call
            .restarts
            .into_iter()
            .map(wire::restart)
            .collect::<Result<_, _>>()?,
    };
    Ok((fence(call.fence)?, prepare, timeout))
}

pub(crate) fn commit(call: pb::CommitRequest) -> Result<(Fence, Commit), Refusal> {
    // Nothing in a Commit waits: the timeout is checked, and that is all.
    timeout(call.timeout)?;
    let scope = call.scope.into_iter().map(|episode| wire::episode(Some(episode)));
    let commit = Commit {
        id: checkpoint_id(&call.checkpoint_id)?,
        scope: scope.collect::<Result<_, _>>()?,
    };
    Ok((fence(call.fence)?, commit))
}

pub(crate) fn decision(decision: i32) -> Result<Decision, Refusal> {
    match pb::Decision::try_from(decision) {
        Ok(pb::Decision::Keep) => Ok(Decision::Keep),
        Ok(pb::Decision::Abandon) => Ok(Decision::Abandon),
        _ => Err(wire::invalid(
            "decision",
            format_args!("{decision} is neither 1 (KEEP) nor 2 (ABANDON)"),
        )),
    }
}

pub(crate) fn settle(call: pb::SettleRequest) -> Result<(Fence, Settle), Refusal> {
    let outcome = match pb::Outcome::try_from(call.outcome) {
        Ok(pb::Outcome::Published) => Outcome::Published,
        Ok(pb::Outcome::Discarded) => Outcome::Discarded,
        _ => {
            return Err(wire::invalid(
                "outcome",
                format_args!("{} is neither 1 (PUBLISHED) nor 2 (DISCARDED)", call.outcome),
            ));
        }
    };
    if outcome == Outcome::Discarded && !call.drop.is_empty() {
        return Err(wire::invalid("drop", "is for PUBLISHED: DISCARDED drops nothing"));
    }
    let settle = Settle {
        id: checkpoint_id(&call.checkpoint_id)?,
        outcome,
        drop: marks(call.marks_version, call.drop)?,
    };
    Ok((fence(call.fence)?, settle))
}

pub(crate) fn restore(call: pb::RestoreRequest) -> Result<(Fence, Restore, Duration), Refusal> {
    let timeout = timeout(call.timeout)?;
    let restore = Restore {
        id: checkpoint_id(&call.checkpoint_id)?,
        source: checkpoint_id(&call.source)?,
        marks: mark_set(call.marks)?,
        plan: call
            .plan
            .into_iter()
            .map(wire::planned)
            .collect::<Result<_, _>>()?,
        shards: call.shards.into_iter().map(shard).collect::<Result<_, _>>()?,
    };
    Ok((fence(call.fence)?, restore, timeout))
}

fn shard(shard: pb::Shard) -> Result<Shard, Refusal> {
    Ok(Shard {
        instance: wire::instance(shard.instance)?,
        manifest: shard.manifest,
        digest: wire::digest("digest", &shard.digest)?,
    })
}

pub(crate) fn rollouts(ids: &[String]) -> Result<Vec<RolloutId>, Refusal> {
    ids.iter().map(|id| RolloutId::new(id)).collect()
}

// ---- to the wire

pub(crate) fn phase_to_wire(phase: Phase) -> i32 {
    let phase = match phase {
        Phase::Joining => pb::Phase::Joining,
        Phase::Idle => pb::Phase::Idle,
        Phase::Preparing => pb::Phase::Preparing,
        Phase::Prepared => pb::Phase::Prepared,
        Phase::Committed => pb::Phase::Committed,
        Phase::Restored => pb::Phase::Restored,
    };
    phase.into()
}

pub(crate) fn all<T: ToWire>(values: &[T]) -> Vec<T::Wire> {
    values.iter().map(ToWire::to_wire).collect()
}

pub(crate) fn prepared_to_wire(prepared: &Prepared) -> pb::PrepareResponse {
    match prepared {
        Prepared::Waits(waiting) => pb::PrepareResponse {
            phase: pb::Phase::Preparing.into(),
            blockers: all(&waiting.blockers),
            blocker_count: waiting.count,
            restarts: all(&waiting.restarts),
            ..Default::default()
        },
        Prepared::Ready(report) => pb::PrepareResponse {
            phase: pb::Phase::Prepared.into(),
            restarts: all(&report.restarts),
            roots: all(&report.roots),
            took: Some(report.took.to_wire()),
            ..Default::default()
        },
    }
}

pub(crate) fn committed_to_wire(report: &CommitReport) -> pb::CommitResponse {
    pb::CommitResponse {
        parts: all(&report.parts),
        bytes: report.bytes,
        restarts: all(&report.restarts),
        partition: all(&report.partition),
        at_door: report.at_door,
        cut_generations: report.cut_generations,
        cut_tokens: report.cut_tokens,
    }
}

pub(crate) fn durable_to_wire(durable: Durable) -> pb::AwaitResponse {
    pb::AwaitResponse {
        manifest: durable.manifest,
        digest: wire::digest_to_wire(&durable.digest),
        bytes: durable.bytes,
        records: durable.records,
        took: Some(durable.took.to_wire()),
    }
}

pub(crate) fn restored_to_wire(report: RestoreReport) -> pb::RestoreResponse {
    pb::RestoreResponse {
        staged: report.staged,
        bytes: report.bytes,
        prefixes_lost: report.prefixes_lost,
        took: Some(report.took.to_wire()),
    }
}

pub(crate) fn seen_to_wire(seen: Seen, instance: &Instance, incarnation: Incarnation) -> pb::StatusResponse {
    let view = seen.view;
    let counts = seen.counts.into_iter();
    pb::StatusResponse {
        instance: Some(instance.to_wire()),
        incarnation: incarnation.to_string(),
        mode: seen.mode.to_wire(),
        phase: phase_to_wire(view.phase),
        checkpoint_id: view.open.map(|id| id.to_string()).unwrap_or_default(),
        coordinator_epoch: view.epoch,
        lease_left: view.lease_left.map(|left| left.to_wire()),
        ready: view.ready,
        roots: seen.roots,
        blockers: all(&view.waiting.blockers),
        blocker_count: view.waiting.count,
        restarts: all(&seen.restarts),
        counts: counts.map(|(name, count)| (name.to_owned(), count)).collect(),
        marks_version: view.marks_version,
        marks: view.marks,
        at_door: view.at_door,
        unclaimed_restored: seen.unclaimed,
        unsettled: view.unsettled.map(|unsettled| pb::UnsettledCapture {
            checkpoint_id: unsettled.id.to_string(),
            age: Some(unsettled.age.to_wire()),
            durable: unsettled.durable,
        }),
        in_doubt: view.in_doubt.map(|since| since.to_wire()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        warnings: seen.warnings,
        members_version: seen.members_version,
    }
}
