//! What a checkpoint, a restore and a retire mean for sessions.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use belay_core::{
    ids::{CheckpointId, Episode, RolloutId},
    parts::{CheckpointMode, Cursor, Mark, PartSummary, PlannedEpisode, Restart},
    refusal::{Reason, Refusal},
    sessions::{RestoredSession, SessionView},
};
use belay_participant::{Capture, CapturedPart, StateOwner};
use bytes::Bytes;

use crate::{environment::Environment, record, resources::Resources};

impl<E: Environment> StateOwner for Resources<E> {
    type Staged = RestoredSession<Arc<E::State>>;

    fn mode(&self) -> CheckpointMode {
        self.settings.mode
    }

    fn shares_state(&self) -> bool {
        // What is not saved can be cut anywhere.
        self.settings.shared && self.settings.mode != CheckpointMode::RestartOnly
    }

    fn restarts(&self) -> Vec<Restart> {
        if self.settings.mode != CheckpointMode::RestartOnly {
            return Vec::new();
        }
        let instance = self.gate.instance();
        let restart = |episode| Restart {
            episode,
            instance: instance.clone(),
            reason: format!("{instance} is restart_only: it cannot save sessions"),
        };
        self.state().sessions.episodes().map(restart).collect()
    }

    fn capture(&self, _id: CheckpointId, scope: &[Episode], _restarts: &[Restart]) -> Capture {
        if self.settings.mode == CheckpointMode::RestartOnly {
            return Capture::default();
        }
        let now = self.gate.open_time();
        let state = self.state();
        let held = scope.iter().filter_map(|episode| state.sessions.get(episode));
        Capture {
            parts: held.map(|session| self.part(session, now)).collect(),
            ..Capture::default()
        }
    }

    fn drop_unclaimed(&self, marks: &[Mark]) -> u64 {
        let mut state = self.state();
        marks
            .iter()
            .map(|mark| state.sessions.retire(&mark.rollout, mark.attempt))
            .sum()
    }

    fn stage(&self, planned: &PlannedEpisode, payload: Bytes) -> Result<Self::Staged, Refusal> {
        let damaged = |what: String| {
            Refusal::new(
                Reason::InvalidCheckpoint,
                format!(
                    "the record of {} at {} does not read: {what}; restore another checkpoint",
                    planned.saved,
                    self.gate.instance()
                ),
            )
            .episode(&planned.saved)
            .instance(self.gate.instance())
        };
        let saved = record::decode(self.environment.as_ref(), payload).map_err(damaged)?;
        let mut restored = RestoredSession {
            episode: planned.episode(),
            execution: planned.execution,
            task: saved.task,
            state: saved.state,
            revision: saved.revision,
            replies: saved.replies,
            time_left: saved.time_left,
        };
        if self.settings.restore_seeds_anew {
            let seeded = self
                .environment
                .seed(&restored.task)
                .map_err(|error| damaged(error.to_string()))?;
            restored.state = Arc::new(seeded);
            restored.revision = 0;
            restored.replies.clear();
        }
        Ok(restored)
    }

    fn activate(&self, staged: Vec<(PlannedEpisode, Self::Staged)>) {
        let now = self.gate.open_time();
        let mut state = self.state();
        for (_, restored) in staged {
            let episode = &restored.episode;
            state.verifies.forget(&episode.rollout, episode.attempt);
            state.sessions.activate(restored, now);
        }
    }

    async fn retire(&self, marks: Vec<Mark>) {
        let mut ends = self.watch_ends();
        {
            let mut state = self.state();
            for mark in &marks {
                state.sessions.retire(&mark.rollout, mark.attempt);
            }
        }
        loop {
            // An end is marked as seen before the table is asked.
            ends.borrow_and_update();
            if !marks.iter().any(|mark| self.ending(mark)) {
                break;
            }
            if ends.changed().await.is_err() {
                return;
            }
        }
        let mut state = self.state();
        for mark in &marks {
            state.verifies.forget(&mark.rollout, mark.attempt);
        }
    }

    fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        let state = self.state();
        state.sessions.may_forget(rollout)?;
        if state.verifies.running(rollout, u32::MAX) {
            return Err(Refusal::new(
                Reason::RetireIncomplete,
                format!(
                    "a verifier of {rollout}, which is retired, still runs on {}; try again when it has ended",
                    self.gate.instance()
                ),
            )
            .with("rollout_id", rollout)
            .instance(self.gate.instance()));
        }
        Ok(())
    }

    fn forget(&self, rollout: &RolloutId) {
        let mut state = self.state();
        state.sessions.forget(rollout);
        state.verifies.forget(rollout, u32::MAX);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let (sessions, calls) = self.state().sessions.counts();
        BTreeMap::from([("sessions", sessions), ("calls", calls)])
    }

    fn warnings(&self) -> Vec<String> {
        self.effects
            .iter()
            .filter_map(|effects| effects.warning())
            .collect()
    }
}

impl<E: Environment> Resources<E> {
    /// By reference: the record is made from it later, elsewhere.
    fn part(&self, session: SessionView<Arc<E::State>>, now: Duration) -> CapturedPart {
        let time_left = session.ends.map(|ends| ends.saturating_sub(now));
        let environment = Arc::clone(&self.environment);
        CapturedPart {
            summary: PartSummary {
                episode: session.episode.clone(),
                execution: session.execution,
                root: false,
                cursor: Cursor::default(),
                needs: Vec::new(),
                ledger: None,
                revision: session.revision,
                boundary: format!("revision {}", session.revision),
                task: None,
                finished: false,
            },
            size: record::size(environment.as_ref(), &session),
            record: Arc::new(move || record::encode(environment.as_ref(), &session, time_left)),
        }
    }

    /// Something of these attempts still runs.
    fn ending(&self, mark: &Mark) -> bool {
        let state = self.state();
        state.sessions.retiring(&mark.rollout, mark.attempt)
            || state.verifies.running(&mark.rollout, mark.attempt)
    }
}
