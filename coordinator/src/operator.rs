//! What an operator may ask for beside runs: open with nothing, take an instance out, read a controller's state.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use belay_core::{
    ids::{CheckpointId, Instance},
    refusal::{Reason, Refusal},
};
use belay_proto::checkpoint as pb;
use bytes::Bytes;

use crate::{
    coordinator::{Coordinator, RunCommand},
    error::CoordinatorError,
    journal::Entry,
    keeper,
    mesh::View,
};

/// Opens the mesh with nothing: what a checkpoint holds stays on disk. Replies how many participants are open.
pub async fn open(coordinator: &Arc<Coordinator>) -> Result<u32, CoordinatorError> {
    let turn = coordinator.turn("open", Duration::from_secs(30), false).await?;
    coordinator.open_anyway.store(true, Ordering::Relaxed);
    keeper::tend(coordinator, &turn).await?;
    let views = coordinator.mesh.refresh(1, keeper::STATUS_BOUND).await;
    // From now on the environments and agents that are open speak for themselves; one that was not there yet is waited for.
    let all = views.values().all(|v| matches!(v, View::Here { .. }));
    if all {
        coordinator.open_anyway.store(false, Ordering::Relaxed);
    }
    let open = views
        .values()
        .filter(|v| matches!(v, View::Here { status, .. } if status.phase() == pb::Phase::Idle));
    Ok(u32::try_from(open.count()).unwrap_or(u32::MAX))
}

/// Takes an instance out of the mesh for good. A restore that waits for it goes on without it, and what was to be there is
/// planned anew on the others.
pub async fn remove(coordinator: &Arc<Coordinator>, instance: Instance) -> Result<(), CoordinatorError> {
    let members = coordinator.mesh.instances();
    if !members.contains(&instance) {
        let names: Vec<_> = members.iter().map(ToString::to_string).collect();
        return Err(Refusal::new(
            Reason::InvalidRequest,
            format!(
                "{instance} is not in the mesh: its members are {}",
                names.join(", ")
            ),
        )
        .instance(&instance)
        .into());
    }
    if !members.iter().any(|m| *m != instance && m.same_server(&instance)) {
        return Err(Refusal::new(
            Reason::InvalidRequest,
            format!(
                "{instance} is the only replica of {}/{}: start another one first, or restart it",
                instance.kind, instance.name
            ),
        )
        .instance(&instance)
        .into());
    }
    let run = coordinator.current();
    // A restore is told; anything else ends before the list changes.
    let turn = match &run {
        Some(run) if run.kind == "restore" => None,
        _ => Some(
            coordinator
                .turn("removing an instance", Duration::from_secs(60), true)
                .await?,
        ),
    };
    let version = coordinator.mesh.version() + 1;
    coordinator
        .journal
        .commit(vec![
            Entry::Removed(instance.clone()),
            Entry::MembersVersion(version),
        ])
        .await?;
    coordinator.mesh.remove(&instance, version);
    if let Some(run) = run {
        // It may have ended in this moment: then there is nothing to tell.
        let _ = run.commands.send(RunCommand::Removed(instance));
    }
    drop(turn);
    Ok(())
}

/// The controller's state that was published with a checkpoint; by default the newest.
pub async fn controller_state(
    coordinator: &Coordinator,
    id: Option<CheckpointId>,
) -> Result<(CheckpointId, Bytes), Refusal> {
    let catalogue = &coordinator.catalogue;
    let directory = catalogue.directory();
    let id = match id {
        Some(id) => id,
        None => catalogue.newest().await?.map(|file| file.id).ok_or_else(|| {
            Refusal::new(
                Reason::InvalidCheckpoint,
                format!(
                    "there is no checkpoint in {}: take one first (`belay checkpoint`)",
                    directory.display()
                ),
            )
        })?,
    };
    match catalogue.controller_state(id).await? {
        Some((_, Some(state))) => Ok((id, state)),
        Some((_, None)) => Ok((id, Bytes::new())),
        None => Err(Refusal::new(
            Reason::InvalidCheckpoint,
            format!(
                "checkpoint {id} is not in {}: name one that is there, or none for the newest",
                directory.display()
            ),
        )
        .with("checkpoint_id", id)),
    }
}
