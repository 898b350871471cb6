//! Starting (protocol 4): the journal, an epoch above all that was ever used, and the end of what a coordinator before has begun.

use std::{path::PathBuf, sync::Arc};

use belay_core::{coordinator::attempts::Remembered, refusal::Refusal};

use crate::{
    catalogue::Catalogue,
    coordinator::{Coordinator, CoordinatorConfig},
    error::CoordinatorError,
    journal::{EndedRun, Entry, Journal, OpenRun},
    keeper::STATUS_BOUND,
    mesh::{Mesh, View},
    restore, settle,
    superseded::Superseded,
};

/// Starts. An activated restore is being completed when this returns.
pub async fn start(config: CoordinatorConfig) -> Result<Arc<Coordinator>, CoordinatorError> {
    if config.members.is_empty() {
        return Err(CoordinatorError::NoMembers {
            deployment: config.deployment,
        });
    }
    let (dir, deployment): (PathBuf, String) = (config.state.clone(), config.deployment.clone());
    let journal = tokio::task::spawn_blocking(move || Journal::open(&dir, &deployment)).await??;
    let catalogue = Catalogue::new(config.fs.clone(), &config.root, &config.deployment);
    let superseded = Superseded::default();

    let removed = journal.read(|s| s.removed.clone());
    let members: Vec<_> = config
        .members
        .iter()
        .filter(|m| !removed.contains(&m.instance))
        .cloned()
        .collect();
    let epoch = begin_epoch(&config, &journal, &catalogue, &members).await?;
    let version = journal.read(|s| s.members_version);
    let mesh = Mesh::new(
        config.channels.clone(),
        epoch,
        superseded.clone(),
        version,
        members,
    );
    let coordinator = Arc::new(Coordinator::new(
        config, epoch, journal, catalogue, mesh, superseded,
    ));
    tracing::info!(epoch, "the coordinator has started");
    finish_open_run(&coordinator).await?;
    Ok(coordinator)
}

/// Above the journal's epoch, every participant's, and every name under `checkpoints/`; versions likewise.
async fn begin_epoch(
    config: &CoordinatorConfig,
    journal: &Journal,
    catalogue: &Catalogue,
    members: &[belay_mesh::members::Member],
) -> Result<u64, CoordinatorError> {
    let scout = Mesh::new(
        config.channels.clone(),
        0,
        Superseded::default(),
        0,
        members.to_vec(),
    );
    let views = scout.refresh(1, STATUS_BOUND).await;
    let highest = |read: fn(&belay_proto::checkpoint::StatusResponse) -> u64| {
        views
            .values()
            .filter_map(|view| match view {
                View::Here { status, .. } => Some(read(status)),
                View::Silent(_) => None,
            })
            .max()
            .unwrap_or_default()
    };
    let (epoch, marks, member_list) = (
        highest(|s| s.coordinator_epoch),
        highest(|s| s.marks_version),
        highest(|s| s.members_version),
    );
    let on_disk = unless_unreadable("list the checkpoints", catalogue.list().await).unwrap_or_default();
    let published = unless_unreadable("read the checkpoints", catalogue.published().await);
    let named = on_disk.last().map_or(0, |id| id.epoch);
    // A journal that is behind what participants hold was lost or put back: the newest checkpoint knows marks too.
    let lost = journal.read(|s| s.marks_version()) < marks || journal.read(|s| s.epoch) == 0;
    let newest = match lost {
        true => unless_unreadable("read the newest checkpoint", catalogue.newest().await).flatten(),
        false => None,
    };
    journal
        .decide(move |state| {
            let mut entries = vec![
                Entry::Epoch(1 + state.epoch.max(epoch).max(named)),
                Entry::MembersVersion(1 + state.members_version.max(member_list)),
            ];
            if let Some(published) = published {
                let gone = state.published.iter().filter(|id| !published.contains(id));
                entries.extend(gone.map(|id| Entry::Pruned(*id)));
                entries.extend(
                    published
                        .iter()
                        .filter(|id| !state.published.contains(id))
                        .map(|id| Entry::Published(*id)),
                );
                let oldest = published.first().copied();
                let stale = state
                    .book
                    .forgotten
                    .iter()
                    .filter(|(_, until)| oldest.is_none_or(|o| o > **until));
                entries.extend(stale.map(|(rollout, _)| Entry::ForgottenGone(rollout.clone())));
            }
            let mut version = state.book.version.max(marks);
            for mark in newest.iter().flat_map(|file| &file.marks) {
                if state.book.rollouts.contains_key(&mark.rollout) {
                    continue;
                }
                // Whether it was retired or restored is not known any more. The newest checkpoint's own records are above
                // their marks; only an older checkpoint's are held back by this.
                let row = Remembered {
                    mark: Some(mark.attempt),
                    retired: Some(mark.attempt),
                    handed_out: None,
                };
                entries.push(Entry::Rollout(mark.rollout.clone(), row));
            }
            if lost {
                version = version.max(newest.as_ref().map_or(0, |file| file.marks_version)) + 1;
            }
            entries.push(Entry::MarksVersion(version));
            entries
        })
        .await?;
    Ok(journal.read(|s| s.epoch))
}

/// A root that cannot be read now keeps nobody from starting: it is told, and asked again when it is needed.
fn unless_unreadable<T>(what: &str, read: Result<T, Refusal>) -> Option<T> {
    read.inspect_err(|refusal| tracing::warn!(%refusal, "cannot {what}"))
        .ok()
}

/// The run that a coordinator before has begun ends here: by the name on disk, or by completing what was activated.
async fn finish_open_run(coordinator: &Arc<Coordinator>) -> Result<(), CoordinatorError> {
    match coordinator.journal.read(|s| s.open_run.clone()) {
        None => Ok(()),
        Some(OpenRun::Checkpoint { id, drop, .. }) => {
            let members = coordinator.mesh.instances();
            let why = "its coordinator ended before it was published";
            settle::decide_by_name(coordinator, id, drop, members, why).await
        }
        Some(OpenRun::Restore {
            id, activated: None, ..
        }) => {
            let message = "its coordinator ended before it was activated: nothing was live".to_owned();
            let ended = EndedRun {
                complete: false,
                message,
            };
            coordinator
                .journal
                .commit(vec![Entry::RunOver(Some((id, ended)))])
                .await
        }
        Some(OpenRun::Restore {
            id,
            source,
            activated: Some(plan),
        }) => {
            restore::complete(coordinator, id, source, plan);
            Ok(())
        }
    }
}
