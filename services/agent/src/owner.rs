//! What a checkpoint, a restore and a retire mean for an agent.

use std::{collections::BTreeMap, sync::Arc};

use belay_core::{
    agent::{Parts, Session},
    ids::{CheckpointId, Episode, Instance, RolloutId},
    parts::{Mark, PlannedEpisode, Restart},
    refusal::{Reason, Refusal},
};
use belay_participant::{Capture, CapturedPart, StateOwner};
use bytes::Bytes;

use crate::{agent::Agent, record};

impl StateOwner for Agent {
    type Staged = Session;

    fn restarts(&self) -> Vec<Restart> {
        self.state().sessions.restarts()
    }

    fn capture(&self, _id: CheckpointId, scope: &[Episode], _restarts: &[Restart]) -> Capture {
        let sessions = self.state().sessions.snapshot(scope);
        let parts = sessions.into_iter().map(|(summary, session)| CapturedPart {
            summary,
            size: session.size(),
            record: Arc::new(move || record::encode(&session)),
        });
        Capture {
            parts: parts.collect(),
            ..Capture::default()
        }
    }

    fn stage(&self, planned: &PlannedEpisode, payload: Bytes) -> Result<Session, Refusal> {
        let unreadable = |what: String| {
            Refusal::new(
                Reason::InvalidCheckpoint,
                format!(
                    "the agent's record of {} does not read: {what}; restore another checkpoint",
                    planned.saved
                ),
            )
            .episode(&planned.saved)
            .instance(self.gate.instance())
        };
        let session = record::decode(&planned.saved.rollout, payload).map_err(unreadable)?;
        Session::from_parts(self.placed(session.parts(), planned))
            .map_err(|refusal| unreadable(refusal.message))
    }

    fn activate(&self, staged: Vec<(PlannedEpisode, Session)>) {
        let mut state = self.state();
        for (planned, session) in staged {
            let stop = state
                .sessions
                .activate_restored(&planned.episode(), planned.execution, session);
            state.stop(&stop);
        }
    }

    fn drop_unclaimed(&self, marks: &[Mark]) -> u64 {
        let mut state = self.state();
        let mut dropped = 0;
        for mark in marks {
            let (held, stop) = state.sessions.drop_unclaimed(mark);
            state.stop(&stop);
            dropped += held;
        }
        dropped
    }

    async fn retire(&self, marks: Vec<Mark>) {
        let mut ends = {
            let mut state = self.state();
            for mark in &marks {
                let stop = state.sessions.retire(mark);
                state.stop(&stop);
            }
            state.watch_ends()
        };
        loop {
            // The end is marked as seen before the table is asked.
            ends.borrow_and_update();
            if !marks.iter().any(|mark| self.state().sessions.retiring(mark)) {
                return;
            }
            if ends.changed().await.is_err() {
                return;
            }
        }
    }

    fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        self.state().sessions.may_forget(rollout)
    }

    fn forget(&self, rollout: &RolloutId) {
        self.state().sessions.forget(rollout);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let (sessions, loops) = self.state().sessions.counts();
        BTreeMap::from([("sessions", sessions), ("loops", loops)])
    }
}

impl Agent {
    /// The session with its peers where the plan puts them; a ledger that has not begun is where it would be placed now.
    fn placed(&self, parts: &Parts, planned: &PlannedEpisode) -> Parts {
        let place = |saved: &Instance| {
            let members = &self.peers.members;
            planned
                .placed(saved)
                .cloned()
                .or_else(|| members.place(saved.kind, &saved.name, &planned.saved.rollout))
                .unwrap_or_else(|| saved.clone())
        };
        Parts {
            resources: place(&parts.resources),
            policy_model: place(&parts.policy_model),
            ..parts.clone()
        }
    }
}
