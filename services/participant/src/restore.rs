//! Restore: reads the shards, and stages what is placed here.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use belay_core::{
    ids::{CheckpointId, Episode, Kind},
    participant::{Fence, Restore, RestoreReport, RestoreTurn},
    parts::PlannedEpisode,
    refusal::{Reason, Refusal},
};
use belay_store::ShardRef;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    control::{Control, Inner, StagedRecords, panic_text},
    owner::StateOwner,
};

type StageResult = Option<Result<RestoreReport, Refusal>>;

/// A restore that is being staged, or whose staging has ended.
pub(crate) struct StagingTask {
    pub(crate) id: CheckpointId,
    /// The run has ended: nobody wants the records any more.
    pub(crate) over: CancellationToken,
    result: watch::Receiver<StageResult>,
}

impl<O: StateOwner> Inner<O> {
    pub(crate) async fn restore(
        self: &Arc<Self>,
        fence: Fence,
        call: Restore,
        timeout: Duration,
    ) -> Result<RestoreReport, Refusal> {
        let id = call.id;
        let deadline = Instant::now() + timeout;
        let mut result = {
            let mut control = self.control();
            match self.turn(&mut control, |machine, now| machine.restore(now, &fence, &call))? {
                RestoreTurn::Recorded(report) => return Ok(report),
                RestoreTurn::Stage => self.start_staging(&mut control, call),
                RestoreTurn::Reading => self.staging_of(&control, id)?,
            }
        };
        match timeout_at(deadline, result.wait_for(Option::is_some)).await {
            Ok(Ok(result)) => result.clone().unwrap_or_else(|| Err(self.staging_lost(id))),
            Ok(Err(_)) => Err(self.staging_lost(id)),
            Err(_) => Err(self
                .deadline_passed(format!(
                    "{} has not staged its share of {id} after {timeout:?}; it goes on: call again, or ABANDON",
                    self.shared.instance()
                ))
                .with("checkpoint_id", id)),
        }
    }

    fn start_staging(
        self: &Arc<Self>,
        control: &mut Control<O>,
        call: Restore,
    ) -> watch::Receiver<StageResult> {
        let (tell, result) = watch::channel(None);
        let over = CancellationToken::new();
        control.staging = Some(StagingTask {
            id: call.id,
            over: over.clone(),
            result: result.clone(),
        });
        let inner = self.clone();
        self.tasks.spawn(async move {
            let id = call.id;
            // A task of its own, so that a panic of the owner's is an answer like any other.
            let work = tokio::spawn({
                let (inner, over) = (inner.clone(), over.clone());
                async move { inner.read_and_stage(call, &over).await }
            });
            let outcome = match work.await {
                Ok(outcome) => outcome,
                Err(failed) => Err(inner.staging_panicked(id, failed)),
            };
            tell.send_replace(Some(inner.staging_ended(id, outcome)));
        });
        result
    }

    fn staging_of(
        &self,
        control: &Control<O>,
        id: CheckpointId,
    ) -> Result<watch::Receiver<StageResult>, Refusal> {
        let staging = control.staging.as_ref().filter(|staging| staging.id == id);
        staging
            .map(|staging| staging.result.clone())
            .ok_or_else(|| self.staging_lost(id))
    }

    /// What was staged is kept, if its run is still open.
    fn staging_ended(
        self: &Arc<Self>,
        id: CheckpointId,
        outcome: Result<(StagedRecords<O::Staged>, RestoreReport), Refusal>,
    ) -> Result<RestoreReport, Refusal> {
        let mut control = self.control();
        match outcome {
            Ok((records, report)) => {
                // Kept before the machine says that it is: a KEEP can follow at once.
                control.staged = Some((id, records));
                match self.turn(&mut control, |machine, now| machine.staged(now, id, report)) {
                    Some(report) => Ok(report),
                    None => {
                        control.staged = None;
                        Err(self.staging_stale(id))
                    }
                }
            }
            Err(refusal) => {
                warn!(instance = %self.shared.instance(), restore = %id, "staging failed: {refusal}");
                self.turn(&mut control, |machine, _| machine.stage_failed(id));
                Err(refusal)
            }
        }
    }

    async fn read_and_stage(
        self: Arc<Self>,
        call: Restore,
        over: &CancellationToken,
    ) -> Result<(StagedRecords<O::Staged>, RestoreReport), Refusal> {
        let id = call.id;
        let stop = Arc::new(AtomicBool::new(false));
        let reading = {
            let (inner, stop) = (self.clone(), stop.clone());
            tokio::task::spawn_blocking(move || inner.read_shards(&call, &stop))
        };
        let read = tokio::select! {
            read = reading => read,
            () = over.cancelled() => {
                stop.store(true, Ordering::Release);
                return Err(self.staging_stale(id));
            }
        };
        let (mut records, bytes) = match read {
            Ok(read) => read?,
            Err(failed) => return Err(self.staging_panicked(id, failed)),
        };
        let prefixes_lost = tokio::select! {
            lost = self.owner.staged(&mut records) => lost,
            () = over.cancelled() => return Err(self.staging_stale(id)),
        };
        let report = RestoreReport {
            staged: records.len() as u64,
            bytes,
            prefixes_lost,
            took: Duration::ZERO,
        };
        Ok((records, report))
    }

    /// Blocks: reads every shard of this server, and stages the planned episodes that are placed on this instance.
    fn read_shards(
        &self,
        call: &Restore,
        stop: &AtomicBool,
    ) -> Result<(StagedRecords<O::Staged>, u64), Refusal> {
        let instance = self.shared.instance();
        let planned = self.placed_here(&call.plan);
        let mut read = HashSet::with_capacity(planned.len());
        let store = self.open_store()?;
        let (mut staged, mut bytes) = (Vec::with_capacity(planned.len()), 0u64);
        for shard in &call.shards {
            let named = ShardRef::named(shard.instance.clone(), shard.manifest.clone(), shard.digest);
            let records = store.read_shard(call.source, &named, &|episode| planned.contains_key(episode))?;
            for record in records {
                if stop.load(Ordering::Acquire) {
                    return Err(self.staging_stale(call.id));
                }
                let Some(plan) = planned.get(&record.episode) else {
                    continue;
                };
                if !read.insert(record.episode.clone()) {
                    return Err(self.twice(call, &record.episode));
                }
                bytes += record.payload.len() as u64;
                let ready = self
                    .owner
                    .stage(plan, record.payload)
                    .map_err(|refusal| refusal.episode(&record.episode).instance(instance))?;
                staged.push(((*plan).clone(), ready));
            }
        }
        // A policy model begins a ledger at the first model call, so it may have nothing of an episode.
        match planned.keys().filter(|episode| !read.contains(episode)).min() {
            Some(missing) if instance.kind != Kind::PolicyModel => Err(self.missing(call, missing)),
            _ => Ok((staged, bytes)),
        }
    }

    fn placed_here<'a>(&self, plan: &'a [PlannedEpisode]) -> HashMap<Episode, &'a PlannedEpisode> {
        let instance = self.shared.instance();
        self.shared.read(|machine, _| {
            plan.iter()
                .filter(|planned| planned.placed(instance) == Some(instance))
                .filter(|planned| !machine.marks().refuses(&planned.episode()))
                .map(|planned| (planned.saved.clone(), planned))
                .collect()
        })
    }

    fn missing(&self, call: &Restore, episode: &Episode) -> Refusal {
        let (instance, source) = (self.shared.instance(), call.source);
        Refusal::new(
            Reason::InvalidCheckpoint,
            format!(
                "the plan of {} places {episode} on {instance}, but no shard of {source} that it lists holds its record; restore another checkpoint",
                call.id
            ),
        )
        .episode(episode)
        .instance(instance)
        .with("checkpoint_id", source)
    }

    fn twice(&self, call: &Restore, episode: &Episode) -> Refusal {
        let instance = self.shared.instance();
        Refusal::new(
            Reason::InvalidCheckpoint,
            format!(
                "two records of {episode} are in the shards of {} that {instance} was given; restore another checkpoint",
                call.source
            ),
        )
        .episode(episode)
        .instance(instance)
        .with("checkpoint_id", call.source)
    }

    fn staging_stale(&self, id: CheckpointId) -> Refusal {
        Refusal::new(
            Reason::StaleCheckpoint,
            format!(
                "Restore of {id}: it was abandoned while {} was staging; begin a new run",
                self.shared.instance()
            ),
        )
        .instance(self.shared.instance())
        .with("checkpoint_id", id)
    }

    fn staging_panicked(&self, id: CheckpointId, failed: tokio::task::JoinError) -> Refusal {
        let text = match failed.try_into_panic() {
            Ok(panic) => panic_text(&*panic),
            Err(cancelled) => cancelled.to_string(),
        };
        let instance = self.shared.instance();
        Refusal::new(
            Reason::Internal,
            format!("{instance} failed while it staged {id}: {text}; this is a defect, see its log"),
        )
        .instance(instance)
        .with("checkpoint_id", id)
    }

    fn staging_lost(&self, id: CheckpointId) -> Refusal {
        let instance = self.shared.instance();
        Refusal::new(
            Reason::Internal,
            format!("{instance} has lost the task that stages {id}; ABANDON it and restore again"),
        )
        .instance(instance)
        .with("checkpoint_id", id)
    }
}
