//! What a Run gets.
//!
//! Every check comes before the claim, and both happen in one turn: a Run that is refused leaves a restored episode where it was
//! (protocol 3.2 rule 9). Two attempts of a rollout never live at once (protocol 6).

use std::{sync::Arc, time::Duration};

use super::{
    boundary::Boundary,
    table::{Entry, Episodes, Rollout, State},
    work::{Deadline, Finished, Life, Work},
};
use crate::{
    ids::{Attempt, Episode, ExecutionId},
    refusal::{Reason, Refusal},
};

/// What a Run expects to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// Nothing is staged or live.
    Fresh,
    /// A restored episode.
    Restored,
    /// Whichever there is.
    Either,
}

/// A Run, checked at the edge.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which episode.
    pub episode: Episode,
    /// What it expects.
    pub expect: Expect,
    /// What it asks for.
    pub work: Arc<Work>,
    /// How long the episode may run.
    pub deadline: Option<Duration>,
}

/// What a Run would get: nothing is changed by looking.
#[derive(Clone, PartialEq, Debug)]
pub enum Look {
    /// The attempt runs: wait for its end.
    Join,
    /// The attempt is done.
    Replied(Arc<Finished>),
    /// It is restored, and waits to be claimed.
    Unclaimed,
    /// Nothing of it is here.
    Absent,
}

/// What a Run gets.
#[derive(Clone, PartialEq, Debug)]
pub enum Admission {
    /// It begins at its first step: run it.
    Start(Life),
    /// A restored episode goes on: run it.
    Claim(Life),
    /// The attempt runs: wait for its end.
    Join,
    /// The attempt is done.
    Replied(Arc<Finished>),
}

impl Episodes {
    /// What a Run would get. STALE_ATTEMPT, ATTEMPT_LIVE, TASK_MISMATCH, NOT_RESTORED, or what the attempt failed with.
    pub fn look(&self, request: &Request) -> Result<Look, Refusal> {
        let episode = &request.episode;
        let none = Rollout::default();
        let rollout = self.rollouts.get(&episode.rollout).unwrap_or(&none);
        if rollout.mark.is_some_and(|mark| episode.attempt <= mark) {
            return Err(self.stale(episode, "it was retired", rollout.next_attempt()));
        }
        if let Some(entry) = rollout.attempts.get(&episode.attempt) {
            return self.look_at(request, entry, rollout);
        }
        if let Some((highest, _)) = rollout
            .attempts
            .last_key_value()
            .filter(|(a, _)| **a > episode.attempt)
        {
            let why = format!("attempt {highest} of the rollout is known here");
            return Err(self.stale(episode, &why, rollout.next_attempt()));
        }
        if let Some((lower, entry)) = rollout.attempts.iter().find(|(_, entry)| entry.bars_others()) {
            return Err(self.barred(episode, *lower, entry));
        }
        if request.expect == Expect::Restored {
            return Err(self.not_restored(episode, "nothing of it is staged here"));
        }
        Ok(Look::Absent)
    }

    /// Admits a Run. `fresh` becomes the execution of an episode that begins here, `now` is the time the mesh was open.
    /// The refusals of [`look`](Self::look), and ADMISSION_FULL where as many results as may be wait to be acknowledged.
    pub fn admit(
        &mut self,
        request: &Request,
        fresh: ExecutionId,
        now: Duration,
    ) -> Result<Admission, Refusal> {
        match self.look(request)? {
            Look::Join => Ok(Admission::Join),
            Look::Replied(finished) => Ok(Admission::Replied(finished)),
            Look::Unclaimed => self.claim(&request.episode, now),
            Look::Absent => {
                self.room(&request.episode)?;
                let life = Life {
                    episode: request.episode.clone(),
                    execution: fresh,
                    work: request.work.clone(),
                    boundary: Boundary::Seed,
                    deadline: Deadline::from(request.deadline).started(now),
                };
                let rollout = self.rollouts.entry(request.episode.rollout.clone()).or_default();
                rollout
                    .attempts
                    .insert(request.episode.attempt, Entry::live(&life, false, true));
                Ok(Admission::Start(life))
            }
        }
    }

    fn claim(&mut self, episode: &Episode, now: Duration) -> Result<Admission, Refusal> {
        let gone = Refusal::new(Reason::Internal, format!("{episode} was there, and is not"));
        let entry = self.entry_mut(episode).ok_or(gone)?;
        entry.claimed = true;
        match &mut entry.state {
            State::Live {
                work,
                boundary,
                deadline,
            } => {
                *deadline = deadline.started(now);
                Ok(Admission::Claim(Life {
                    episode: episode.clone(),
                    execution: entry.execution,
                    work: work.clone(),
                    boundary: boundary.clone(),
                    deadline: *deadline,
                }))
            }
            State::Finished(finished) => Ok(Admission::Replied(finished.clone())),
            other => Err(Refusal::new(
                Reason::Internal,
                format!("{episode} cannot be claimed: it is {}", other.name()),
            )),
        }
    }

    fn look_at(&self, request: &Request, entry: &Entry, rollout: &Rollout) -> Result<Look, Refusal> {
        let episode = &request.episode;
        let work = match &entry.state {
            State::Live { work, .. } => work,
            State::Finished(finished) => &finished.work,
            State::Failed(refusal) => return Err(refusal.as_ref().clone()),
            // No next attempt is named: the rollout has its result, and a controller that goes by the metadata would run it again.
            State::Acknowledged => {
                let message = format!(
                    "the result of {episode} was acknowledged and freed on {}; to run the rollout again send a higher attempt",
                    self.instance
                );
                return Err(self.refuse(Reason::StaleAttempt, episode, message));
            }
            State::Retired { .. } => {
                return Err(self.stale(episode, "it was retired", rollout.next_attempt()));
            }
        };
        match request.expect {
            Expect::Restored if !entry.restored => {
                return Err(self.not_restored(episode, "it was started here, not restored"));
            }
            Expect::Fresh if entry.restored => {
                let message = format!(
                    "{episode} is restored on {}; send it with expect RESTORED or EITHER, or retire it",
                    self.instance
                );
                return Err(self
                    .refuse(Reason::AttemptLive, episode, message)
                    .with("next_attempt", episode.attempt));
            }
            _ => {}
        }
        if !work.same_as(&request.work) {
            let message = format!(
                "{episode} is held on {} with another task, environment or agent (environment {}, agent {}); \
                 send the row that it was started with, byte for byte",
                self.instance, work.environment, work.agent
            );
            return Err(self.refuse(Reason::TaskMismatch, episode, message));
        }
        Ok(match &entry.state {
            _ if !entry.claimed => Look::Unclaimed,
            State::Finished(finished) => Look::Replied(finished.clone()),
            _ => Look::Join,
        })
    }

    /// ADMISSION_FULL at the bound of unacknowledged results.
    fn room(&self, episode: &Episode) -> Result<(), Refusal> {
        if self.results() < self.limit {
            return Ok(());
        }
        let message = format!(
            "{} keeps {} results that nobody has acknowledged, the most it may; acknowledge those that are durable, then send {episode} again",
            self.instance, self.limit
        );
        Err(self
            .refuse(Reason::AdmissionFull, episode, message)
            .retry(Duration::from_secs(1)))
    }

    fn stale(&self, episode: &Episode, why: &str, next: Attempt) -> Refusal {
        let message = format!(
            "{episode} is refused on {}: {why}; send attempt {next}",
            self.instance
        );
        self.refuse(Reason::StaleAttempt, episode, message)
            .with("next_attempt", next)
    }

    fn barred(&self, episode: &Episode, lower: Attempt, entry: &Entry) -> Refusal {
        let (what, todo) = match entry.state {
            State::Finished(_) => (
                "is done and its result not acknowledged",
                "send it to get the result, or retire it",
            ),
            State::Retired { .. } => ("is being retired", "send it again in a moment"),
            _ => ("lives", "send it to join, or retire it"),
        };
        let message = format!(
            "{episode} cannot start on {}: attempt {lower} of the rollout {what}; {todo}",
            self.instance
        );
        let refusal = self
            .refuse(Reason::AttemptLive, episode, message)
            .with("live_attempt", lower);
        match entry.state {
            State::Retired { .. } => refusal
                .with("next_attempt", episode.attempt)
                .retry(Duration::from_millis(100)),
            _ => refusal.with("next_attempt", lower),
        }
    }

    fn not_restored(&self, episode: &Episode, why: &str) -> Refusal {
        let message = format!(
            "{episode} was expected to be restored on {}, but {why}; nothing was started: restore a checkpoint that holds it, or send it with expect FRESH",
            self.instance
        );
        self.refuse(Reason::NotRestored, episode, message)
    }

    pub(super) fn refuse(&self, reason: Reason, episode: &Episode, message: String) -> Refusal {
        Refusal::new(reason, message)
            .episode(episode)
            .instance(&self.instance)
    }
}
