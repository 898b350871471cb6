//! Retire and Forget (protocol 4): journaled first, asked of everybody in order, and resumed between runs until all have answered.

use std::{collections::BTreeSet, time::Duration};

use belay_core::{
    coordinator::{attempts::Why, budget, orders},
    ids::{Attempt, Instance, RolloutId},
    parts::Mark,
    refusal::{Blocker, Reason, Refusal},
};
use belay_mesh::wire::ToWire as _;
use belay_proto::checkpoint as pb;
use tokio::time::Instant;

use crate::{
    coordinator::{Coordinator, Turn},
    error::CoordinatorError,
    journal::{Entry, State, Unfinished},
    keeper::{END_BOUND, STATUS_BOUND},
    peer::{Peer, each},
    wire,
};

/// The participant's own timeout ends first.
const MARGIN: Duration = Duration::from_millis(500);
/// For what is tried again between runs.
const AGAIN: Duration = Duration::from_millis(500);

/// What a retire came to.
#[derive(Clone, Debug, Default)]
pub struct Retired {
    /// The attempt to send next, in the order asked for.
    pub next: Vec<(RolloutId, Attempt)>,
    /// What still runs.
    pub unfinished: Vec<Blocker>,
    /// Who did not answer.
    pub silent: Vec<Instance>,
}

/// Stops these attempts and all earlier ones, on every server, for at most `bound`; refuses them until Forget.
pub async fn retire(
    coordinator: &Coordinator,
    turn: &Turn,
    marks: Vec<Mark>,
    bound: Duration,
) -> Result<Retired, CoordinatorError> {
    let asked = marks.clone();
    let number = coordinator
        .journal
        .decide_on(move |state| {
            let raised = state.book.raised(&marks, Why::Retired);
            let number = next_number(state);
            let mut entries = vec![Entry::Unfinished(number, Unfinished::Retire { marks })];
            if !raised.is_empty() {
                entries.push(Entry::MarksVersion(state.marks_version() + 1));
            }
            entries.extend(
                raised
                    .into_iter()
                    .map(|(rollout, row)| Entry::Rollout(rollout, row)),
            );
            (entries, number)
        })
        .await?;
    coordinator.mesh.refresh(1, STATUS_BOUND.min(bound)).await;
    let (unfinished, silent) = ask_retire(coordinator, turn, number, bound).await?;
    let next = coordinator.journal.read(|state| {
        asked
            .iter()
            .map(|mark| (mark.rollout.clone(), state.book.next_attempt(&mark.rollout, None)))
            .collect()
    });
    Ok(Retired {
        next,
        unfinished,
        silent,
    })
}

fn next_number(state: &State) -> u64 {
    state
        .unfinished
        .last_key_value()
        .map_or(1, |(number, _)| number + 1)
}

/// The current processes of a stage, and the members that do not answer.
fn peers(coordinator: &Coordinator, stage: &[Instance]) -> (Vec<Peer>, Vec<Instance>) {
    let (mut here, mut silent) = (Vec::new(), Vec::new());
    for instance in stage {
        match coordinator.mesh.peer(instance) {
            Some(peer) => here.push(peer),
            None => silent.push(instance.clone()),
        }
    }
    (here, silent)
}

/// Asks everybody in order. Complete, and no longer in the journal, when every member has answered and nothing runs.
async fn ask_retire(
    coordinator: &Coordinator,
    _turn: &Turn,
    number: u64,
    bound: Duration,
) -> Result<(Vec<Blocker>, Vec<Instance>), CoordinatorError> {
    let (unfinished, version) = coordinator
        .journal
        .read(|s| (s.unfinished.get(&number).cloned(), s.marks_version()));
    let Some(Unfinished::Retire { marks }) = unfinished else {
        return Ok(Default::default());
    };
    let deadline = Instant::now() + bound;
    let stages = orders::stages(orders::RETIRE, &coordinator.mesh.instances());
    let (mut unfinished, mut silent) = (Vec::new(), Vec::new());
    for (n, stage) in stages.iter().enumerate() {
        let later = u32::try_from(stages.len() - n - 1).unwrap_or_default();
        let share = budget::share(deadline.saturating_duration_since(Instant::now()), later)
            .max(Duration::from_millis(50));
        let (here, missing) = peers(coordinator, stage);
        silent.extend(missing);
        let request = pb::RetireRequest {
            fence: None,
            marks: marks.iter().map(|m| m.to_wire()).collect(),
            marks_version: version,
            timeout: Some(share.to_wire()),
        };
        let replies = each(&here, |peer| {
            let request = request.clone();
            async move { peer.retire(request, share + MARGIN).await }
        })
        .await;
        for (peer, reply) in replies {
            match reply {
                Ok(reply) => unfinished.extend(wire::blockers(reply.unfinished)),
                Err(refusal) => {
                    tracing::warn!(instance = %peer.instance, %refusal, "a retire is not answered yet");
                    silent.push(peer.instance);
                }
            }
        }
    }
    if unfinished.is_empty() && silent.is_empty() {
        coordinator.journal.commit(vec![Entry::Finished(number)]).await?;
    }
    Ok((unfinished, silent))
}

/// Drops what is remembered of rollouts that are over. Replies how many marks were dropped.
pub async fn forget(
    coordinator: &Coordinator,
    turn: &Turn,
    rollouts: Vec<RolloutId>,
) -> Result<u64, CoordinatorError> {
    let asked: BTreeSet<&RolloutId> = rollouts.iter().collect();
    let running = coordinator.journal.read(|s| {
        let retiring = s.being_retired().find(|rollout| asked.contains(rollout));
        retiring.cloned()
    });
    if let Some(rollout) = running {
        return Err(Refusal::new(
            Reason::RetireIncomplete,
            format!("{rollout} is being retired and some server has not finished: `belay status` names it; forget it when the retire is complete"),
        )
        .with("rollout_id", rollout)
        .retry(Duration::from_secs(1))
        .into());
    }
    coordinator.mesh.refresh(1, STATUS_BOUND).await;
    let all = coordinator.mesh.instances();
    let (here, silent) = peers(coordinator, &all);
    if let Some(instance) = silent.first() {
        return Err(Refusal::new(
            Reason::PeerUnreachable,
            format!("{instance} does not answer, so nobody knows what lives there: start it, or remove it from the mesh, then forget"),
        )
        .instance(instance)
        .into());
    }
    let request = |version, check| pb::ForgetRequest {
        fence: None,
        rollout_ids: rollouts.iter().map(|r| r.as_str().into()).collect(),
        marks_version: version,
        check,
    };
    let version = coordinator.journal.read(|s| s.marks_version() + 1);
    let check = request(version, true);
    for (_, reply) in each(&here, |peer| {
        let check = check.clone();
        async move { peer.forget(check, END_BOUND).await }
    })
    .await
    {
        reply?;
    }
    let number = coordinator.journal.read(next_number);
    let unfinished = Unfinished::Forget {
        rollouts: rollouts.clone(),
        version,
    };
    coordinator
        .journal
        .commit(vec![Entry::Unfinished(number, unfinished)])
        .await?;
    let dropped = coordinator.journal.read(|s| {
        rollouts
            .iter()
            .filter(|r| s.book.rollouts.get(r).is_some_and(|row| row.mark.is_some()))
            .count() as u64
    });
    ask_forget(coordinator, turn, number).await?;
    Ok(dropped)
}

/// Asks everybody in order: the mark goes last where new work comes from.
async fn ask_forget(coordinator: &Coordinator, _turn: &Turn, number: u64) -> Result<(), CoordinatorError> {
    let Some(Unfinished::Forget { rollouts, version }) =
        coordinator.journal.read(|s| s.unfinished.get(&number).cloned())
    else {
        return Ok(());
    };
    let request = pb::ForgetRequest {
        fence: None,
        rollout_ids: rollouts.iter().map(|r| r.as_str().into()).collect(),
        marks_version: version,
        check: false,
    };
    for stage in orders::stages(orders::FORGET, &coordinator.mesh.instances()) {
        let (here, silent) = peers(coordinator, &stage);
        let replies = each(&here, |peer| {
            let request = request.clone();
            async move { peer.forget(request, END_BOUND).await }
        })
        .await;
        let failed = replies
            .into_iter()
            .find_map(|(peer, reply)| Some((peer.instance, reply.err()?)));
        if let Some((instance, refusal)) = failed {
            tracing::warn!(%instance, %refusal, "a forget is not answered yet");
            return Ok(());
        }
        if let Some(instance) = silent.first() {
            tracing::warn!(%instance, "a forget waits for a server that does not answer");
            return Ok(());
        }
    }
    coordinator
        .journal
        .decide(move |state| {
            let until = state.published.last().copied();
            let mut entries = vec![
                Entry::Finished(number),
                Entry::MarksVersion(version.max(state.book.version)),
            ];
            for rollout in rollouts {
                if let Some(until) = until {
                    entries.push(Entry::Forgotten(rollout.clone(), until));
                }
                entries.push(Entry::RolloutGone(rollout));
            }
            entries
        })
        .await
}

/// Tries once more what some server has not answered.
pub async fn resume_unfinished(coordinator: &Coordinator, turn: &Turn) {
    let numbers: Vec<(u64, bool)> = coordinator.journal.read(|s| {
        s.unfinished
            .iter()
            .map(|(n, u)| (*n, matches!(u, Unfinished::Retire { .. })))
            .collect()
    });
    for (number, is_retire) in numbers {
        let done = match is_retire {
            true => ask_retire(coordinator, turn, number, AGAIN).await.map(drop),
            false => ask_forget(coordinator, turn, number).await,
        };
        if let Err(error) = done {
            tracing::error!(%error, "an unfinished retire or forget");
        }
    }
}
