//! All sessions of a server, by rollout and attempt.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;

use super::session::{Applied, Begin, KeptReply, Session, SessionView};
use crate::{
    ids::{Attempt, Digest, Episode, ExecutionId, Instance, Operation, RolloutId},
    refusal::{Reason, Refusal},
};

/// A session that goes live by a restore.
#[derive(Clone, Debug)]
pub struct RestoredSession<S> {
    /// The episode as it is called from now on.
    pub episode: Episode,
    /// Its life from now on.
    pub execution: ExecutionId,
    /// The task row, raw JSON.
    pub task: Bytes,
    /// The environment's state.
    pub state: S,
    /// The session's revision.
    pub revision: u64,
    /// Replies of the latest turn, in order.
    pub replies: Vec<KeptReply>,
    /// How long it may go on without being called, if its record says so.
    pub time_left: Option<Duration>,
}

/// What is held of an attempt.
#[derive(Clone, Debug)]
enum Slot<S> {
    Live(Session<S>),
    /// It was here and is over.
    Over(ExecutionId, Ended),
}

/// How a session ended that leaves its execution behind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    Closed,
    /// Nobody called it for so long.
    Expired(Duration),
}

impl Ended {
    /// For a call that comes too late.
    fn why(self) -> String {
        match self {
            Self::Closed => "its session was closed".into(),
            Self::Expired(ttl) => {
                format!("its session ended because nobody called it for {ttl:?}, its time to live")
            }
        }
    }
}

impl<S> Slot<S> {
    /// An attempt that lives keeps others of its rollout out; one that was retired only ends its call.
    fn lives(&self) -> bool {
        matches!(self, Self::Live(session) if !session.retired)
    }

    fn retired(&self) -> bool {
        matches!(self, Self::Live(session) if session.retired)
    }

    fn execution(&self) -> ExecutionId {
        match self {
            Self::Live(session) => session.execution,
            Self::Over(execution, _) => *execution,
        }
    }
}

/// The session table: a pure value. `S` is the environment's state, immutable and cheap to clone.
#[derive(Clone, Debug)]
pub struct Sessions<S> {
    instance: Instance,
    /// How long a session may go without being called, in open time; `None`: for good.
    pub(super) ttl: Option<Duration>,
    rollouts: BTreeMap<RolloutId, BTreeMap<Attempt, Slot<S>>>,
}

impl<S: Clone> Sessions<S> {
    /// An empty table; refusals name the instance.
    pub fn new(instance: Instance) -> Self {
        Self {
            instance,
            ttl: None,
            rollouts: BTreeMap::new(),
        }
    }

    /// Whether a seed was done before: `Some` revision of its reply, or `None` when a session is to be made.
    /// STALE_EXECUTION for another life, STALE_ATTEMPT below a living attempt, ATTEMPT_LIVE above one, TASK_MISMATCH for another
    /// task, EPISODE_UNKNOWN when the session is over.
    pub fn seeded(
        &self,
        episode: &Episode,
        execution: ExecutionId,
        task: &[u8],
    ) -> Result<Option<u64>, Refusal> {
        let Some(attempts) = self.rollouts.get(&episode.rollout) else {
            return Ok(None);
        };
        if let Some(slot) = attempts.get(&episode.attempt) {
            self.same_life(episode, execution, slot)?;
            return match slot {
                Slot::Over(_, ended) => Err(self.unknown(episode, &ended.why())),
                Slot::Live(session) if session.retired => {
                    Err(self.unknown(episode, "its attempt was retired"))
                }
                Slot::Live(session) if session.task != task => Err(self.refuse(
                    Reason::TaskMismatch,
                    episode,
                    format!(
                        "{episode} was seeded with another task on {}; send the original row",
                        self.instance
                    ),
                )),
                // As it was answered the first time: calls may have been applied since.
                Slot::Live(_) => Ok(Some(0)),
            };
        }
        self.not_below(episode)?;
        match attempts.iter().find(|(attempt, slot)| **attempt < episode.attempt && slot.lives()) {
            None => Ok(None),
            Some((live, _)) => Err(self
                .refuse(
                    Reason::AttemptLive,
                    episode,
                    format!(
                        "attempt {live} of {} still lives on {}; retire it, then send the attempt that the reply names",
                        episode.rollout, self.instance
                    ),
                )
                .with("live_attempt", live)),
        }
    }

    /// Makes a session. The same rules as [`seeded`](Self::seeded), which it asks again: the reply's revision.
    pub fn seed(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        task: Bytes,
        state: S,
    ) -> Result<u64, Refusal> {
        if let Some(revision) = self.seeded(episode, execution, &task)? {
            return Ok(revision);
        }
        let attempts = self.rollouts.entry(episode.rollout.clone()).or_default();
        attempts.retain(|attempt, slot| *attempt > episode.attempt || matches!(slot, Slot::Live(_)));
        attempts.insert(episode.attempt, Slot::Live(Session::new(execution, task, state)));
        Ok(0)
    }

    /// Decides what becomes of a tool call. `Apply`: it is in flight until [`finish`](Self::finish) or [`abort`](Self::abort).
    pub fn begin(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        operation: Operation,
        digest: Digest,
    ) -> Result<Begin<S>, Refusal> {
        self.live(episode, execution)?;
        let instance = self.instance.clone();
        match self.session_mut(episode, execution) {
            Some(session) => session
                .begin(operation, digest)
                .map_err(|refusal| refusal.episode(episode).instance(&instance)),
            None => Err(self.unknown(episode, "its session is not held")),
        }
    }

    /// The call in flight ended: effect and reply become visible together. STALE_ATTEMPT or EPISODE_UNKNOWN when the session
    /// was retired, replaced or closed meanwhile: then nothing is applied.
    pub fn finish(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        operation: Operation,
        applied: Applied<S>,
    ) -> Result<KeptReply, Refusal> {
        let reply = match self.session_mut(episode, execution) {
            Some(session) if !session.retired => session.finish(operation, applied),
            _ => None,
        };
        if reply.is_none() {
            self.abort(episode, execution, operation);
        }
        reply.ok_or_else(|| self.unknown(episode, "its session ended while the call ran"))
    }

    /// The call in flight came to nothing.
    pub fn abort(&mut self, episode: &Episode, execution: ExecutionId, operation: Operation) {
        let Some(session) = self.session_mut(episode, execution) else {
            return;
        };
        session.in_flight.take_if(|(running, _)| *running == operation);
        if session.retired && session.in_flight.is_none() {
            self.remove(episode);
        }
    }

    /// A session as it is now: for a verifier.
    pub fn view(&self, episode: &Episode, execution: ExecutionId) -> Result<SessionView<S>, Refusal> {
        self.live(episode, execution).map(|session| session.view(episode))
    }

    /// Ends a session. True if it was there; one that never was or is over: false. STALE_EXECUTION for another life.
    pub fn close(&mut self, episode: &Episode, execution: ExecutionId) -> Result<bool, Refusal> {
        let Some(slot) = self.slot(episode) else {
            return Ok(false);
        };
        self.same_life(episode, execution, slot)?;
        let was_live = matches!(slot, Slot::Live(_));
        if was_live {
            self.end(episode, execution, Ended::Closed);
        }
        Ok(was_live)
    }

    /// Retires an attempt and all earlier ones: what has no call in flight is freed now, the rest when its call ends.
    /// Replies how many live sessions were retired by this call.
    pub fn retire(&mut self, rollout: &RolloutId, through: Attempt) -> u64 {
        let Some(attempts) = self.rollouts.get_mut(rollout) else {
            return 0;
        };
        let mut retired = 0;
        attempts.retain(|attempt, slot| match slot {
            _ if *attempt > through => true,
            Slot::Over(..) => false,
            Slot::Live(session) => {
                retired += u64::from(!session.retired);
                session.retired = true;
                session.in_flight.is_some()
            }
        });
        self.tidy(rollout);
        retired
    }

    /// True while a call of a retired attempt at or below `through` still runs.
    pub fn retiring(&self, rollout: &RolloutId, through: Attempt) -> bool {
        self.attempts(rollout)
            .any(|(attempt, slot)| attempt <= through && slot.retired())
    }

    /// ROLLOUT_LIVE while an attempt lives, RETIRE_INCOMPLETE while a retired one's call still runs.
    pub fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
        for (attempt, slot) in self.attempts(rollout) {
            let episode = Episode::new(rollout.clone(), attempt);
            if slot.lives() {
                let message = format!(
                    "{episode} has a session on {}; let it end, or retire it first",
                    self.instance
                );
                return Err(self.refuse(Reason::RolloutLive, &episode, message));
            }
            if matches!(slot, Slot::Live(_)) {
                let message = format!(
                    "a tool call of {episode}, which is retired, still runs on {}; try again when it has ended",
                    self.instance
                );
                return Err(self.refuse(Reason::RetireIncomplete, &episode, message));
            }
        }
        Ok(())
    }

    /// Drops what is remembered of a rollout that is over. One that lives stays.
    pub fn forget(&mut self, rollout: &RolloutId) {
        if self.may_forget(rollout).is_ok() {
            self.rollouts.remove(rollout);
        }
    }

    /// A restored session goes live, at `now` of the open time; whatever is held of this and lower attempts of the rollout is
    /// dropped first. It may go without a call for as long as it could when it was saved, but no longer than this server lets
    /// sessions.
    pub fn activate(&mut self, restored: RestoredSession<S>, now: Duration) {
        let RestoredSession {
            episode,
            execution,
            task,
            state,
            revision,
            replies,
            time_left,
        } = restored;
        let mut session = Session::new(execution, task, state);
        session.revision = revision;
        session.replies = replies.into();
        session.ends = self.ends_restored(time_left, now);
        let attempts = self.rollouts.entry(episode.rollout).or_default();
        attempts.retain(|attempt, _| *attempt > episode.attempt);
        attempts.insert(episode.attempt, Slot::Live(session));
    }

    /// Live sessions of an episode, by reference. A retired one is not there.
    pub fn get(&self, episode: &Episode) -> Option<SessionView<S>> {
        self.live_session(episode).map(|session| session.view(episode))
    }

    /// The episodes of all live sessions, in order.
    pub fn episodes(&self) -> impl Iterator<Item = Episode> + '_ {
        self.live_sessions().map(|(episode, _)| episode)
    }

    /// How many sessions are held, and how many of them have a call in flight.
    pub fn counts(&self) -> (u64, u64) {
        let (mut sessions, mut calls) = (0, 0);
        for slot in self.rollouts.values().flat_map(BTreeMap::values) {
            if let Slot::Live(session) = slot {
                sessions += 1;
                calls += u64::from(session.in_flight.is_some());
            }
        }
        (sessions, calls)
    }

    pub(super) fn live_session(&self, episode: &Episode) -> Option<&Session<S>> {
        match self.slot(episode)? {
            Slot::Live(session) if !session.retired => Some(session),
            _ => None,
        }
    }

    pub(super) fn live_sessions(&self) -> impl Iterator<Item = (Episode, &Session<S>)> {
        self.rollouts.iter().flat_map(|(rollout, attempts)| {
            attempts.iter().filter_map(|(attempt, slot)| match slot {
                Slot::Live(session) if !session.retired => {
                    Some((Episode::new(rollout.clone(), *attempt), session))
                }
                _ => None,
            })
        })
    }

    fn attempts(&self, rollout: &RolloutId) -> impl Iterator<Item = (Attempt, &Slot<S>)> {
        self.rollouts
            .get(rollout)
            .into_iter()
            .flatten()
            .map(|(attempt, slot)| (*attempt, slot))
    }

    fn slot(&self, episode: &Episode) -> Option<&Slot<S>> {
        self.rollouts.get(&episode.rollout)?.get(&episode.attempt)
    }

    /// The session that a call means, or why there is none.
    fn live(&self, episode: &Episode, execution: ExecutionId) -> Result<&Session<S>, Refusal> {
        let Some(slot) = self.slot(episode) else {
            self.not_below(episode)?;
            return Err(self.unknown(episode, "it was neither seeded nor restored in this process"));
        };
        self.same_life(episode, execution, slot)?;
        match slot {
            Slot::Live(session) if !session.retired => Ok(session),
            Slot::Live(_) => Err(self.unknown(episode, "its attempt was retired")),
            Slot::Over(_, ended) => Err(self.unknown(episode, &ended.why())),
        }
    }

    pub(super) fn session_mut(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
    ) -> Option<&mut Session<S>> {
        match self
            .rollouts
            .get_mut(&episode.rollout)?
            .get_mut(&episode.attempt)?
        {
            Slot::Live(session) if session.execution == execution => Some(session),
            _ => None,
        }
    }

    /// A session that is over leaves its execution behind, and how it ended.
    pub(super) fn end(&mut self, episode: &Episode, execution: ExecutionId, ended: Ended) {
        let attempts = self.rollouts.entry(episode.rollout.clone()).or_default();
        attempts.insert(episode.attempt, Slot::Over(execution, ended));
    }

    fn remove(&mut self, episode: &Episode) {
        if let Some(attempts) = self.rollouts.get_mut(&episode.rollout) {
            attempts.remove(&episode.attempt);
        }
        self.tidy(&episode.rollout);
    }

    fn tidy(&mut self, rollout: &RolloutId) {
        if self.rollouts.get(rollout).is_some_and(BTreeMap::is_empty) {
            self.rollouts.remove(rollout);
        }
    }

    /// STALE_ATTEMPT when a higher attempt of the rollout lives, or has lived here and is over.
    fn not_below(&self, episode: &Episode) -> Result<(), Refusal> {
        let higher = self
            .attempts(&episode.rollout)
            .find(|(attempt, slot)| *attempt > episode.attempt && !slot.retired());
        match higher {
            None => Ok(()),
            Some((next, _)) => Err(self
                .refuse(
                    Reason::StaleAttempt,
                    episode,
                    format!(
                        "{episode} is below attempt {next}, which {} has seen; send attempt {next}",
                        self.instance
                    ),
                )
                .with("next_attempt", next)),
        }
    }

    fn same_life(&self, episode: &Episode, execution: ExecutionId, slot: &Slot<S>) -> Result<(), Refusal> {
        if slot.execution() == execution {
            return Ok(());
        }
        let held = slot.execution();
        let message = format!(
            "{} holds {episode} in execution {held}, not {execution}; retire the attempt and send the next",
            self.instance
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

    fn refuse(&self, reason: Reason, episode: &Episode, message: String) -> Refusal {
        Refusal::new(reason, message)
            .episode(episode)
            .instance(&self.instance)
    }
}
