//! All sessions of an agent server, by rollout and attempt.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;

use super::session::{Asked, Completed, ModelReply, Session, Terms, ToolReply};
use crate::{
    ids::{Attempt, Episode, ExecutionId, Instance, Operation, RolloutId},
    parts::{CheckpointMode, Mark, Need, PartNeeded, PartSummary, Restart},
    refusal::{Reason, Refusal},
};

/// The table: a pure value.
#[derive(Clone, Debug)]
pub struct Sessions {
    instance: Instance,
    /// Whether sessions can be saved.
    mode: CheckpointMode,
    rollouts: HashMap<RolloutId, Rollout>,
}

#[derive(Clone, Debug, Default)]
struct Rollout {
    /// This attempt and all earlier ones are refused.
    mark: Option<Attempt>,
    attempts: BTreeMap<Attempt, Slot>,
}

#[derive(Clone, Debug)]
struct Slot {
    execution: ExecutionId,
    /// A task runs its loop.
    driven: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Live(Arc<Session>),
    /// It was here and is over: a seed that comes late makes no second one.
    Closed,
    Retired,
}

impl Slot {
    fn live(&self) -> Option<&Arc<Session>> {
        match &self.state {
            State::Live(session) => Some(session),
            _ => None,
        }
    }
}

/// What an Invoke gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Activation {
    /// Nobody runs the loop: run it, from the session as it is.
    Drive(Arc<Session>),
    /// The loop runs: wait for its end.
    Join,
    /// The activation is complete.
    Replied(Arc<Session>, Arc<Completed>),
}

impl Sessions {
    /// An empty table; refusals name the instance.
    pub fn new(instance: Instance) -> Self {
        Self {
            instance,
            mode: CheckpointMode::Exported,
            rollouts: HashMap::new(),
        }
    }

    /// The same, with sessions that can or cannot be saved.
    #[must_use]
    pub fn with_mode(self, mode: CheckpointMode) -> Self {
        Self { mode, ..self }
    }

    /// Whether sessions can be saved.
    pub fn mode(&self) -> CheckpointMode {
        self.mode
    }

    /// Makes a session, or finds the one that this execution has seeded before. STALE_ATTEMPT at or below the mark or below a
    /// living attempt, ATTEMPT_LIVE above one, STALE_EXECUTION for another life, EPISODE_UNKNOWN when the session is over.
    pub fn seed(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        terms: Terms,
    ) -> Result<Arc<Session>, Refusal> {
        if self.slot(episode).is_some() {
            return self.live(episode, execution).cloned();
        }
        self.not_stale(episode)?;
        let attempts = self.rollouts.get(&episode.rollout).map(|r| &r.attempts);
        if let Some((lower, _)) = attempts
            .into_iter()
            .flatten()
            .find(|(attempt, slot)| **attempt < episode.attempt && (slot.live().is_some() || slot.driven))
        {
            let message = format!(
                "attempt {lower} of {} still has a session on {}; retire it, then send the attempt that the reply names",
                episode.rollout, self.instance
            );
            return Err(self
                .refuse(Reason::AttemptLive, episode, message)
                .with("live_attempt", lower));
        }
        let session = Arc::new(Session::new(terms));
        self.insert(episode, execution, session.clone());
        Ok(session)
    }

    /// An activation is asked for: whoever is told to drive it has the loop, until [`ended`](Self::ended).
    pub fn activate(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        number: u32,
        input: &Bytes,
    ) -> Result<Activation, Refusal> {
        let session = self.live(episode, execution)?.clone();
        let asked = session
            .activate(number, input)
            .map_err(|refusal| self.named(refusal, episode))?;
        let next = match asked {
            Asked::Complete(completed) => return Ok(Activation::Replied(session, completed)),
            Asked::Begins(next) => Arc::from(next),
            Asked::Runs => session,
        };
        let slot = self.slot_mut(episode).expect("it was live above");
        slot.state = State::Live(next.clone());
        if let Some(completed) = next.parts().completed.as_ref().filter(|c| c.activation == number) {
            return Ok(Activation::Replied(next.clone(), completed.clone()));
        }
        if slot.driven {
            return Ok(Activation::Join);
        }
        slot.driven = true;
        Ok(Activation::Drive(next))
    }

    /// The model has replied: the session after it.
    pub fn model_replied(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        operation: Operation,
        reply: &ModelReply,
    ) -> Result<Arc<Session>, Refusal> {
        self.advance(episode, execution, |session| {
            session.model_replied(operation, reply)
        })
    }

    /// A tool has replied: the session after it.
    pub fn tool_replied(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        operation: Operation,
        reply: &ToolReply,
    ) -> Result<Arc<Session>, Refusal> {
        self.advance(episode, execution, |session| {
            session.tool_replied(operation, reply)
        })
    }

    fn advance(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        by: impl FnOnce(&Session) -> Result<Session, Refusal>,
    ) -> Result<Arc<Session>, Refusal> {
        let next = by(self.live(episode, execution)?).map_err(|refusal| self.named(refusal, episode))?;
        let next = Arc::new(next);
        if let Some(slot) = self.slot_mut(episode) {
            slot.state = State::Live(next.clone());
        }
        Ok(next)
    }

    /// The task of a session's loop has ended: what is left of a retired one is freed.
    pub fn ended(&mut self, episode: &Episode, execution: ExecutionId) {
        let Some(slot) = self.slot_mut(episode).filter(|slot| slot.execution == execution) else {
            return;
        };
        slot.driven = false;
        if matches!(slot.state, State::Retired)
            && let Some(rollout) = self.rollouts.get_mut(&episode.rollout)
        {
            rollout.attempts.remove(&episode.attempt);
        }
    }

    /// Ends a session: true if its loop is to be stopped. One that never was or is over: false. STALE_EXECUTION for another life.
    pub fn close(&mut self, episode: &Episode, execution: ExecutionId) -> Result<bool, Refusal> {
        let Some(slot) = self.slot(episode) else {
            return Ok(false);
        };
        self.same_life(episode, execution, slot)?;
        let driven = slot.driven;
        if let Some(slot) = self.slot_mut(episode).filter(|slot| slot.live().is_some()) {
            slot.state = State::Closed;
            return Ok(driven);
        }
        Ok(false)
    }

    /// Restored sessions that no Run has claimed are dropped at Settle, at or below the mark: how many there were, and the
    /// lives whose loops are to be stopped.
    pub fn drop_unclaimed(&mut self, mark: &Mark) -> (u64, Vec<ExecutionId>) {
        let held = self.rollouts.get(&mark.rollout).map_or(0, |rollout| {
            let slots = rollout.attempts.range(..=mark.attempt);
            slots.filter(|(_, slot)| slot.live().is_some()).count()
        });
        (held as u64, self.retire(mark))
    }

    /// Retires attempts: the lives whose loops are to be stopped; [`ended`](Self::ended) says when each has.
    pub fn retire(&mut self, mark: &Mark) -> Vec<ExecutionId> {
        let rollout = self.rollouts.entry(mark.rollout.clone()).or_default();
        rollout.mark = rollout.mark.max(Some(mark.attempt));
        let mut stop = Vec::new();
        rollout.attempts.retain(|attempt, slot| {
            if *attempt > mark.attempt {
                return true;
            }
            slot.state = State::Retired;
            if slot.driven {
                stop.push(slot.execution);
            }
            slot.driven
        });
        stop
    }

    /// A loop of an attempt at or below the mark has yet to end.
    pub fn retiring(&self, mark: &Mark) -> bool {
        self.rollouts.get(&mark.rollout).is_some_and(|rollout| {
            rollout
                .attempts
                .range(..=mark.attempt)
                .any(|(_, slot)| slot.driven && matches!(slot.state, State::Retired))
        })
    }

    /// A restored session goes live; lower attempts are retired first: the lives whose loops are to be stopped.
    pub fn activate_restored(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        session: Session,
    ) -> Vec<ExecutionId> {
        let mut stop = self.retire_below(episode);
        if let Some(replaced) = self.slot(episode).filter(|slot| slot.driven) {
            stop.push(replaced.execution);
        }
        self.insert(episode, execution, Arc::new(session));
        stop
    }

    /// Retires the attempts below an episode: the lives whose loops are to be stopped.
    pub fn retire_below(&mut self, episode: &Episode) -> Vec<ExecutionId> {
        match episode.attempt.checked_sub(1) {
            Some(attempt) => self.retire(&Mark {
                rollout: episode.rollout.clone(),
                attempt,
            }),
            None => Vec::new(),
        }
    }

    /// ROLLOUT_LIVE while an attempt has a session, RETIRE_INCOMPLETE while a loop has yet to end.
    pub fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        let attempts = self.rollouts.get(rollout).into_iter().flat_map(|r| &r.attempts);
        for (attempt, slot) in attempts {
            let (reason, what) = match slot.state {
                State::Live(_) => (Reason::RolloutLive, "has a session; let it end, or retire it"),
                _ if slot.driven => (
                    Reason::RetireIncomplete,
                    "is over, and its loop has yet to end; try again in a moment",
                ),
                _ => continue,
            };
            let episode = Episode::new(rollout.clone(), *attempt);
            let message = format!("{episode} {what} ({})", self.instance);
            return Err(self.refuse(reason, &episode, message));
        }
        Ok(())
    }

    /// Drops what is remembered of a rollout that is over. One that is not stays.
    pub fn forget(&mut self, rollout: &RolloutId) {
        if self.may_forget(rollout).is_ok() {
            self.rollouts.remove(rollout);
        }
    }

    /// Live sessions that cannot be saved, here or at the server of their tools.
    pub fn restarts(&self) -> Vec<Restart> {
        let mut restarts: Vec<Restart> = self
            .sessions()
            .filter_map(|(episode, _, session)| {
                let resources = &session.parts().resources;
                let instance = match (self.mode, session.parts().resources_mode) {
                    (CheckpointMode::RestartOnly, _) => &self.instance,
                    (_, CheckpointMode::RestartOnly) => resources,
                    _ => return None,
                };
                Some(Restart {
                    episode,
                    instance: instance.clone(),
                    reason: format!("{instance} declares restart_only"),
                })
            })
            .collect();
        restarts.sort_by(|a, b| a.episode.cmp(&b.episode));
        restarts
    }

    /// A session of the rollout that lives, or whose loop has yet to end.
    pub fn holding(&self, rollout: &RolloutId) -> Option<Episode> {
        let attempts = &self.rollouts.get(rollout)?.attempts;
        let held = attempts
            .iter()
            .find(|(_, slot)| slot.live().is_some() || slot.driven);
        held.map(|(attempt, _)| Episode::new(rollout.clone(), *attempt))
    }

    /// The sessions of the listed episodes, by reference, with what the coordinator needs to know of each.
    pub fn snapshot(&self, scope: &[Episode]) -> Vec<(PartSummary, Arc<Session>)> {
        scope
            .iter()
            .filter_map(|episode| {
                let slot = self.slot(episode)?;
                let session = slot.live()?;
                Some((summary(episode, slot.execution, session), session.clone()))
            })
            .collect()
    }

    /// How many sessions are live, and how many loops run.
    pub fn counts(&self) -> (u64, u64) {
        let slots = self
            .rollouts
            .values()
            .flat_map(|rollout| rollout.attempts.values());
        slots.fold((0, 0), |(live, driven), slot| {
            (
                live + u64::from(slot.live().is_some()),
                driven + u64::from(slot.driven),
            )
        })
    }

    fn sessions(&self) -> impl Iterator<Item = (Episode, ExecutionId, &Arc<Session>)> {
        self.rollouts.iter().flat_map(|(id, rollout)| {
            rollout.attempts.iter().filter_map(|(attempt, slot)| {
                Some((Episode::new(id.clone(), *attempt), slot.execution, slot.live()?))
            })
        })
    }

    fn insert(&mut self, episode: &Episode, execution: ExecutionId, session: Arc<Session>) {
        let rollout = self.rollouts.entry(episode.rollout.clone()).or_default();
        rollout.attempts.insert(
            episode.attempt,
            Slot {
                execution,
                driven: false,
                state: State::Live(session),
            },
        );
    }

    fn slot(&self, episode: &Episode) -> Option<&Slot> {
        self.rollouts
            .get(&episode.rollout)?
            .attempts
            .get(&episode.attempt)
    }

    fn slot_mut(&mut self, episode: &Episode) -> Option<&mut Slot> {
        self.rollouts
            .get_mut(&episode.rollout)?
            .attempts
            .get_mut(&episode.attempt)
    }

    /// The session that a call means, or why there is none.
    fn live(&self, episode: &Episode, execution: ExecutionId) -> Result<&Arc<Session>, Refusal> {
        let Some(slot) = self.slot(episode) else {
            self.not_stale(episode)?;
            return Err(self.unknown(episode, "it was neither seeded nor restored in this process"));
        };
        self.same_life(episode, execution, slot)?;
        match &slot.state {
            State::Live(session) => Ok(session),
            State::Closed => Err(self.unknown(episode, "its session was closed")),
            State::Retired => Err(self.stale(episode, "it was retired", episode.attempt.saturating_add(1))),
        }
    }

    /// STALE_ATTEMPT at or below the mark, or below an attempt that is known.
    fn not_stale(&self, episode: &Episode) -> Result<(), Refusal> {
        let Some(rollout) = self.rollouts.get(&episode.rollout) else {
            return Ok(());
        };
        if let Some(mark) = rollout.mark.filter(|mark| episode.attempt <= *mark) {
            return Err(self.stale(episode, "it was retired", mark.saturating_add(1)));
        }
        match rollout.attempts.last_key_value() {
            Some((highest, _)) if *highest > episode.attempt => {
                let why = format!("attempt {highest} of the rollout is known here");
                Err(self.stale(episode, &why, *highest))
            }
            _ => Ok(()),
        }
    }

    fn same_life(&self, episode: &Episode, execution: ExecutionId, slot: &Slot) -> Result<(), Refusal> {
        if slot.execution == execution {
            return Ok(());
        }
        let message = format!(
            "{} holds {episode} in execution {}, not {execution}; retire the attempt and send the next",
            self.instance, slot.execution
        );
        Err(self.refuse(Reason::StaleExecution, episode, message))
    }

    fn unknown(&self, episode: &Episode, why: &str) -> Refusal {
        let message = format!(
            "{} does not hold a session of {episode}: {why}; retire the attempt and send the next, or restore a checkpoint",
            self.instance
        );
        self.refuse(Reason::EpisodeUnknown, episode, message)
    }

    fn stale(&self, episode: &Episode, why: &str, next: Attempt) -> Refusal {
        let message = format!(
            "{episode} is refused on {}: {why}; send attempt {next}",
            self.instance
        );
        self.refuse(Reason::StaleAttempt, episode, message)
            .with("next_attempt", next)
    }

    fn refuse(&self, reason: Reason, episode: &Episode, message: String) -> Refusal {
        self.named(Refusal::new(reason, message), episode)
    }

    fn named(&self, refusal: Refusal, episode: &Episode) -> Refusal {
        refusal.episode(episode).instance(&self.instance)
    }
}

fn summary(episode: &Episode, execution: ExecutionId, session: &Session) -> PartSummary {
    let parts = session.parts();
    let ledger = match parts.cursor.chain {
        Some(_) => Need::Whole,
        None => Need::IfBegun,
    };
    let need = |instance: &Instance, need| PartNeeded {
        instance: instance.clone(),
        need,
    };
    PartSummary {
        episode: episode.clone(),
        execution,
        root: false,
        cursor: parts.cursor,
        needs: vec![
            need(&parts.resources, Need::Whole),
            need(&parts.policy_model, ledger),
        ],
        ledger: None,
        revision: 0,
        boundary: session.boundary(),
        task: None,
        finished: false,
    }
}
