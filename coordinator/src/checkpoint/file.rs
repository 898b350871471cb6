//! What `checkpoint.json` says of a run.

use std::time::{SystemTime, UNIX_EPOCH};

use belay_core::{coordinator::checkpoint_run::CheckpointRun, ids::CheckpointId};
use belay_store::{CheckpointFile, ControllerStateRef, Format, SavedEpisode, ShardRef};

use crate::coordinator::Coordinator;

/// The episodes that are whole, and all marks: Restore stages those and nothing else.
pub(super) fn checkpoint_file(
    coordinator: &Coordinator,
    id: CheckpointId,
    run: &CheckpointRun,
    shards: Vec<ShardRef>,
    controller_state: Option<ControllerStateRef>,
) -> CheckpointFile {
    let episodes = run.closure().whole.iter().map(|whole| SavedEpisode {
        episode: whole.root.episode.clone(),
        execution: whole.root.execution,
        boundary: whole.root.boundary.clone(),
        finished: whole.root.finished,
        cursor: whole.cursor,
        task: whole.root.task,
        parts: whole.parts.clone(),
    });
    let (marks_version, marks) = coordinator.journal.read(|s| (s.book.version, s.marks()));
    CheckpointFile {
        format: Format::CURRENT,
        id,
        deployment: coordinator.config.deployment.clone(),
        epoch: coordinator.epoch,
        model: coordinator.config.model.clone(),
        shards,
        episodes: episodes.collect(),
        restarts: run.partition().restarts.clone(),
        marks_version,
        marks,
        controller_state,
        created_unix_ms: now_unix_ms(),
    }
}

/// By the wall clock: for people, it decides nothing.
fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
