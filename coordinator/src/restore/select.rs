//! Which checkpoint a restore reads, and what is in it.

use belay_core::{
    coordinator::plan::Saved,
    ids::CheckpointId,
    refusal::{Reason, Refusal},
};
use belay_store::{CheckpointFile, Decided};

use crate::coordinator::Coordinator;

/// Which checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The newest complete one.
    Newest,
    /// The one before it.
    Previous,
    /// This one.
    Id(CheckpointId),
}

/// Finds it, and reads and checks every file of it. Another model's is refused unless it is named by its id. A damaged one is refused by the file's name, with the previous good one
/// offered; one that is not there, with what is.
pub(super) async fn select(coordinator: &Coordinator, which: &Which) -> Result<CheckpointFile, Refusal> {
    let catalogue = &coordinator.catalogue;
    let published = catalogue.published().await?;
    let id = match which {
        Which::Id(id) => Some(*id),
        Which::Newest => published.last().copied(),
        Which::Previous => published.iter().rev().nth(1).copied(),
    };
    let directory = catalogue.directory();
    let Some(id) = id else {
        let what = match which {
            Which::Previous if !published.is_empty() => "only one checkpoint",
            _ => "no checkpoint",
        };
        return Err(Refusal::new(
            Reason::InvalidCheckpoint,
            format!(
                "there is {what} in {}: take one (`belay checkpoint`), name another root, or open the mesh with nothing (`belay open`)",
                directory.display()
            ),
        ));
    };
    if let Some(file) = catalogue.verify(id).await? {
        return match (&file.model, &coordinator.config.model) {
            (Some(theirs), Some(ours)) if theirs != ours && !matches!(which, Which::Id(_)) => {
                Err(other_model(id, theirs, ours))
            }
            _ => Ok(file),
        };
    }
    let state = match catalogue.decided(id).await? {
        Some(Decided::Tombstone { why, .. }) => format!("was abandoned ({why})"),
        _ => "is not there".into(),
    };
    let there = match published
        .iter()
        .rev()
        .take(3)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
    {
        ids if ids.is_empty() => "there is none".into(),
        ids => format!("the newest are {}", ids.join(", ")),
    };
    Err(Refusal::new(
        Reason::InvalidCheckpoint,
        format!(
            "checkpoint {id} {state} in {}: {there}; name one that is there, or none for the newest",
            directory.display()
        ),
    )
    .with("checkpoint_id", id))
}

/// A generation that goes on under other weights is not what was saved: only who names the checkpoint gets that.
fn other_model(id: CheckpointId, theirs: &str, ours: &str) -> Refusal {
    Refusal::new(
        Reason::InvalidCheckpoint,
        format!("checkpoint {id} is of model {theirs:?}, and this mesh serves {ours:?}: name the checkpoint by its id to restore it all the same"),
    )
    .with("checkpoint_id", id)
}

/// The episodes of a checkpoint, as a plan needs them.
pub(super) fn saved(file: &CheckpointFile) -> Vec<Saved> {
    file.episodes
        .iter()
        .map(|e| Saved {
            episode: e.episode.clone(),
            parts: e.parts.clone(),
        })
        .collect()
}
