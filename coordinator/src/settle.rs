//! What was decided is told to whoever has not heard of it; what the root could not take is linked when it can.

use std::collections::{BTreeMap, BTreeSet};

use belay_core::{
    coordinator::attempts::Why,
    ids::{CheckpointId, Instance},
    parts::Mark,
};
use belay_mesh::wire::ToWire as _;
use belay_proto::checkpoint as pb;
use belay_store::{Decided, Published};

use crate::{
    coordinator::Coordinator,
    error::CoordinatorError,
    journal::{Entry, Outcome, State, Unsettled},
    keeper::END_BOUND,
    mesh::View,
    peer::{Peer, each},
    wire,
};

/// A kept capture that the journal does not know (it was lost, or belongs to a coordinator before): the name on disk decides.
pub async fn settle_found(
    coordinator: &Coordinator,
    views: &BTreeMap<Instance, View>,
) -> Result<(), CoordinatorError> {
    let found: BTreeSet<CheckpointId> = views
        .values()
        .filter_map(|view| match view {
            View::Here { status, .. } => wire::run_id(&status.unsettled.as_ref()?.checkpoint_id),
            View::Silent(_) => None,
        })
        .collect();
    for id in found {
        if coordinator.journal.read(|s| s.unsettled.contains_key(&id)) {
            continue;
        }
        let members = coordinator.mesh.instances();
        decide_by_name(coordinator, id, Vec::new(), members, "its coordinator was lost").await?;
    }
    Ok(())
}

/// Looks at the name of a run whose coordinator is gone: a checkpoint is completed, anything else is abandoned, with a tombstone.
/// The run is over then, but for what the participants have to be told.
pub async fn decide_by_name(
    coordinator: &Coordinator,
    id: CheckpointId,
    drop: Vec<Mark>,
    members: Vec<Instance>,
    why: &str,
) -> Result<(), CoordinatorError> {
    let (outcome, owed) = match coordinator.catalogue.bury(id, coordinator.epoch, why).await {
        Ok(Published::Lost(Decided::Checkpoint(_))) => (Outcome::Published, None),
        Ok(Published::Won | Published::Lost(Decided::Tombstone { .. })) => (Outcome::Discarded, None),
        Err(refusal) => (Outcome::Discarded, Some(refusal)),
    };
    tracing::info!(%id, ?outcome, "a run was found without its coordinator");
    let (owed, why) = (owed.map(|refusal| refusal.to_string()), why.to_owned());
    coordinator
        .journal
        .decide(move |state| {
            let mut entries = match (outcome, owed) {
                (Outcome::Published, _) => published_entries(state, id, &drop),
                (Outcome::Discarded, Some(error)) => vec![Entry::Owed(id, format!("{why} ({error})"))],
                (Outcome::Discarded, None) => vec![],
            };
            entries.push(unsettled_entry(id, outcome, drop, members.into_iter().collect()));
            if state.open_run.as_ref().is_some_and(|run| run.id() == id) {
                entries.push(Entry::RunOver(None));
            }
            entries
        })
        .await
}

/// A checkpoint is published: it is remembered, and what Settle drops is marked.
pub fn published_entries(state: &State, id: CheckpointId, drop: &[Mark]) -> Vec<Entry> {
    let mut entries = vec![Entry::Published(id), Entry::Paid(id)];
    let raised = state.book.raised(drop, Why::Retired);
    if !raised.is_empty() {
        entries.push(Entry::MarksVersion(state.marks_version() + 1));
        entries.extend(
            raised
                .into_iter()
                .map(|(rollout, row)| Entry::Rollout(rollout, row)),
        );
    }
    entries
}

/// A capture is decided; these have to be told.
pub fn unsettled_entry(
    id: CheckpointId,
    outcome: Outcome,
    drop: Vec<Mark>,
    pending: BTreeSet<Instance>,
) -> Entry {
    Entry::Unsettled(
        id,
        Unsettled {
            outcome,
            drop,
            pending,
        },
    )
}

/// Tells what was decided to whoever has not answered.
pub async fn settle_decided(
    coordinator: &Coordinator,
    views: &BTreeMap<Instance, View>,
) -> Result<(), CoordinatorError> {
    for (id, unsettled) in coordinator.journal.read(|s| s.unsettled.clone()) {
        let members = coordinator.mesh.instances();
        let peers: Vec<Peer> = unsettled
            .pending
            .iter()
            .filter(|instance| matches!(views.get(*instance), Some(View::Here { .. })))
            .filter_map(|instance| coordinator.mesh.peer(instance))
            .collect();
        let answered = settle(coordinator, &peers, id, &unsettled).await;
        let left: BTreeSet<Instance> = unsettled
            .pending
            .iter()
            .filter(|i| members.contains(i) && !answered.contains(i))
            .cloned()
            .collect();
        if left == unsettled.pending {
            continue;
        }
        settled(
            coordinator,
            id,
            Unsettled {
                pending: left,
                ..unsettled
            },
        )
        .await?;
    }
    Ok(())
}

/// Some have answered: the rest is remembered, and when there is none, what an abandoned run left is deleted.
pub async fn settled(
    coordinator: &Coordinator,
    id: CheckpointId,
    rest: Unsettled,
) -> Result<(), CoordinatorError> {
    let (outcome, done) = (rest.outcome, rest.pending.is_empty());
    let entry = if done {
        Entry::Settled(id)
    } else {
        Entry::Unsettled(id, rest)
    };
    coordinator.journal.commit(vec![entry]).await?;
    let owed = coordinator.journal.read(|s| s.owed.contains_key(&id));
    if done && outcome == Outcome::Discarded && !owed {
        sweep(coordinator, id).await;
    }
    Ok(())
}

async fn sweep(coordinator: &Coordinator, id: CheckpointId) {
    if let Err(refusal) = coordinator.catalogue.sweep(id).await {
        tracing::warn!(%id, %refusal, "what an abandoned checkpoint left is not deleted");
    }
}

/// Settles on all at once; replies who answered.
pub async fn settle(
    coordinator: &Coordinator,
    peers: &[Peer],
    id: CheckpointId,
    unsettled: &Unsettled,
) -> BTreeSet<Instance> {
    let outcome = match unsettled.outcome {
        Outcome::Published => pb::Outcome::Published,
        Outcome::Discarded => pb::Outcome::Discarded,
    };
    let published = unsettled.outcome == Outcome::Published;
    let request = pb::SettleRequest {
        fence: None,
        checkpoint_id: id.to_string(),
        outcome: outcome.into(),
        drop: if published {
            unsettled.drop.iter().map(|m| m.to_wire()).collect()
        } else {
            vec![]
        },
        marks_version: coordinator.journal.read(State::marks_version),
    };
    each(peers, |peer| {
        let request = request.clone();
        async move { peer.settle(request, END_BOUND).await }
    })
    .await
    .into_iter()
    .filter_map(|(peer, reply)| match reply {
        Ok(_) => Some(peer.instance),
        Err(refusal) => {
            tracing::warn!(instance = %peer.instance, %id, %refusal, "not settled yet");
            None
        }
    })
    .collect()
}

/// Links the tombstones that the root could not take before.
pub async fn pay_tombstones(coordinator: &Coordinator) -> Result<(), CoordinatorError> {
    for (id, why) in coordinator.journal.read(|s| s.owed.clone()) {
        match coordinator.catalogue.bury(id, coordinator.epoch, &why).await {
            Ok(Published::Lost(Decided::Checkpoint(_))) => {
                // The link was made after all, and nothing but the sweep deletes manifests: it is whole, and stands.
                coordinator
                    .journal
                    .decide(move |state| published_entries(state, id, &[]))
                    .await?;
            }
            Ok(_) => {
                coordinator.journal.commit(vec![Entry::Paid(id)]).await?;
                if !coordinator.journal.read(|s| s.unsettled.contains_key(&id)) {
                    sweep(coordinator, id).await;
                }
            }
            Err(refusal) => {
                tracing::debug!(%id, %refusal, "a tombstone is owed still");
                return Ok(());
            }
        }
    }
    Ok(())
}
