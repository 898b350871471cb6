//! What is done between runs: who is new is joined, what is closed without a run is reopened, what is owed is paid.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use belay_core::{
    coordinator::opening::waits_for_restore,
    ids::{CheckpointId, Instance},
    refusal::Refusal,
};
use belay_mesh::shutdown::Shutdown;
use belay_mesh::wire::ToWire as _;
use belay_proto::checkpoint as pb;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::{
    coordinator::{Coordinator, Turn},
    error::CoordinatorError,
    journal::{Entry, State},
    mesh::{View, seen},
    peer::{Peer, each},
    retire, settle, wire,
};

/// No member holds the others up for longer.
pub const STATUS_BOUND: Duration = Duration::from_secs(2);
/// For calls that end something.
pub const END_BOUND: Duration = Duration::from_secs(5);
/// What some server has not finished is asked for again so often.
const UNFINISHED_PAUSE: Duration = Duration::from_secs(5);

/// Looks after the mesh until `shutdown`.
pub async fn keep(coordinator: Arc<Coordinator>, shutdown: Shutdown) {
    let mut unfinished_at = Instant::now();
    loop {
        let mut pause = coordinator.config.poll;
        if let Some(turn) = coordinator.try_turn() {
            match tend(&coordinator, &turn).await {
                Ok(true) => {}
                Ok(false) => pause /= 5,
                Err(error) => tracing::error!(%error, "between runs"),
            }
            if Instant::now() >= unfinished_at {
                retire::resume_unfinished(&coordinator, &turn).await;
                unfinished_at = Instant::now() + UNFINISHED_PAUSE;
            }
        } else {
            coordinator.mesh.refresh(1, STATUS_BOUND).await;
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = sleep(pause) => {}
        }
    }
}

/// The mesh waits for Restore or Open.
pub fn waits(coordinator: &Coordinator, views: &BTreeMap<Instance, View>) -> bool {
    !coordinator.open_anyway.load(Ordering::Relaxed)
        && coordinator
            .journal
            .read(|state| waits_for_restore(!state.published.is_empty(), &seen(views), &state.opened))
}

/// One look at every member, and what follows from it. True when all is as it should be.
pub async fn tend(coordinator: &Coordinator, _turn: &Turn) -> Result<bool, CoordinatorError> {
    let views = coordinator.mesh.refresh(1, STATUS_BOUND).await;
    let open = !waits(coordinator, &views);
    let mut well = true;
    let (mut closed, mut behind) = (Vec::new(), Vec::new());
    let (marks_version, members_version) = (
        coordinator.journal.read(State::marks_version),
        coordinator.mesh.version(),
    );
    for (instance, view) in &views {
        let View::Here { incarnation, status } = view else {
            well = false;
            continue;
        };
        let Some(peer) = coordinator.mesh.process(instance, *incarnation) else {
            continue;
        };
        if let Some(id) = wire::run_id(&status.checkpoint_id) {
            closed.push((peer.clone(), id));
        }
        let joining = status.phase() == pb::Phase::Joining;
        if (joining && (open || status.coordinator_epoch < coordinator.epoch))
            || status.coordinator_epoch != coordinator.epoch
            || status.marks_version < marks_version
            || status.members_version < members_version
        {
            behind.push(peer);
        }
    }
    well &= closed.is_empty() && behind.is_empty();
    abandon_strays(&closed).await;
    let opened = join(coordinator, &behind, open).await;
    record_opened(coordinator, &views, opened).await?;
    settle::settle_found(coordinator, &views).await?;
    settle::settle_decided(coordinator, &views).await?;
    settle::pay_tombstones(coordinator).await?;
    Ok(well)
}

/// An open id is no run of ours (whoever tends has the turn): a late call must not leave a closed server behind.
async fn abandon_strays(closed: &[(Peer, CheckpointId)]) {
    join_all(closed.iter().map(|(peer, id)| async move {
        let request = pb::ResumeRequest {
            checkpoint_id: id.to_string(),
            decision: pb::Decision::Abandon.into(),
            ..Default::default()
        };
        if let Err(refusal) = peer.resume(request, END_BOUND).await {
            tracing::warn!(instance = %peer.instance, %id, %refusal, "a run without a coordinator is not abandoned yet");
        }
    }))
    .await;
}

/// Tells these participants epoch, marks and members; replies who is open now.
pub async fn join(coordinator: &Coordinator, behind: &[Peer], open: bool) -> Vec<Peer> {
    if behind.is_empty() {
        return Vec::new();
    }
    let marks = coordinator.journal.read(mark_set);
    let members = coordinator.mesh.member_list();
    let joined = each(behind, |peer| {
        let request = pb::JoinRequest {
            fence: None,
            marks: Some(marks.clone()),
            members: Some(members.clone()),
            open,
        };
        async move { peer.join(request, END_BOUND).await }
    })
    .await;
    let mut opened = Vec::new();
    for (peer, reply) in joined {
        match reply {
            Ok(reply) if reply.phase() == pb::Phase::Idle => opened.push(peer),
            Ok(_) => {}
            Err(refusal) => tracing::warn!(instance = %peer.instance, %refusal, "not joined yet"),
        }
    }
    opened
}

/// All marks, as Join and Restore bring them.
pub fn mark_set(state: &State) -> pb::MarkSet {
    pb::MarkSet {
        version: state.marks_version(),
        marks: state.marks().iter().map(|m| m.to_wire()).collect(),
    }
}

/// The processes that are open are those that a later start compares with.
async fn record_opened(
    coordinator: &Coordinator,
    views: &BTreeMap<Instance, View>,
    opened: Vec<Peer>,
) -> Result<(), CoordinatorError> {
    let idle = views.iter().filter_map(|(instance, view)| match view {
        View::Here { incarnation, status } if status.phase() != pb::Phase::Joining => {
            // Staged and not decided is not open.
            (status.phase() != pb::Phase::Restored).then(|| (instance.clone(), *incarnation))
        }
        _ => None,
    });
    let open: Vec<_> = opened
        .into_iter()
        .map(|p| (p.instance, p.incarnation))
        .chain(idle)
        .collect();
    coordinator
        .journal
        .decide(move |state| {
            open.into_iter()
                .filter(|(instance, incarnation)| state.opened.get(instance) != Some(incarnation))
                .map(|(instance, incarnation)| Entry::Opened(instance, incarnation))
                .collect()
        })
        .await
}

/// Why a run cannot begin: the first member that is not open, or not there.
pub fn not_ready(views: &BTreeMap<Instance, View>, legal: &[pb::Phase]) -> Option<Refusal> {
    use belay_core::refusal::Reason;
    views.iter().find_map(|(instance, view)| match view {
        View::Silent(refusal) => Some(refusal.clone()),
        View::Here { status, .. } => {
            let unsettled = status.unsettled.as_ref();
            if !legal.contains(&status.phase()) || !status.checkpoint_id.is_empty() {
                let phase = status
                    .phase()
                    .as_str_name()
                    .trim_start_matches("PHASE_")
                    .to_owned();
                let hint = match status.phase() {
                    pb::Phase::Joining => {
                        "restore a checkpoint (`belay restore`), or open the mesh with nothing (`belay open`)"
                    }
                    _ => "wait for the run that holds it, or for its lease",
                };
                let message = format!("{instance} is in {phase}, where this run cannot begin: {hint}");
                Some(
                    Refusal::new(Reason::InvalidPhase, message)
                        .with("phase", phase)
                        .instance(instance),
                )
            } else {
                unsettled.map(|capture| {
                    Refusal::new(
                        Reason::CheckpointConflict,
                        format!(
                            "{instance} has not settled checkpoint {}: it is being told; try again",
                            capture.checkpoint_id
                        ),
                    )
                    .instance(instance)
                    .retry(Duration::from_secs(1))
                })
            }
        }
    })
}
