//! The write of a capture, in the background: twice at most, and not at all once it is told to stop.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use belay_core::{
    ids::{CheckpointId, Episode, ExecutionId},
    participant::{Durable, Fence},
    parts::PartSummary,
    refusal::{Reason, Refusal},
};
use belay_store::{CheckpointStore, RecordToWrite, ShardHeader, StoreError};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tracing::warn;

use crate::{
    control::{Control, Inner, panic_text},
    owner::{CapturedPart, EncodeRecord, StateOwner},
};

/// How long a Resume ABANDON or a Settle DISCARDED waits for the writer to stop before it asks to be called again.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// What a capture refers to, and since when.
pub(crate) struct CapturedRecords {
    records: Vec<(Episode, ExecutionId, Arc<dyn EncodeRecord>)>,
    at: Duration,
}

impl CapturedRecords {
    /// Takes an owner's parts apart: what the machine decides by, and what is written.
    pub(crate) fn split(parts: Vec<CapturedPart>, at: Duration) -> (Vec<(PartSummary, u64)>, Self) {
        let mut records = Vec::with_capacity(parts.len());
        let summaries = parts
            .into_iter()
            .map(|part| {
                let summary = part.summary;
                records.push((summary.episode.clone(), summary.execution, part.record));
                (summary, part.size)
            })
            .collect();
        (summaries, Self { records, at })
    }

    /// Only the records of these parts.
    pub(crate) fn keep(mut self, parts: &[PartSummary]) -> Self {
        if parts.len() < self.records.len() {
            let kept: HashSet<&Episode> = parts.iter().map(|part| &part.episode).collect();
            self.records.retain(|(episode, ..)| kept.contains(episode));
        }
        self
    }

    fn to_write(&self) -> impl Iterator<Item = RecordToWrite> + '_ {
        self.records
            .iter()
            .map(|(episode, execution, record)| RecordToWrite {
                episode: episode.clone(),
                execution: *execution,
                payload: record.encode(),
            })
    }
}

/// A write that has not ended.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    ended: watch::Receiver<bool>,
}

impl Writer {
    /// For good: the write ends at the next record, and leaves no manifest.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl<O: StateOwner> Inner<O> {
    /// Starts to write what was captured.
    pub(crate) fn start_persist(self: &Arc<Self>, control: &mut Control<O>, id: CheckpointId) {
        let Some((_, records)) = control.capture.as_ref().filter(|(captured, _)| *captured == id) else {
            return;
        };
        let records = records.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, watch_ended) = watch::channel(false);
        control.writers.insert(
            id,
            Writer {
                stop: stop.clone(),
                ended: watch_ended,
            },
        );
        let inner = self.clone();
        self.tasks.spawn(async move {
            let writing = {
                let inner = inner.clone();
                tokio::task::spawn_blocking(move || inner.write(id, &records, &stop))
            };
            let result = match writing.await {
                Ok(result) => result,
                Err(failed) => Some(Err(inner.write_panicked(id, failed))),
            };
            let mut control = inner.control();
            control.writers.remove(&id);
            if let Some(result) = result {
                inner.turn(&mut control, |machine, _| machine.persisted(id, result));
            }
            ended.send_replace(true);
        });
    }

    /// Blocks. `None`: it was told to stop.
    fn write(
        &self,
        id: CheckpointId,
        records: &CapturedRecords,
        stop: &AtomicBool,
    ) -> Option<Result<Durable, Refusal>> {
        let header = ShardHeader {
            id,
            instance: self.shared.instance().clone(),
            incarnation: self.shared.incarnation(),
        };
        let attempt = || {
            self.open_store()?
                .write_shard(&header, &mut records.to_write(), stop)
        };
        // Once more, into new files, with the same capture: a file whose sync failed is not good again.
        let written = attempt().or_else(|error| match error {
            StoreError::Stopped { .. } => Err(error),
            error => {
                warn!(instance = %header.instance, checkpoint = %id, "the write failed and is tried once more: {error}");
                attempt()
            }
        });
        match written {
            Ok(shard) => Some(Ok(Durable {
                manifest: shard.manifest,
                digest: shard.digest,
                bytes: shard.bytes,
                records: shard.records,
                took: self.shared.now().saturating_sub(records.at),
            })),
            Err(StoreError::Stopped { .. }) => None,
            Err(error) => {
                warn!(instance = %header.instance, checkpoint = %id, "the write failed twice: {error}");
                Some(Err(Refusal::from(error)
                    .instance(&header.instance)
                    .with("checkpoint_id", id)))
            }
        }
    }

    /// Blocks.
    pub(crate) fn open_store(&self) -> Result<CheckpointStore, StoreError> {
        let options = &self.options;
        CheckpointStore::with_fs(options.file_system.clone(), &options.root, &options.deployment)
    }

    fn write_panicked(&self, id: CheckpointId, failed: tokio::task::JoinError) -> Refusal {
        let text = match failed.try_into_panic() {
            Ok(panic) => panic_text(&*panic),
            Err(cancelled) => cancelled.to_string(),
        };
        let instance = self.shared.instance();
        Refusal::new(
            Reason::Internal,
            format!("{instance} failed while it encoded the records of {id}: {text}; this is a defect, see its log"),
        )
        .instance(instance)
        .with("checkpoint_id", id)
    }

    /// Waits until the capture is durable.
    pub(crate) async fn wait_durable(
        self: &Arc<Self>,
        fence: Fence,
        id: CheckpointId,
        timeout: Duration,
    ) -> Result<Durable, Refusal> {
        let deadline = Instant::now() + timeout;
        let mut progress = self.watch_progress();
        self.turn(&mut self.control(), |machine, now| {
            machine.begin_await(now, &fence, id)
        })?;
        loop {
            progress.borrow_and_update();
            if let Some(durable) = self.shared.read(|machine, _| machine.durable(id))? {
                return Ok(durable);
            }
            if timeout_at(deadline, progress.changed()).await.is_err() {
                let instance = self.shared.instance();
                return Err(self
                    .deadline_passed(format!(
                        "{instance} has not written its share of {id} after {timeout:?}; Await again, or settle it as DISCARDED"
                    ))
                    .with("checkpoint_id", id));
            }
        }
    }

    /// Waits until nothing is being written under the id.
    pub(crate) async fn writer_stopped(&self, id: CheckpointId) -> Result<(), Refusal> {
        let ended = self.control().writers.get(&id).map(|writer| writer.ended.clone());
        let Some(mut ended) = ended else {
            return Ok(());
        };
        let deadline = Instant::now() + STOP_PATIENCE;
        // A sender that is gone has ended as well.
        match timeout_at(deadline, ended.wait_for(|ended| *ended)).await {
            Ok(_) => Ok(()),
            Err(_) => {
                let instance = self.shared.instance();
                Err(self
                    .deadline_passed(format!(
                        "the disk has not let go of the write of {id} at {instance} for {STOP_PATIENCE:?}; call again"
                    ))
                    .with("checkpoint_id", id)
                    .retry(Duration::from_secs(1)))
            }
        }
    }
}
