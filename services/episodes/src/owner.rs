//! What a checkpoint, a restore and a retire mean for episodes.

use std::{collections::BTreeMap, sync::Arc};

use belay_core::{
    episode::{Boundary, Restored, SeededParts, Snapshot},
    ids::{CheckpointId, Episode, Instance, RolloutId},
    parts::{Mark, PlannedEpisode, Restart},
    refusal::{Reason, Refusal},
};
use belay_participant::{Capture, CapturedPart, StateOwner};
use bytes::Bytes;

use crate::{
    agents::AgentSessions,
    record::{self, Read},
    runner::Runner,
};

/// From this share of the bound on, Status warns of results that nobody acknowledges.
const MANY_RESULTS: f64 = 0.9;

impl<A: AgentSessions> StateOwner for Runner<A> {
    type Staged = Restored;

    fn restarts(&self) -> Vec<Restart> {
        self.state().episodes.restarts()
    }

    fn roots(&self) -> Vec<Episode> {
        self.state().episodes.roots()
    }

    fn capture(&self, _id: CheckpointId, scope: &[Episode], restarts: &[Restart]) -> Capture {
        let snapshot = self.snapshot(scope, restarts);
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
                    "{}'s record of {} does not read: {what}; restore another checkpoint",
                    self.gate.instance(),
                    planned.saved
                ),
            )
            .episode(&planned.saved)
            .instance(self.gate.instance())
        })?;
        Ok(self.restored(planned, read))
    }

    fn activate(&self, staged: Vec<(PlannedEpisode, Restored)>) {
        self.activate_restored(staged.into_iter().map(|(_, restored)| restored).collect());
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

impl<A: AgentSessions> Runner<A> {
    /// The listed episodes, by reference, and where every one stands.
    pub fn snapshot(&self, scope: &[Episode], restarts: &[Restart]) -> Snapshot {
        let now = self.gate.open_time();
        self.state().episodes.snapshot(scope, restarts, now)
    }

    /// A record under its planned names, its parts where the plan puts them. Nothing is live.
    pub fn restored(&self, planned: &PlannedEpisode, read: Read) -> Restored {
        Restored {
            episode: planned.episode(),
            execution: planned.execution,
            work: Arc::new(read.work),
            boundary: self.placed(read.boundary, planned),
            deadline: read.deadline_left.into(),
        }
    }

    /// Restored episodes go live, unclaimed; whatever lives of lower attempts is stopped first.
    pub fn activate_restored(&self, restored: Vec<Restored>) {
        let mut state = self.state();
        let stop = state.episodes.activate(restored);
        state.stop(&stop);
    }

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
