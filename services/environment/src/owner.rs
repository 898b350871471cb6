//! What a checkpoint, a restore and a retire mean for an environment.

use std::{collections::BTreeMap, sync::Arc};

use belay_core::{
    episode::{Boundary, Restored, SeededParts},
    ids::{CheckpointId, Episode, Instance, RolloutId},
    parts::{Mark, PlannedEpisode, Restart},
    refusal::{Reason, Refusal},
};
use belay_participant::{Capture, CapturedPart, StateOwner};
use bytes::Bytes;

use crate::{environment::Environment, record};

/// From this share of the bound on, Status warns of results that nobody acknowledges.
const MANY_RESULTS: f64 = 0.9;

impl StateOwner for Environment {
    type Staged = Restored;

    fn restarts(&self) -> Vec<Restart> {
        self.state().episodes.restarts()
    }

    fn roots(&self) -> Vec<Episode> {
        self.state().episodes.roots()
    }

    fn capture(&self, _id: CheckpointId, scope: &[Episode], restarts: &[Restart]) -> Capture {
        let now = self.gate.open_time();
        let snapshot = self.state().episodes.snapshot(scope, restarts, now);
        let parts = snapshot.saved.into_iter().map(|saved| CapturedPart {
            summary: saved.summary.clone(),
            size: saved.size(),
            record: Arc::new(move || record::encode(&saved)),
        });
        Capture {
            parts: parts.collect(),
            partition: snapshot.partition,
            ..Capture::default()
        }
    }

    fn drop_unclaimed(&self, marks: &[Mark]) -> u64 {
        self.state().episodes.drop_unclaimed(marks)
    }

    fn stage(&self, planned: &PlannedEpisode, payload: Bytes) -> Result<Restored, Refusal> {
        let read = record::decode(payload).map_err(|what| {
            Refusal::new(
                Reason::InvalidCheckpoint,
                format!(
                    "the environment's record of {} does not read: {what}; restore another checkpoint",
                    planned.saved
                ),
            )
            .episode(&planned.saved)
            .instance(self.gate.instance())
        })?;
        Ok(Restored {
            episode: planned.episode(),
            execution: planned.execution,
            work: Arc::new(read.work),
            boundary: self.placed(read.boundary, planned),
            deadline: read.deadline_left.into(),
        })
    }

    fn activate(&self, staged: Vec<(PlannedEpisode, Restored)>) {
        let mut state = self.state();
        let stop = state
            .episodes
            .activate(staged.into_iter().map(|(_, restored)| restored).collect());
        state.stop(&stop);
    }

    async fn retire(&self, marks: Vec<Mark>) {
        let mut ends = {
            let mut state = self.state();
            for mark in &marks {
                let stop = state.episodes.retire(mark);
                state.stop(&stop);
            }
            state.watch_ends()
        };
        loop {
            // The end is marked as seen before the table is asked.
            ends.borrow_and_update();
            if !marks.iter().any(|mark| self.state().episodes.retiring(mark)) {
                return;
            }
            if ends.changed().await.is_err() {
                return;
            }
        }
    }

    fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        self.state().episodes.may_forget(rollout)
    }

    fn forget(&self, rollout: &RolloutId) {
        self.state().episodes.forget(rollout);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.state().episodes.counts()
    }

    fn unclaimed(&self) -> u64 {
        self.state().episodes.unclaimed()
    }

    fn warnings(&self) -> Vec<String> {
        let (results, limit) = {
            let state = self.state();
            (state.episodes.results(), state.episodes.limit())
        };
        if (results as f64) < limit as f64 * MANY_RESULTS {
            return Vec::new();
        }
        let full = if results >= limit {
            "new Runs are refused"
        } else {
            "new Runs are refused at the bound"
        };
        vec![format!(
            "{results} results of at most {limit} wait to be acknowledged; {full}: acknowledge those that are durable"
        )]
    }
}

impl Environment {
    /// The boundary with its parts where the plan puts them. A part that the checkpoint does not hold (a session that is closed,
    /// a ledger that has not begun) is where it would be placed now.
    fn placed(&self, boundary: Boundary, planned: &PlannedEpisode) -> Boundary {
        let Some(parts) = boundary.parts() else {
            return boundary;
        };
        let place = |saved: &Instance| {
            let members = &self.peers.members;
            planned
                .placed(saved)
                .cloned()
                .or_else(|| members.place(saved.kind, &saved.name, &planned.saved.rollout))
                .unwrap_or_else(|| saved.clone())
        };
        let parts = SeededParts {
            resources: place(&parts.resources),
            agent: place(&parts.agent),
            policy_model: place(&parts.policy_model),
            ..parts.as_ref().clone()
        };
        boundary.moved(Arc::new(parts))
    }
}
