//! How a run of restore begins: verify and plan, or go on with what was activated.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use belay_core::{
    coordinator::{
        plan::{self, Scope},
        restore_run::RestoreRun,
    },
    ids::{CheckpointId, ExecutionId},
    parts::PlannedEpisode,
};
use belay_proto::checkpoint as pb;
use belay_store::CheckpointFile;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::{Driver, select, select::Which, stage};
use crate::{
    checkpoint::Begun,
    coordinator::{Coordinator, Turn},
    error::CoordinatorError,
    events::{Events, RestoreEvent},
    journal::{Entry, OpenRun},
    keeper::{self, STATUS_BOUND},
};

/// What a restore is asked for with.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// Which checkpoint.
    pub which: Which,
    /// Which rollouts of it.
    pub scope: Scope,
    /// One budget for the run until it is decided.
    pub timeout: Duration,
}

impl Default for RestoreOptions {
    fn default() -> Self {
        Self {
            which: Which::Newest,
            scope: Scope::default(),
            timeout: Duration::from_secs(600),
        }
    }
}

/// A mesh that has just been started may take so long to answer.
const MEMBERS_BOUND: Duration = Duration::from_secs(10);

/// Verifies, plans and begins; or refuses with the mesh untouched. The run goes on in a task of its own.
pub async fn begin(
    coordinator: &Arc<Coordinator>,
    options: RestoreOptions,
) -> Result<Begun<RestoreEvent>, CoordinatorError> {
    let began = Instant::now();
    let turn = coordinator
        .turn("a restore", options.timeout.min(Duration::from_secs(10)), false)
        .await?;
    let file = select::select(coordinator, &options.which).await?;
    let verified = began.elapsed();
    wait_for_members(coordinator, &turn, options.timeout.min(MEMBERS_BOUND)).await?;
    let (events, told) = Events::new();
    let detail = format!("checkpoint {}, {} episodes", file.id, file.episodes.len());
    events.tell(stage("verify", verified, detail));
    let deadline = began + options.timeout;
    let mut driver = plan(coordinator, &turn, file, &options.scope, events, began, deadline).await?;
    let id = driver.id;
    let coordinator = coordinator.clone();
    tokio::spawn(async move {
        let (run, first) = RestoreRun::begin(coordinator.mesh.instances());
        driver.drive(run, first, &turn).await;
        drop(turn);
    });
    Ok((id, told))
}

/// Completes a restore that a coordinator before has activated.
pub fn complete(
    coordinator: &Arc<Coordinator>,
    id: CheckpointId,
    source: CheckpointId,
    plan: Vec<PlannedEpisode>,
) {
    // Nobody else runs yet: the turn is there.
    let Some(turn) = coordinator.try_turn() else {
        return;
    };
    let commands = coordinator.opened(&turn, id, "restore");
    let coordinator = coordinator.clone();
    tokio::spawn(async move {
        let now = Instant::now();
        let (run, first) = RestoreRun::resume(coordinator.mesh.instances());
        let driver = Driver {
            id,
            source,
            // Read again when somebody has to be staged again.
            file: None,
            plan,
            events: Events::new().0,
            commands,
            began: now,
            deadline: now,
            activated: Some(now),
            pins: BTreeMap::new(),
            prefixes_lost: 0,
            doubted: BTreeSet::new(),
            removed: Vec::new(),
            aborting: None,
            coordinator,
        };
        let mut driver = driver;
        driver.coordinator.mesh.refresh(1, STATUS_BOUND).await;
        driver.drive(run, first, &turn).await;
        drop(turn);
    });
}

/// Waits until every member answers, and is where a restore may begin.
async fn wait_for_members(
    coordinator: &Coordinator,
    turn: &Turn,
    bound: Duration,
) -> Result<(), CoordinatorError> {
    let deadline = Instant::now() + bound;
    loop {
        keeper::tend(coordinator, turn).await?;
        let views = coordinator.mesh.refresh(1, STATUS_BOUND).await;
        match keeper::not_ready(&views, &[pb::Phase::Idle, pb::Phase::Joining]) {
            None => return Ok(()),
            Some(refusal) if Instant::now() >= deadline => return Err(refusal.into()),
            Some(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Makes the plan, and writes down the run and the attempts that it hands out.
pub(super) async fn plan(
    coordinator: &Arc<Coordinator>,
    turn: &Turn,
    file: CheckpointFile,
    scope: &Scope,
    events: Events<RestoreEvent>,
    began: Instant,
    deadline: Instant,
) -> Result<Driver, CoordinatorError> {
    let planning = Instant::now();
    let saved = select::saved(&file);
    let plan = coordinator.journal.read(|state| {
        plan::plan(
            file.id,
            &saved,
            scope,
            &state.book,
            &|server, rollout| coordinator.mesh.place(server, rollout),
            &mut || ExecutionId(Uuid::now_v7()),
        )
    })?;
    let (id, source) = (coordinator.next_id(), file.id);
    let handed_out = plan.episodes.clone();
    coordinator
        .journal
        .decide(move |state| {
            let rows = state
                .book
                .handed_out(handed_out.iter().map(|e| (&e.saved.rollout, e.attempt)));
            let run = OpenRun::Restore {
                id,
                source,
                activated: None,
            };
            rows.into_iter()
                .map(|(r, row)| Entry::Rollout(r, row))
                .chain([Entry::Run(run)])
                .collect()
        })
        .await?;
    let commands = coordinator.opened(turn, id, "restore");
    let detail = format!("{} episodes, {} retired", plan.episodes.len(), plan.retired.len());
    events.tell(RestoreEvent::Plan {
        source,
        episodes: plan.episodes.clone(),
        retired: plan.retired,
    });
    events.tell(stage("plan", planning.elapsed(), detail));
    Ok(Driver {
        pins: coordinator.mesh.processes(&coordinator.mesh.views()),
        coordinator: coordinator.clone(),
        id,
        source,
        file: Some(file),
        plan: plan.episodes,
        events,
        commands,
        began,
        deadline,
        activated: None,
        prefixes_lost: 0,
        doubted: BTreeSet::new(),
        removed: Vec::new(),
        aborting: None,
    })
}
