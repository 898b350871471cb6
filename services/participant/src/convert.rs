//! Between the control plane's messages and the core's values: each field is checked here, once.

use std::time::Duration;

use belay_core::{
    ids::{CheckpointId, Digest, Incarnation, Instance, RolloutId},
    participant::{
        Commit, CommitReport, Decision, Durable, Fence, MarkList, Outcome, Phase, Prepare, PrepareReport,
        Restore, RestoreReport, Settle, Shard, Waiting,
    },
    parts::{Mark, Need, PartSummary, PartitionEntry, PlannedEpisode, Restart, Standing},
    refusal::{Blocker, Refusal},
};
use belay_mesh::{
    members::Member,
    wire::{self, ToWire},
};
use belay_proto::checkpoint as pb;
use bytes::Bytes;

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

pub(crate) fn marks(marks: Vec<pb::Mark>) -> Result<Vec<Mark>, Refusal> {
    marks.into_iter().map(wire::mark).collect()
}

/// Unset reads as no marks at version 0.
pub(crate) fn mark_set(set: Option<pb::MarkSet>) -> Result<MarkList, Refusal> {
    let set = set.unwrap_or_default();
    Ok(MarkList {
        version: set.version,
        marks: marks(set.marks)?,
    })
}

/// Unset reads as no members at version 0.
pub(crate) fn members(list: Option<pb::MemberList>) -> Result<(u64, Vec<Member>), Refusal> {
    let list = list.unwrap_or_default();
    let members = list
        .members
        .into_iter()
        .map(wire::member)
        .collect::<Result<_, _>>()?;
    Ok((list.version, members))
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
        restarts: call.restarts.into_iter().map(restart).collect::<Result<_, _>>()?,
    };
    Ok((fence(call.fence)?, prepare, timeout))
}

fn restart(restart: pb::Restart) -> Result<Restart, Refusal> {
    Ok(Restart {
        episode: wire::episode(restart.episode)?,
        instance: wire::instance(restart.instance)?,
        reason: restart.reason,
    })
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
        drop: MarkList {
            version: call.marks_version,
            marks: marks(call.drop)?,
        },
    };
    Ok((fence(call.fence)?, settle))
}

pub(crate) fn restore(call: pb::RestoreRequest) -> Result<(Fence, Restore, Duration), Refusal> {
    let timeout = timeout(call.timeout)?;
    let restore = Restore {
        id: checkpoint_id(&call.checkpoint_id)?,
        source: checkpoint_id(&call.source)?,
        marks: mark_set(call.marks)?,
        plan: call.plan.into_iter().map(planned).collect::<Result<_, _>>()?,
        shards: call.shards.into_iter().map(shard).collect::<Result<_, _>>()?,
    };
    Ok((fence(call.fence)?, restore, timeout))
}

fn planned(planned: pb::PlannedEpisode) -> Result<PlannedEpisode, Refusal> {
    let placement = planned
        .placement
        .into_iter()
        .map(|instance| wire::instance(Some(instance)));
    Ok(PlannedEpisode {
        saved: wire::episode(planned.saved)?,
        attempt: planned.attempt,
        execution: planned.execution.parse()?,
        placement: placement.collect::<Result<_, _>>()?,
    })
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

pub(crate) fn blocker_to_wire(blocker: &Blocker) -> pb::Blocker {
    pb::Blocker {
        episode: Some(blocker.episode.to_wire()),
        instance: Some(blocker.instance.to_wire()),
        step: blocker.step.to_string(),
        age: Some(blocker.age.to_wire()),
        reason: blocker.reason.to_string(),
    }
}

pub(crate) fn restart_to_wire(restart: &Restart) -> pb::Restart {
    pb::Restart {
        episode: Some(restart.episode.to_wire()),
        instance: Some(restart.instance.to_wire()),
        reason: restart.reason.clone(),
    }
}

pub(crate) fn prepared_to_wire(prepared: Prepared) -> pb::PrepareResponse {
    match prepared {
        Prepared::Waits(Waiting {
            blockers,
            count,
            restarts,
        }) => pb::PrepareResponse {
            phase: pb::Phase::Preparing.into(),
            blockers: blockers.iter().map(blocker_to_wire).collect(),
            blocker_count: count,
            restarts: restarts.iter().map(restart_to_wire).collect(),
            ..Default::default()
        },
        Prepared::Ready(PrepareReport {
            restarts,
            roots,
            took,
        }) => pb::PrepareResponse {
            phase: pb::Phase::Prepared.into(),
            restarts: restarts.iter().map(restart_to_wire).collect(),
            roots: roots.iter().map(ToWire::to_wire).collect(),
            took: Some(took.to_wire()),
            ..Default::default()
        },
    }
}

pub(crate) fn committed_to_wire(report: CommitReport) -> pb::CommitResponse {
    pb::CommitResponse {
        parts: report.parts.into_iter().map(part_to_wire).collect(),
        bytes: report.bytes,
        restarts: report.restarts.iter().map(restart_to_wire).collect(),
        partition: report.partition.iter().map(entry_to_wire).collect(),
        at_door: report.at_door,
        cut_generations: report.cut_generations,
        cut_tokens: report.cut_tokens,
    }
}

fn part_to_wire(part: PartSummary) -> pb::CapturedPart {
    let need = |need: Need| match need {
        Need::Whole => pb::Need::Whole,
        Need::IfBegun => pb::Need::IfBegun,
    };
    pb::CapturedPart {
        episode: Some(part.episode.to_wire()),
        execution: part.execution.to_string(),
        root: part.root,
        cursor: Some(part.cursor.to_wire()),
        needs: part
            .needs
            .iter()
            .map(|needed| pb::PartNeeded {
                instance: Some(needed.instance.to_wire()),
                need: need(needed.need).into(),
            })
            .collect(),
        ledger: part.ledger.map(|tip| pb::LedgerTip {
            operation: Some(tip.operation.to_wire()),
            chain_hash: digest_to_wire(tip.chain),
            parent: tip.parent.map(digest_to_wire).unwrap_or_default(),
        }),
        revision: part.revision,
        boundary: part.boundary,
        task_digest: part.task.map(digest_to_wire).unwrap_or_default(),
        finished: part.finished,
    }
}

fn entry_to_wire(entry: &PartitionEntry) -> pb::PartitionEntry {
    let standing = match entry.standing {
        Standing::Acknowledged => pb::Standing::Acknowledged,
        Standing::SavedRunning => pb::Standing::SavedRunning,
        Standing::SavedFinished => pb::Standing::SavedFinished,
        Standing::Restart => pb::Standing::Restart,
        Standing::LeftOut => pb::Standing::LeftOut,
        Standing::Retired => pb::Standing::Retired,
        Standing::Failed => pb::Standing::Failed,
    };
    pb::PartitionEntry {
        episode: Some(entry.episode.to_wire()),
        standing: standing.into(),
        reason: entry.reason.clone(),
    }
}

fn digest_to_wire(digest: Digest) -> Bytes {
    Bytes::copy_from_slice(&digest)
}

pub(crate) fn durable_to_wire(durable: Durable) -> pb::AwaitResponse {
    pb::AwaitResponse {
        manifest: durable.manifest,
        digest: digest_to_wire(durable.digest),
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
    pb::StatusResponse {
        instance: Some(instance.to_wire()),
        incarnation: incarnation.to_string(),
        mode: seen.mode.to_wire(),
        phase: phase_to_wire(view.phase),
        checkpoint_id: view.open.map(|id| id.to_string()).unwrap_or_default(),
        coordinator_epoch: view.epoch,
        lease_left: view.lease_left.map(|time| time.to_wire()),
        ready: view.ready,
        roots: seen.roots,
        blockers: view.waiting.blockers.iter().map(blocker_to_wire).collect(),
        blocker_count: view.waiting.count,
        restarts: seen.restarts.iter().map(restart_to_wire).collect(),
        counts: seen
            .counts
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count))
            .collect(),
        marks_version: view.marks_version,
        marks: view.marks,
        at_door: view.at_door,
        unclaimed_restored: seen.unclaimed,
        unsettled: view.unsettled.map(|unsettled| pb::UnsettledCapture {
            checkpoint_id: unsettled.id.to_string(),
            age: Some(unsettled.age.to_wire()),
            durable: unsettled.durable,
        }),
        in_doubt: view.in_doubt.map(|time| time.to_wire()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        warnings: seen.warnings,
        members_version: seen.members_version,
    }
}
