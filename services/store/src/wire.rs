//! Between the record messages and the core's values.

use belay_core::{
    ids::{Episode, Instance, Kind, RolloutId},
    refusal::Refusal,
};
use belay_proto::episode as pb;

pub fn episode_to(episode: &Episode) -> pb::Episode {
    pb::Episode {
        rollout_id: episode.rollout.as_str().into(),
        attempt: episode.attempt,
    }
}

pub fn episode_from(wire: Option<pb::Episode>) -> Result<Episode, Refusal> {
    let wire = wire.unwrap_or_default();
    Ok(Episode::new(RolloutId::new(&wire.rollout_id)?, wire.attempt))
}

pub fn instance_to(instance: &Instance) -> pb::Instance {
    let kind = match instance.kind {
        Kind::Environment => pb::Kind::Environment,
        Kind::PolicyModel => pb::Kind::PolicyModel,
        Kind::Agent => pb::Kind::Agent,
        Kind::Resources => pb::Kind::Resources,
    };
    pb::Instance {
        kind: kind.into(),
        name: instance.name.as_ref().into(),
        replica: instance.replica,
    }
}
