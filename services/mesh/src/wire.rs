//! Between the wire's messages and the core's values: each id is checked here, once, at the edge.

use std::time::Duration;

use belay_core::{
    ids::{Episode, ExecutionId, Instance, Operation},
    parts::{CheckpointMode, Cursor, VerifyMode},
    refusal::Refusal,
};
use belay_proto::episode as pb;

/// INVALID_ID or INVALID_REQUEST when it is missing or breaks a rule.
pub fn episode(_wire: Option<pb::Episode>) -> Result<Episode, Refusal> {
    todo!()
}

/// The episode and its life.
pub fn episode_ref(_wire: Option<pb::EpisodeRef>) -> Result<(Episode, ExecutionId), Refusal> {
    todo!()
}

/// An operation that must be there.
pub fn operation(_wire: Option<pb::Operation>) -> Result<Operation, Refusal> {
    todo!()
}

/// An instance that must be there.
pub fn instance(_wire: Option<pb::Instance>) -> Result<Instance, Refusal> {
    todo!()
}

/// A cursor; unset reads as the default.
pub fn cursor(_wire: Option<pb::Cursor>) -> Result<Cursor, Refusal> {
    todo!()
}

/// A mode that must be set.
pub fn checkpoint_mode(_wire: i32) -> Result<CheckpointMode, Refusal> {
    todo!()
}

/// A mode that must be set.
pub fn verify_mode(_wire: i32) -> Result<VerifyMode, Refusal> {
    todo!()
}

/// Not negative, no overflow: INVALID_REQUEST names the field.
pub fn duration(
    _field: &'static str,
    _wire: Option<prost_types::Duration>,
) -> Result<Option<Duration>, Refusal> {
    todo!()
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

impl ToWire for Instance {
    type Wire = pb::Instance;
    fn to_wire(&self) -> pb::Instance {
        todo!()
    }
}

impl ToWire for Cursor {
    type Wire = pb::Cursor;
    fn to_wire(&self) -> pb::Cursor {
        todo!()
    }
}

impl ToWire for CheckpointMode {
    type Wire = i32;
    fn to_wire(&self) -> i32 {
        todo!()
    }
}

impl ToWire for VerifyMode {
    type Wire = i32;
    fn to_wire(&self) -> i32 {
        todo!()
    }
}
