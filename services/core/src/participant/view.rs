//! What a participant is like: for Status, for operators, and for tests.

use std::time::Duration;

use crate::{ids::Episode, parts::Mark, refusal::Blocker};

use super::{
    calls::{Unsettled, View, Waiting},
    machine::{Machine, Open, Write},
    phase::Phase,
};

impl Machine {
    /// What it is like. Changes nothing: a lease that is over is shown with nothing left.
    pub fn view(&self, now: Duration, max_blockers: usize) -> View {
        let run = match &self.open {
            Some(Open::Checkpoint(run)) => Some(run),
            _ => None,
        };
        let in_doubt = match &self.open {
            Some(Open::Restore(staging)) => staging.staged.as_ref().map(|(_, at)| *at),
            _ => None,
        };
        let unsettled = self.capture.as_ref().filter(|_| run.is_none());
        View {
            phase: self.phase(),
            open: self.open_id(),
            epoch: self.epoch,
            lease_left: run.map(|run| run.lease.left(now)),
            ready: run.is_some() && self.phase() != Phase::Preparing,
            waiting: self.waiting(now, max_blockers),
            marks_version: self.marks.version(),
            marks: self.marks.len() as u64,
            at_door: self.admission.at_door() as u64,
            unsettled: unsettled.map(|capture| Unsettled {
                id: capture.id,
                age: now.saturating_sub(capture.at),
                durable: matches!(capture.write, Write::Durable(_)),
            }),
            in_doubt: in_doubt.map(|at| now.saturating_sub(at)),
        }
    }

    /// What a checkpoint waits for now, or would wait for if it began now.
    pub(super) fn waiting(&self, now: Duration, most: usize) -> Waiting {
        let run = match &self.open {
            Some(Open::Checkpoint(run)) => Some(run),
            _ => None,
        };
        let closed = run.is_some();
        let which = |episode: &Episode, counted: bool| {
            if closed {
                counted
            } else {
                !self.marks.refuses(episode)
            }
        };
        let (blockers, count) = self.admission.blockers(now, &self.instance, most, which);
        Waiting {
            blockers,
            count: count as u64,
            restarts: run.map(|run| run.found.clone()).unwrap_or_default(),
        }
    }

    /// The oldest pieces of work that still run for the given attempts or earlier ones.
    pub fn unfinished(&self, now: Duration, marks: &[Mark], most: usize) -> Vec<Blocker> {
        let stopped = |episode: &Episode, _counted: bool| {
            marks
                .iter()
                .any(|m| m.rollout == episode.rollout && episode.attempt <= m.attempt)
        };
        self.admission.blockers(now, &self.instance, most, stopped).0
    }

    /// What must hold between two turns; an error says what does not. For random tests and simulations.
    pub fn check(&self, now: Duration) -> Result<(), String> {
        let phase = self.phase();
        let fits = match &self.open {
            None => matches!(phase, Phase::Joining | Phase::Idle),
            Some(Open::Checkpoint(run)) => {
                phase.is_closed()
                    && (phase == Phase::Preparing) == run.ready_at.is_none()
                    && (phase == Phase::Committed) == run.committed.is_some()
                    && (phase == Phase::Committed) == self.capture.is_some()
            }
            Some(Open::Restore(staging)) => match staging.staged {
                None => matches!(phase, Phase::Joining | Phase::Idle),
                Some(_) => matches!(phase, Phase::Restored | Phase::Idle),
            },
        };
        if !fits {
            return Err(format!("{phase} does not fit the open run {:?}", self.open));
        }
        if matches!(phase, Phase::Prepared | Phase::Committed) && self.admission.counted() > 0 {
            return Err(format!(
                "{phase} with {} counted permits",
                self.admission.counted()
            ));
        }
        if !self.admission.is_consistent() {
            return Err("the count of permits is not that of the permits".to_owned());
        }
        if phase.is_closed() && self.next_deadline().is_none() {
            return Err(format!("{phase} without a lease"));
        }
        if self.clock.read(now) > now {
            return Err(format!("open for {:?} of {now:?}", self.clock.read(now)));
        }
        Ok(())
    }
}
