//! The replies of participants as the core's values, where [`belay_mesh::wire`] has only their parts.

use std::time::Duration;

use belay_core::{
    coordinator::checkpoint_run::{Committed, Prepared},
    ids::{CheckpointId, Incarnation, Instance},
    refusal::{Blocker, Refusal},
};
use belay_mesh::wire::{self, ToWire as _};
use belay_proto::checkpoint as pb;
use belay_store::ShardRef;

/// A duration from a participant's reply; unset, negative or too long reads as zero.
pub fn read_span(duration: Option<prost_types::Duration>) -> Duration {
    duration.and_then(|d| d.try_into().ok()).unwrap_or_default()
}

/// Blockers; those that do not read are left out, since they only inform.
pub fn blockers(wire: Vec<pb::Blocker>) -> Vec<Blocker> {
    wire.into_iter().filter_map(|b| wire::blocker(b).ok()).collect()
}

/// What a participant replied once PREPARED.
pub fn prepared(wire: pb::PrepareResponse) -> Result<Prepared, Refusal> {
    Ok(Prepared {
        restarts: wire
            .restarts
            .into_iter()
            .map(wire::restart)
            .collect::<Result<_, _>>()?,
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
        parts: wire.parts.into_iter().map(wire::part).collect::<Result<_, _>>()?,
        restarts: wire
            .restarts
            .into_iter()
            .map(wire::restart)
            .collect::<Result<_, _>>()?,
        partition: wire
            .partition
            .into_iter()
            .map(wire::partition_entry)
            .collect::<Result<_, _>>()?,
        at_door: wire.at_door,
    })
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
        digest: wire::digest_to_wire(&shard.digest),
    }
}

/// The id of a run in a participant's status; `None` when it has none.
pub fn run_id(text: &str) -> Option<CheckpointId> {
    text.parse().ok()
}
