//! What callers ask for, checked.

use std::time::Duration;

use belay_core::{
    coordinator::plan::Scope,
    ids::RolloutId,
    refusal::{Reason, Refusal},
};
use belay_mesh::wire as mesh_wire;
use belay_proto::checkpoint as pb;

use crate::{
    checkpoint::CheckpointOptions,
    restore::{RestoreOptions, Which},
};

pub(super) const HOUR: Duration = Duration::from_secs(3600);

/// A time in (0, most]; unset is the caller's default.
pub(super) fn time(
    field: &'static str,
    wire: Option<prost_types::Duration>,
    most: Duration,
) -> Result<Option<Duration>, Refusal> {
    let Some(time) = mesh_wire::duration(field, wire)? else {
        return Ok(None);
    };
    if time.is_zero() || time > most {
        return Err(Refusal::new(
            Reason::InvalidRequest,
            format!("{field} is {time:?}, and must be above 0 and at most {most:?}"),
        )
        .with("field", field));
    }
    Ok(Some(time))
}

pub(super) fn rollout_ids(ids: &[String]) -> Result<Vec<RolloutId>, Refusal> {
    ids.iter().map(|id| RolloutId::new(id)).collect()
}

pub(super) fn checkpoint_options(request: pb::CheckpointRequest) -> Result<CheckpointOptions, Refusal> {
    let default = CheckpointOptions::default();
    let timeout = time("timeout", request.timeout, HOUR)?.unwrap_or(default.timeout);
    let soft_limit = time("soft_limit", request.soft_limit, HOUR)?;
    if soft_limit.is_some_and(|limit| limit >= timeout) {
        return Err(Refusal::new(
            Reason::InvalidRequest,
            format!("soft_limit must be below the timeout of {timeout:?}"),
        )
        .with("field", "soft_limit"));
    }
    let hold_timeout = time("hold_timeout", request.hold_timeout, HOUR)?.unwrap_or(Duration::from_secs(300));
    Ok(CheckpointOptions {
        listed: rollout_ids(&request.rollout_ids)?.into_iter().collect(),
        timeout,
        soft_limit,
        grace: time("grace", request.grace, Duration::from_secs(600))?.unwrap_or(default.grace),
        hold: request.hold.then_some(hold_timeout),
        cut_budget: mesh_wire::duration("cut_budget", request.cut_budget)?.unwrap_or(default.cut_budget),
    })
}

pub(super) fn restore_options(request: pb::CoordinatorRestoreRequest) -> Result<RestoreOptions, Refusal> {
    let which = match (request.checkpoint_id.as_str(), request.previous) {
        ("", false) => Which::Newest,
        ("", true) => Which::Previous,
        (id, _) => Which::Id(id.parse()?),
    };
    Ok(RestoreOptions {
        which,
        scope: Scope {
            only: rollout_ids(&request.rollout_ids)?.into_iter().collect(),
            leave_out: rollout_ids(&request.leave_out)?.into_iter().collect(),
        },
        timeout: time("timeout", request.timeout, HOUR)?.unwrap_or(RestoreOptions::default().timeout),
    })
}
