//! What a checkpoint, a restore and a retire mean for an agent: for its sessions, and for the episodes that it owns.
//!
//! An episode that the agent owns is a root; its session is in the same record, so that both are of one moment.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use belay_core::{
    agent::{Parts, Session},
    episode::{Restored, SavedEpisode, Step},
    ids::{CheckpointId, Episode, Instance, RolloutId},
    parts::{Mark, PartSummary, PlannedEpisode, Restart},
    refusal::{Reason, Refusal},
};
use belay_episodes::Runner;
use belay_participant::{Capture, CapturedPart, StateOwner};
use bytes::Bytes;
use futures_util::future::join;

use crate::{agent::Agent, own_sessions::OwnSessions, record};

/// The state of an agent server.
pub(crate) struct Owner {
    pub(crate) agent: Arc<Agent>,
    pub(crate) runner: Arc<Runner<OwnSessions>>,
}

/// A record that was read.
pub(crate) struct Staged {
    session: Option<Session>,
    run: Option<Restored>,
}

/// A session in a capture.
type Part = (PartSummary, Arc<Session>);

impl StateOwner for Owner {
    type Staged = Staged;

    fn restarts(&self) -> Vec<Restart> {
        let mut restarts = self.runner.restarts();
        let named: BTreeSet<Episode> = restarts.iter().map(|restart| restart.episode.clone()).collect();
        let sessions = self.agent.state().sessions.restarts();
        restarts.extend(
            sessions
                .into_iter()
                .filter(|restart| !named.contains(&restart.episode)),
        );
        restarts
    }

    fn roots(&self) -> Vec<Episode> {
        self.runner.roots()
    }

    fn capture(&self, _id: CheckpointId, scope: &[Episode], restarts: &[Restart]) -> Capture {
        let snapshot = self.runner.snapshot(scope, restarts);
        let sessions = self.agent.state().sessions.snapshot(scope);
        let mut sessions: HashMap<Episode, Part> = sessions
            .into_iter()
            .map(|part| (part.0.episode.clone(), part))
            .collect();
        let mut parts = Vec::with_capacity(snapshot.saved.len() + sessions.len());
        for saved in snapshot.saved {
            let session = sessions.remove(&saved.summary.episode);
            parts.extend(whole(saved, session));
        }
        let mut others: Vec<Part> = sessions.into_values().collect();
        others.sort_by(|a, b| a.0.episode.cmp(&b.0.episode));
        parts.extend(others.into_iter().map(|(summary, session)| CapturedPart {
            summary,
            size: session.size(),
            record: Arc::new(move || record::encode(Some(&session), None)),
        }));
        Capture {
            parts,
            partition: snapshot.partition,
            ..Capture::default()
        }
    }

    fn stage(&self, planned: &PlannedEpisode, payload: Bytes) -> Result<Staged, Refusal> {
        let unreadable = |what: String| {
            let instance = self.agent.gate.instance();
            Refusal::new(
                Reason::InvalidCheckpoint,
                format!(
                    "{instance}'s record of {} does not read: {what}; restore another checkpoint",
                    planned.saved
                ),
            )
            .episode(&planned.saved)
            .instance(instance)
        };
        let read = record::decode(&planned.saved.rollout, payload).map_err(unreadable)?;
        let session = read
            .session
            .map(|session| Session::from_parts(self.agent.placed(session.parts(), planned)))
            .transpose()
            .map_err(|refusal| unreadable(refusal.message))?;
        Ok(Staged {
            session,
            run: read.run.map(|run| self.runner.restored(planned, run)),
        })
    }

    fn activate(&self, staged: Vec<(PlannedEpisode, Staged)>) {
        let mut runs = Vec::new();
        {
            let mut state = self.agent.state();
            for (planned, staged) in staged {
                let episode = planned.episode();
                let sessions = &mut state.sessions;
                let stop = match staged.session {
                    Some(session) => sessions.activate_restored(&episode, planned.execution, session),
                    None => sessions.retire_below(&episode),
                };
                state.stop(&stop);
                runs.extend(staged.run);
            }
        }
        self.runner.activate_restored(runs);
    }

    fn drop_unclaimed(&self, marks: &[Mark]) -> u64 {
        let mut dropped = 0;
        for mark in marks {
            let runs = self.runner.drop_unclaimed(std::slice::from_ref(mark));
            let mut state = self.agent.state();
            let (sessions, stop) = state.sessions.drop_unclaimed(mark);
            state.stop(&stop);
            // An episode that it owns has its session here too.
            dropped += runs.max(sessions);
        }
        dropped
    }

    async fn retire(&self, marks: Vec<Mark>) {
        join(self.runner.retire(marks.clone()), self.agent.retire(marks)).await;
    }

    fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        self.runner.may_forget(rollout)?;
        self.agent.state().sessions.may_forget(rollout)
    }

    fn forget(&self, rollout: &RolloutId) {
        self.runner.forget(rollout);
        self.agent.state().sessions.forget(rollout);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let (sessions, loops) = self.agent.state().sessions.counts();
        let mut counts = self.runner.counts();
        counts.extend([("sessions", sessions), ("loops", loops)]);
        counts
    }

    fn unclaimed(&self) -> u64 {
        self.runner.unclaimed()
    }

    fn warnings(&self) -> Vec<String> {
        self.runner.warnings()
    }
}

/// An episode that the agent owns, with its session while a step needs it. Without the session it is not whole: no record, so that
/// the checkpoint names it.
fn whole(mut saved: SavedEpisode, session: Option<Part>) -> Option<CapturedPart> {
    let needed = matches!(saved.boundary.step(), Step::InvokeAgent | Step::CloseAgent);
    let session = session.filter(|(part, _)| needed && part.execution == saved.summary.execution);
    let session = match session {
        None if needed => return None,
        None => None,
        Some((part, session)) => {
            // The session knows how far it has come.
            saved.summary.cursor = part.cursor;
            saved.summary.needs.extend(part.needs);
            saved.summary.boundary = format!("{}, {}", saved.summary.boundary, part.boundary);
            Some(session)
        }
    };
    Some(CapturedPart {
        summary: saved.summary.clone(),
        size: saved.size() + session.as_ref().map_or(0, |session| session.size()),
        record: Arc::new(move || record::encode(session.as_deref(), Some(&saved))),
    })
}

impl Agent {
    /// Retires sessions, and waits until their loops have ended.
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
