//! Between the wire's messages and the core's values: each id is checked here, once, at the edge.

mod checkpoint;

use std::time::Duration;

use belay_core::{
    ids::{Digest, Episode, ExecutionId, Instance, Kind, Operation, RolloutId},
    parts::{CheckpointMode, Cursor, VerifyMode},
    refusal::{Reason, Refusal},
};
use belay_proto::episode as pb;
use bytes::Bytes;

pub use self::checkpoint::{
    blocker, mark, mark_set, member, member_list, part, partition_entry, planned, restart,
};

/// INVALID_REQUEST that names a field.
pub fn invalid(field: &'static str, what: impl std::fmt::Display) -> Refusal {
    Refusal::new(Reason::InvalidRequest, format!("{field} {what}")).with("field", field)
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, Refusal> {
    value.ok_or_else(|| invalid(field, "is missing"))
}

/// INVALID_ID or INVALID_REQUEST when it is missing or breaks a rule.
pub fn episode(wire: Option<pb::Episode>) -> Result<Episode, Refusal> {
    let wire = required("episode", wire)?;
    Ok(Episode::new(RolloutId::new(&wire.rollout_id)?, wire.attempt))
}

/// The episode and its life.
pub fn episode_ref(wire: Option<pb::EpisodeRef>) -> Result<(Episode, ExecutionId), Refusal> {
    let wire = required("ref", wire)?;
    Ok((episode(wire.episode)?, wire.execution.parse()?))
}

/// An operation that must be there.
pub fn operation(wire: Option<pb::Operation>) -> Result<Operation, Refusal> {
    let wire = required("operation", wire)?;
    Ok(Operation {
        turn: wire.turn,
        index: wire.index,
    })
}

/// A kind that must be set.
pub fn kind(wire: i32) -> Result<Kind, Refusal> {
    match pb::Kind::try_from(wire) {
        Ok(pb::Kind::Environment) => Ok(Kind::Environment),
        Ok(pb::Kind::PolicyModel) => Ok(Kind::PolicyModel),
        Ok(pb::Kind::Agent) => Ok(Kind::Agent),
        Ok(pb::Kind::Resources) => Ok(Kind::Resources),
        Ok(pb::Kind::Unspecified) | Err(_) => Err(invalid(
            "kind",
            format_args!("{wire} is none of 1 (environment) to 4 (resources)"),
        )),
    }
}

/// An instance that must be there.
pub fn instance(wire: Option<pb::Instance>) -> Result<Instance, Refusal> {
    let wire = required("instance", wire)?;
    Instance::new(kind(wire.kind)?, &wire.name, wire.replica)
}

/// A digest that must be there: 32 bytes.
pub fn digest(field: &'static str, wire: &[u8]) -> Result<Digest, Refusal> {
    wire.try_into().map_err(|_| {
        invalid(
            field,
            format_args!("has {} bytes; a BLAKE3 digest has 32", wire.len()),
        )
    })
}

/// A digest, or nothing where it is empty.
pub fn optional_digest(field: &'static str, wire: &[u8]) -> Result<Option<Digest>, Refusal> {
    if wire.is_empty() {
        Ok(None)
    } else {
        digest(field, wire).map(Some)
    }
}

/// A digest, as its message has it.
pub fn digest_to_wire(digest: &Digest) -> Bytes {
    Bytes::copy_from_slice(digest)
}

/// A cursor; unset reads as the default.
pub fn cursor(wire: Option<pb::Cursor>) -> Result<Cursor, Refusal> {
    let Some(wire) = wire else {
        return Ok(Cursor::default());
    };
    Ok(Cursor {
        operation: wire.operation.map(|o| Operation {
            turn: o.turn,
            index: o.index,
        }),
        chain: optional_digest("cursor.chain_hash", &wire.chain_hash)?,
        revision: wire.revision,
    })
}

/// A mode that must be set.
pub fn checkpoint_mode(wire: i32) -> Result<CheckpointMode, Refusal> {
    match pb::CheckpointMode::try_from(wire) {
        Ok(pb::CheckpointMode::Exported) => Ok(CheckpointMode::Exported),
        Ok(pb::CheckpointMode::Stateless) => Ok(CheckpointMode::Stateless),
        Ok(pb::CheckpointMode::RestartOnly) => Ok(CheckpointMode::RestartOnly),
        Ok(pb::CheckpointMode::Unspecified) | Err(_) => Err(invalid(
            "mode",
            format_args!("{wire} is none of 1 (exported), 2 (stateless), 3 (restart_only)"),
        )),
    }
}

/// A mode that must be set.
pub fn verify_mode(wire: i32) -> Result<VerifyMode, Refusal> {
    match pb::VerifyMode::try_from(wire) {
        Ok(pb::VerifyMode::Replay) => Ok(VerifyMode::Replay),
        Ok(pb::VerifyMode::Wait) => Ok(VerifyMode::Wait),
        Ok(pb::VerifyMode::Unspecified) | Err(_) => Err(invalid(
            "verify",
            format_args!("{wire} is neither 1 (replay) nor 2 (wait)"),
        )),
    }
}

/// Not negative, no overflow: INVALID_REQUEST names the field.
pub fn duration(
    field: &'static str,
    wire: Option<prost_types::Duration>,
) -> Result<Option<Duration>, Refusal> {
    let read = |wire: prost_types::Duration| {
        Duration::try_from(wire)
            .map_err(|_| invalid(field, format_args!("{wire:?} is negative or out of range")))
    };
    wire.map(read).transpose()
}

/// The timeout of a call that can wait: in (0, 1 h] (protocol 3.2).
pub fn timeout(field: &'static str, wire: Option<prost_types::Duration>) -> Result<Duration, Refusal> {
    bounded(
        field,
        required(field, duration(field, wire)?)?,
        Duration::from_secs(3_600),
        "1 h",
    )
}

/// The lease: in (0, 10 min], 60 s where it is unset (protocol 3.2 rule 7).
pub fn grace(wire: Option<prost_types::Duration>) -> Result<Duration, Refusal> {
    let grace = duration("grace", wire)?.unwrap_or(Duration::from_secs(60));
    bounded("grace", grace, Duration::from_secs(600), "10 min")
}

fn bounded(field: &'static str, value: Duration, most: Duration, word: &str) -> Result<Duration, Refusal> {
    if value.is_zero() || value > most {
        return Err(invalid(field, format_args!("{value:?} is not in (0, {word}]")));
    }
    Ok(value)
}

/// A core value as its message.
pub trait ToWire {
    /// The message.
    type Wire;
    /// The message with the same content.
    fn to_wire(&self) -> Self::Wire;
}

impl ToWire for Episode {
    type Wire = pb::Episode;
    fn to_wire(&self) -> pb::Episode {
        pb::Episode {
            rollout_id: self.rollout.as_str().into(),
            attempt: self.attempt,
        }
    }
}

impl ToWire for (&Episode, ExecutionId) {
    type Wire = pb::EpisodeRef;
    fn to_wire(&self) -> pb::EpisodeRef {
        pb::EpisodeRef {
            episode: Some(self.0.to_wire()),
            execution: self.1.to_string(),
        }
    }
}

impl ToWire for Operation {
    type Wire = pb::Operation;
    fn to_wire(&self) -> pb::Operation {
        pb::Operation {
            turn: self.turn,
            index: self.index,
        }
    }
}

impl ToWire for Kind {
    type Wire = i32;
    fn to_wire(&self) -> i32 {
        match self {
            Kind::Environment => pb::Kind::Environment,
            Kind::PolicyModel => pb::Kind::PolicyModel,
            Kind::Agent => pb::Kind::Agent,
            Kind::Resources => pb::Kind::Resources,
        }
        .into()
    }
}

impl ToWire for Instance {
    type Wire = pb::Instance;
    fn to_wire(&self) -> pb::Instance {
        pb::Instance {
            kind: self.kind.to_wire(),
            name: self.name.to_string(),
            replica: self.replica,
        }
    }
}

impl ToWire for Cursor {
    type Wire = pb::Cursor;
    fn to_wire(&self) -> pb::Cursor {
        pb::Cursor {
            operation: self.operation.map(|o| o.to_wire()),
            chain_hash: self.chain.map(|chain| digest_to_wire(&chain)).unwrap_or_default(),
            revision: self.revision,
        }
    }
}

impl ToWire for CheckpointMode {
    type Wire = i32;
    fn to_wire(&self) -> i32 {
        match self {
            CheckpointMode::Exported => pb::CheckpointMode::Exported,
            CheckpointMode::Stateless => pb::CheckpointMode::Stateless,
            CheckpointMode::RestartOnly => pb::CheckpointMode::RestartOnly,
        }
        .into()
    }
}

impl ToWire for VerifyMode {
    type Wire = i32;
    fn to_wire(&self) -> i32 {
        match self {
            VerifyMode::Replay => pb::VerifyMode::Replay,
            VerifyMode::Wait => pb::VerifyMode::Wait,
        }
        .into()
    }
}

impl ToWire for Duration {
    type Wire = prost_types::Duration;
    fn to_wire(&self) -> prost_types::Duration {
        // What does not fit is the longest that does: nobody waits for that.
        (*self).try_into().unwrap_or(prost_types::Duration {
            seconds: i64::MAX,
            nanos: 0,
        })
    }
}

#[cfg(test)]
mod tests;
