//! Between the messages of the checkpoint contract and the core's values, where the coordinator reads or writes them.

use std::time::Duration;

use belay_core::{
    coordinator::checkpoint_run::{Committed, Prepared},
    ids::{CheckpointId, ExecutionId, Incarnation, Instance},
    parts::{LedgerTip, Need, PartNeeded, PartSummary, PartitionEntry, PlannedEpisode, Restart, Standing},
    refusal::{Blocker, Refusal},
};
use belay_mesh::wire::{self, ToWire as _};
use belay_proto::checkpoint as pb;
use belay_store::ShardRef;

/// A duration from a participant's reply; unset, negative or too long reads as zero.
pub fn read_span(duration: Option<prost_types::Duration>) -> Duration {
    duration.and_then(|d| d.try_into().ok()).unwrap_or_default()
}

/// A life of a server.
pub fn incarnation(text: &str) -> Result<Incarnation, Refusal> {
    text.parse()
}

/// A blocker.
pub fn blocker(wire: pb::Blocker) -> Result<Blocker, Refusal> {
    Ok(Blocker {
        episode: wire::episode(wire.episode)?,
        instance: wire::instance(wire.instance)?,
        step: wire.step.into(),
        age: read_span(wire.age),
        reason: wire.reason.into(),
    })
}

/// Blockers; those that do not read are left out, since they only inform.
pub fn blockers(wire: Vec<pb::Blocker>) -> Vec<Blocker> {
    wire.into_iter().filter_map(|b| blocker(b).ok()).collect()
}

/// A blocker, as its message.
pub fn blocker_to_wire(blocker: &Blocker) -> pb::Blocker {
    pb::Blocker {
        episode: Some(blocker.episode.to_wire()),
        instance: Some(blocker.instance.to_wire()),
        step: blocker.step.to_string(),
        age: Some(blocker.age.to_wire()),
        reason: blocker.reason.to_string(),
    }
}

/// A restart.
pub fn restart(wire: pb::Restart) -> Result<Restart, Refusal> {
    Ok(Restart {
        episode: wire::episode(wire.episode)?,
        instance: wire::instance(wire.instance)?,
        reason: wire.reason,
    })
}

/// A restart, as its message.
pub fn restart_to_wire(restart: &Restart) -> pb::Restart {
    pb::Restart {
        episode: Some(restart.episode.to_wire()),
        instance: Some(restart.instance.to_wire()),
        reason: restart.reason.clone(),
    }
}

/// What a participant replied once PREPARED.
pub fn prepared(wire: pb::PrepareResponse) -> Result<Prepared, Refusal> {
    Ok(Prepared {
        restarts: wire.restarts.into_iter().map(restart).collect::<Result<_, _>>()?,
        roots: wire
            .roots
            .into_iter()
            .map(|e| wire::episode(Some(e)))
            .collect::<Result<_, _>>()?,
    })
}

/// What a participant captured.
pub fn committed(wire: pb::CommitResponse) -> Result<Committed, Refusal> {
    Ok(Committed {
        parts: wire.parts.into_iter().map(part).collect::<Result<_, _>>()?,
        restarts: wire.restarts.into_iter().map(restart).collect::<Result<_, _>>()?,
        partition: wire.partition.into_iter().map(entry).collect::<Result<_, _>>()?,
        at_door: wire.at_door,
    })
}

fn part(wire: pb::CapturedPart) -> Result<PartSummary, Refusal> {
    let execution: ExecutionId = wire.execution.parse()?;
    Ok(PartSummary {
        episode: wire::episode(wire.episode)?,
        execution,
        root: wire.root,
        cursor: wire::cursor(wire.cursor)?,
        needs: wire.needs.into_iter().map(need).collect::<Result<_, _>>()?,
        ledger: wire.ledger.and_then(|tip| ledger(tip).transpose()).transpose()?,
        revision: wire.revision,
        boundary: wire.boundary,
        task: wire::optional_digest("task_digest", &wire.task_digest)?,
        finished: wire.finished,
    })
}

fn need(wire: pb::PartNeeded) -> Result<PartNeeded, Refusal> {
    let need = match wire.need() {
        pb::Need::Whole => Need::Whole,
        // Unset says that no call was made yet, so what is there must be as if begun.
        pb::Need::IfBegun | pb::Need::Unspecified => Need::IfBegun,
    };
    Ok(PartNeeded {
        instance: wire::instance(wire.instance)?,
        need,
    })
}

fn ledger(wire: pb::LedgerTip) -> Result<Option<LedgerTip>, Refusal> {
    if wire.operation.is_none() {
        return Ok(None);
    }
    let parent = wire::optional_digest("parent", &wire.parent)?;
    Ok(Some(LedgerTip {
        operation: wire::operation(wire.operation)?,
        chain: wire::digest("chain_hash", &wire.chain_hash)?,
        // The first row's parent is all zeros where a server writes it out.
        parent: parent.filter(|p| *p != [0; 32]),
    }))
}

fn entry(wire: pb::PartitionEntry) -> Result<PartitionEntry, Refusal> {
    let standing = match wire.standing() {
        pb::Standing::Acknowledged => Standing::Acknowledged,
        pb::Standing::SavedRunning => Standing::SavedRunning,
        pb::Standing::SavedFinished => Standing::SavedFinished,
        pb::Standing::Restart => Standing::Restart,
        pb::Standing::LeftOut => Standing::LeftOut,
        pb::Standing::Retired => Standing::Retired,
        pb::Standing::Failed => Standing::Failed,
        pb::Standing::Unspecified => {
            return Err(wire::invalid(
                "standing",
                "must be set: every episode stands in exactly one class",
            ));
        }
    };
    Ok(PartitionEntry {
        episode: wire::episode(wire.episode)?,
        standing,
        reason: wire.reason,
    })
}

/// A line of the partition, as its message.
pub fn entry_to_wire(entry: &PartitionEntry) -> pb::PartitionEntry {
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

/// A durable capture, as `checkpoint.json` names it.
pub fn shard(
    instance: &Instance,
    incarnation: Incarnation,
    wire: pb::AwaitResponse,
) -> Result<ShardRef, Refusal> {
    Ok(ShardRef {
        instance: instance.clone(),
        incarnation,
        digest: wire::digest("digest", &wire.digest)?,
        manifest: wire.manifest,
        records: wire.records,
        bytes: wire.bytes,
    })
}

/// A share of a checkpoint, as a restore names it.
pub fn shard_to_wire(shard: &ShardRef) -> pb::Shard {
    pb::Shard {
        instance: Some(shard.instance.to_wire()),
        manifest: shard.manifest.clone(),
        digest: shard.digest.to_vec().into(),
    }
}

/// A planned episode, as its message.
pub fn planned_to_wire(planned: &PlannedEpisode) -> pb::PlannedEpisode {
    pb::PlannedEpisode {
        saved: Some(planned.saved.to_wire()),
        attempt: planned.attempt,
        execution: planned.execution.to_string(),
        placement: planned.placement.iter().map(|i| i.to_wire()).collect(),
    }
}

/// The id of a run in a participant's status; `None` when it has none.
pub fn run_id(text: &str) -> Option<CheckpointId> {
    text.parse().ok()
}
