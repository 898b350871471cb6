//! What the coordinator knows of a run, and of the mesh.

use belay_core::{ids::CheckpointId, refusal::Refusal};
use belay_mesh::members::Member;
use belay_proto::checkpoint as pb;
use belay_store::Decided;

use crate::{
    coordinator::Coordinator,
    journal::{OpenRun, Unfinished},
    keeper::{self, STATUS_BOUND},
    mesh::View,
};

/// How a run stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunState {
    /// It runs.
    Running,
    /// A checkpoint that is published.
    Published,
    /// It did not come to be.
    Abandoned,
    /// A restore that is complete.
    Restored,
    /// A restore that was decided and not answered everywhere.
    InDoubt,
}

/// How a run ended, or that it runs; `None` for an unknown id. A name on disk decides before the journal.
pub async fn run(coordinator: &Coordinator, id: CheckpointId) -> Result<Option<(RunState, String)>, Refusal> {
    if let Some(run) = coordinator.current().filter(|run| run.id == id) {
        let message = format!("{} {id} is in stage {}", run.kind, run.stage);
        let state = if run.in_doubt {
            RunState::InDoubt
        } else {
            RunState::Running
        };
        return Ok(Some((state, message)));
    }
    match coordinator.catalogue.decided(id).await? {
        Some(Decided::Checkpoint(file)) => {
            let message = format!("published with {} episodes", file.episodes.len());
            return Ok(Some((RunState::Published, message)));
        }
        Some(Decided::Tombstone { why, .. }) => return Ok(Some((RunState::Abandoned, why))),
        None => {}
    }
    Ok(coordinator.journal.read(|state| {
        if let Some(why) = state.owed.get(&id) {
            return Some((RunState::Abandoned, format!("{why}; its tombstone is owed")));
        }
        if let Some(ended) = state.ended.get(&id) {
            let how = if ended.complete {
                RunState::Restored
            } else {
                RunState::Abandoned
            };
            return Some((how, ended.message.clone()));
        }
        match &state.open_run {
            Some(OpenRun::Restore { id: open, .. } | OpenRun::Checkpoint { id: open, .. }) if *open == id => {
                Some((RunState::Running, "it is being brought to its end".into()))
            }
            _ => None,
        }
    }))
}

/// One member, as it answers now.
pub struct MemberReport {
    /// Who and where.
    pub member: Member,
    /// What it said, or why it did not.
    pub status: Result<std::sync::Arc<pb::StatusResponse>, Refusal>,
}

/// The mesh as it is.
pub struct MeshReport {
    /// Every member.
    pub members: Vec<MemberReport>,
    /// It waits for Restore or Open.
    pub waits_for_restore: bool,
    /// What an operator should know.
    pub warnings: Vec<String>,
}

/// Above this, Status warns.
const MANY_MARKS: u64 = 1_000_000;
/// For each member.
const BLOCKERS: u32 = 20;

/// Asks everybody at once.
pub async fn mesh(coordinator: &Coordinator) -> MeshReport {
    let views = coordinator.mesh.refresh(BLOCKERS, STATUS_BOUND).await;
    let waits_for_restore = keeper::waits(coordinator, &views)
        && views
            .values()
            .any(|v| matches!(v, View::Here { status, .. } if status.phase() == pb::Phase::Joining));
    let members = coordinator
        .mesh
        .members()
        .into_iter()
        .map(|member| {
            let status = match views.get(&member.instance) {
                Some(View::Here { status, .. }) => Ok(status.clone()),
                Some(View::Silent(refusal)) => Err(refusal.clone()),
                None => Err(Refusal::new(
                    belay_core::refusal::Reason::PeerUnreachable,
                    "it has just joined or left the member list: ask again",
                )),
            };
            MemberReport { member, status }
        })
        .collect();
    MeshReport {
        members,
        waits_for_restore,
        warnings: warnings(coordinator),
    }
}

fn warnings(coordinator: &Coordinator) -> Vec<String> {
    coordinator.journal.read(|state| {
        let mut warnings = Vec::new();
        let marks = state.book.mark_count();
        if marks > MANY_MARKS {
            warnings.push(format!(
                "{marks} marks are held: forget rollouts that are over (`belay forget`)"
            ));
        }
        for (id, why) in &state.owed {
            warnings.push(format!(
                "the tombstone of checkpoint {id} is owed ({why}): it is linked as soon as {} takes it",
                coordinator.catalogue.root().display()
            ));
        }
        for (id, unsettled) in &state.unsettled {
            let pending: Vec<_> = unsettled.pending.iter().map(ToString::to_string).collect();
            warnings.push(format!(
                "checkpoint {id} is decided and not settled on {}",
                pending.join(", ")
            ));
        }
        for unfinished in state.unfinished.values() {
            let (what, count) = match unfinished {
                Unfinished::Retire { marks, .. } => ("retire", marks.len()),
                Unfinished::Forget { rollouts, .. } => ("forget", rollouts.len()),
            };
            warnings.push(format!(
                "a {what} of {count} rollouts is not answered everywhere: it is tried again"
            ));
        }
        warnings
    })
}
