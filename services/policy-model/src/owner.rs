//! What a checkpoint, a restore and a retire mean for a policy model.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use belay_core::{
    calls::CapturedEpisode,
    ids::{CheckpointId, Episode, RolloutId},
    participant::Phase,
    parts::{Cursor, Mark, PartSummary, PlannedEpisode, Restart},
    refusal::{Reason, Refusal},
};
use belay_participant::{Capture, CapturedPart, StateOwner};
use bytes::Bytes;

use crate::{
    engine::Engine,
    freeing::Job,
    model::{PolicyModel, placed},
    record,
    staging::StagedEpisode,
};

/// How long replies that the worker has finished before a cut are waited for.
const REPLY_ON_ITS_WAY: Duration = Duration::from_secs(10);
const RETRY_FORGET: Duration = Duration::from_millis(200);

impl<E: Engine> StateOwner for PolicyModel<E> {
    type Staged = StagedEpisode;

    /// Cuts what is in flight. The coordinator waits for it at most as long as the cut budget says: a call without an answer by
    /// then is generated anew.
    async fn closing(&self, id: CheckpointId) {
        let listed = self.state().calls.begin_cut(id);
        if listed.is_empty() {
            return;
        }
        let answers = match self.engine.cut(id, &listed).await {
            Ok(answers) => answers,
            Err(error) => {
                tracing::warn!(%id, calls = listed.len(), "no generation is cut: {error}");
                // An empty receipt: nothing more is to come.
                Vec::new()
            }
        };
        let finished = self.state().calls.receipt(id, answers);
        // A call that had finished at the worker is worth its whole reply, which is on its way.
        let replies = async {
            for key in &finished {
                self.ended(key).await;
            }
        };
        if tokio::time::timeout(REPLY_ON_ITS_WAY, replies).await.is_err() {
            tracing::warn!(%id, "replies that the worker had finished before the cut have not come");
        }
    }

    async fn discarded(&self, id: CheckpointId) {
        self.state().calls.end_cut(id);
        if let Err(error) = self.engine.release(id).await {
            tracing::warn!(%id, "cut prefixes stay at the engine: {error}");
        }
    }

    fn capture(&self, id: CheckpointId, scope: &[Episode], _restarts: &[Restart]) -> Capture {
        let captured = self.state().calls.capture(id, scope);
        let mut capture = Capture::default();
        for episode in captured {
            if let Some(prefix) = episode.in_flight.as_ref().and_then(|call| call.prefix.as_ref()) {
                capture.cut_generations += 1;
                capture.cut_tokens += u64::from(prefix.tokens);
            }
            capture.parts.push(part(episode));
        }
        capture
    }

    fn drop_unclaimed(&self, marks: &[Mark]) -> u64 {
        self.end_attempts(marks)
    }

    fn stage(&self, planned: &PlannedEpisode, payload: Bytes) -> Result<StagedEpisode, Refusal> {
        let restored = record::decode(payload).map_err(|what| {
            Refusal::new(
                Reason::InvalidCheckpoint,
                format!(
                    "the policy model's record of {} does not read: {what}",
                    planned.saved
                ),
            )
            .episode(&planned.saved)
            .instance(self.gate.instance())
        })?;
        Ok(self.staged.stage(planned.episode(), restored))
    }

    /// Asks the engine for each prefix and each row. A lost prefix costs a generation; a lost row masks a part of a trajectory.
    async fn staged(&self, staged: &mut [(PlannedEpisode, StagedEpisode)]) -> u64 {
        let prefixes: Vec<(usize, _)> = staged
            .iter()
            .enumerate()
            .filter_map(|(at, (_, episode))| Some((at, placed(episode.restored.prefix())?)))
            .collect();
        let rows = staged
            .iter()
            .flat_map(|(_, episode)| episode.restored.ledger().rows());
        let rows = rows.filter_map(|row| placed(row.entry.span.as_ref()));
        let spans: Vec<_> = prefixes
            .iter()
            .map(|(_, span)| span.clone())
            .chain(rows)
            .collect();
        if spans.is_empty() {
            return 0;
        }
        let whole = self.engine.check(&spans).await.unwrap_or_else(|error| {
            tracing::warn!("no token can be asked for, so cut generations start anew: {error}");
            vec![false; spans.len()]
        });
        let (prefixes_whole, rows_whole) = whole.split_at(prefixes.len());
        let mut lost = 0;
        for ((at, _), whole) in prefixes.iter().zip(prefixes_whole) {
            if !whole {
                staged[*at].1.restored.drop_prefix();
                lost += 1;
            }
        }
        let missing = rows_whole.iter().filter(|whole| !**whole).count();
        if missing > 0 {
            tracing::warn!(
                missing,
                "rows of restored ledgers are not at the engine; trajectories will mask them"
            );
        }
        lost
    }

    /// The rows of lower attempts stay at the engine: the restored ledgers name them.
    fn activate(&self, staged: Vec<(PlannedEpisode, StagedEpisode)>) {
        let mut state = self.state();
        let mut stop = Vec::new();
        for (planned, episode) in staged {
            let removed = state
                .calls
                .install(planned.episode(), planned.execution, episode.restored.clone());
            stop.extend(state.stop(removed));
        }
        self.freeing.start(
            &self.engine,
            Job {
                stop,
                ..Job::default()
            },
        );
    }

    async fn retire(&self, marks: Vec<Mark>) {
        self.end_attempts(&marks);
        let rollouts: Vec<RolloutId> = marks.into_iter().map(|mark| mark.rollout).collect();
        self.freeing.done(&rollouts).await;
    }

    fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        let refuse = |reason, state: &str| {
            Err(Refusal::new(
                reason,
                format!(
                    "{rollout} {state} at {}: forget it when that is over",
                    self.gate.instance()
                ),
            )
            .with("rollout_id", rollout)
            .instance(self.gate.instance()))
        };
        if self.state().calls.lives(rollout) {
            return refuse(Reason::RolloutLive, "has a ledger that has not ended");
        }
        if self.staged.has(rollout) {
            return refuse(Reason::RolloutLive, "is staged by a restore");
        }
        if self.freeing.has(rollout) {
            return refuse(Reason::RetireIncomplete, "is still being freed at the engine")
                .map_err(|refusal| refusal.retry(RETRY_FORGET));
        }
        Ok(())
    }

    fn forget(&self, rollout: &RolloutId) {
        self.state().calls.forget(rollout);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let (counts, pending) = {
            let calls = &self.state().calls;
            (calls.counts(), calls.cuts_pending())
        };
        // Before the mesh closes nothing is to be cut.
        let closing = matches!(self.gate.phase(), Phase::Preparing | Phase::Prepared);
        BTreeMap::from([
            ("calls", counts.calls),
            ("cuts_pending", if closing { pending } else { 0 }),
            ("held_replies", self.held_replies()),
            ("kept_replies", counts.kept),
            ("waiting_calls", counts.waiting),
            ("ledgers", counts.ledgers),
            ("rows", counts.rows),
            ("staged", self.staged.len()),
        ])
    }
}

impl<E: Engine> PolicyModel<E> {
    /// Ends the marked attempts and all earlier ones here, and starts to free them at the engine. How many there were.
    fn end_attempts(&self, marks: &[Mark]) -> u64 {
        let mut job = Job::default();
        let mut ended = 0;
        for Mark { rollout, attempt } in marks {
            let mut state = self.state();
            let removed = state.calls.retire(rollout, *attempt);
            ended += removed.len() as u64;
            let episode = Episode::new(rollout.clone(), *attempt);
            // A later attempt's ledger names rows of the earlier ones. And an attempt that was never here may have been restored
            // elsewhere as a later one.
            let needed =
                state.calls.higher_attempt(&episode).is_some() || self.staged.above(rollout, *attempt);
            if !removed.is_empty() && !needed {
                job.free.push((rollout.clone(), *attempt));
            }
            job.stop.extend(state.stop(removed));
        }
        self.freeing.start(&self.engine, job);
        ended
    }
}

fn part(captured: CapturedEpisode) -> CapturedPart {
    let next = captured.ledger.next_operation();
    let boundary = match &captured.in_flight {
        None => format!("model call {next} is next"),
        Some(call) => match &call.prefix {
            None => format!("model call {next} in flight, not cut"),
            Some(prefix) => format!("model call {next} in flight, cut after {} tokens", prefix.tokens),
        },
    };
    CapturedPart {
        summary: PartSummary {
            episode: captured.episode.clone(),
            execution: captured.execution,
            root: false,
            cursor: Cursor::default(),
            needs: Vec::new(),
            ledger: captured.ledger.tip(),
            revision: 0,
            boundary,
            task: None,
            finished: false,
        },
        size: record::size(&captured),
        record: Arc::new(move || record::encode(&captured)),
    }
}
