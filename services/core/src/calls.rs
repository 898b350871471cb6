//! The model calls of every episode that a policy model holds: what a call gets, what is kept, what a capture takes.
//!
//! One entry for each episode: its ledger, the reply of the ledger's last row (kept, delivered or not, until the next operation
//! begins or the episode ends), and at most one call that is later than the ledger:
//!
//! ```text
//!            begin                    finish
//!   (none) ─────────> generating ──────────────> (none), one row more, its reply kept
//!     │ ^                │ fail
//!     │ └────────────────┘
//!     │ install, of a capture that had a call in flight
//!     └─────────────> waiting ──begin, the same request──> generating, after the cut prefix
//! ```
//!
//! So an operation is sampled again only when its generation failed, and never when its reply is kept.

mod captured;
mod cut;
mod held;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;

pub use self::{
    captured::{BrokenRecord, CapturedCall, CapturedEpisode, Restored},
    cut::{CutAnswer, CutOutcome},
};
use self::{cut::CutRound, held::Held};
use crate::{
    ids::{Attempt, CheckpointId, Digest, Episode, ExecutionId, Operation, RolloutId},
    ledger::{Entry, FinishReason, Ledger, Row, TokenSpan, Tokens},
    refusal::{Reason, Refusal},
};

/// One model call in one life of its episode: the idempotency key towards a worker.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallKey {
    /// Which episode.
    pub episode: Episode,
    /// In which life.
    pub execution: ExecutionId,
    /// Its place in the rollout.
    pub operation: Operation,
}

/// A model call as it arrives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Which.
    pub key: CallKey,
    /// Chain hash of the last ledger row that the agent has seen.
    pub parent: Option<Digest>,
    /// BLAKE3 of the request.
    pub digest: Digest,
    /// A prefix of its reply may be cut: false for constrained generations, whose grammar would start again at its root.
    pub cuttable: bool,
}

/// A reply that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The Responses object, raw JSON.
    pub response: Bytes,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Tokens sampled.
    pub output_tokens: u64,
}

/// What a finished call gives: its reply, and the ledger row that proves it.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    /// The reply.
    pub reply: Arc<Reply>,
    /// Its row.
    pub row: Arc<Row>,
}

/// What a call that arrives gets.
#[derive(Clone, PartialEq, Debug)]
pub enum Begin {
    /// It is registered as generating: sample it, after the prefix if there is one.
    Sample {
        /// Cut from an earlier life's generation of the same request.
        prefix: Option<TokenSpan>,
    },
    /// The same request is generating: wait for it.
    Join,
    /// The same request was answered: nothing is sampled.
    Kept(Answer),
}

/// What a generation brought.
#[derive(Clone, PartialEq, Debug)]
pub struct Finished {
    /// The reply to keep.
    pub reply: Reply,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// What was sampled. `None`: the engine gives no token ids.
    pub span: Option<TokenSpan>,
    /// The tokens themselves, where no token store has them.
    pub carried: Option<Arc<Tokens>>,
    /// Why it ended.
    pub finish: FinishReason,
}

/// An episode that is no longer held, and the call of it that must be stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// Which.
    pub episode: Episode,
    /// It was generating this.
    pub generating: Option<CallKey>,
}

/// How much is held, for Status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Generations in flight.
    pub calls: u64,
    /// Replies that are kept.
    pub kept: u64,
    /// Restored calls that wait for their re-issue.
    pub waiting: u64,
    /// Episodes.
    pub ledgers: u64,
    /// Rows of all ledgers.
    pub rows: u64,
}

/// The table of all episodes' calls.
#[derive(Default, Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct Calls {
    episodes: BTreeMap<Episode, Held>,
    /// The highest attempt of a rollout that has ended here, until forget: a late first call must not begin it anew.
    ended: HashMap<RolloutId, Attempt>,
    round: Option<CutRound>,
}

impl Calls {
    /// A call arrives. In each refusal nothing is sampled: EPISODE_UNKNOWN (not (0, 0) and not held, or the parent is not the ledger's
    /// last row), OPERATION_PAST, OPERATION_MISMATCH, STALE_EXECUTION, STALE_ATTEMPT.
    pub fn begin(&mut self, arrival: &Arrival) -> Result<Begin, Refusal> {
        let key = &arrival.key;
        if let Some(held) = self.episodes.get_mut(&key.episode) {
            return held.begin(arrival);
        }
        self.may_be_new(arrival)?;
        let mut held = Held::new(key.execution);
        let begin = held.begin(arrival)?;
        self.episodes.insert(key.episode.clone(), held);
        Ok(begin)
    }

    /// A policy model makes state only with operation (0, 0), once for each episode.
    fn may_be_new(&self, arrival: &Arrival) -> Result<(), Refusal> {
        let CallKey {
            episode, operation, ..
        } = &arrival.key;
        if self
            .ended
            .get(&episode.rollout)
            .is_some_and(|ended| *ended >= episode.attempt)
        {
            return Err(unknown(
                episode,
                "its ledger has ended here, acknowledged or retired",
            ));
        }
        if *operation != Operation::FIRST || arrival.parent.is_some() {
            return Err(unknown(
                episode,
                &format!("a call for operation {operation} needs a ledger here, and there is none"),
            ));
        }
        if let Some(higher) = self.higher_attempt(episode) {
            return Err(Refusal::new(
                Reason::StaleAttempt,
                format!("{episode} is over: attempt {higher} of it is held here; send that one"),
            )
            .episode(episode)
            .with("next_attempt", higher));
        }
        Ok(())
    }

    /// The highest attempt of the rollout above this one that is held.
    pub fn higher_attempt(&self, episode: &Episode) -> Option<Attempt> {
        let above = Episode::new(episode.rollout.clone(), episode.attempt.checked_add(1)?);
        let top = Episode::new(episode.rollout.clone(), Attempt::MAX);
        self.episodes
            .range(above..=top)
            .next_back()
            .map(|(episode, _)| episode.attempt)
    }

    /// A generation has finished: adds its row and keeps its reply, in one step. `None` when the call is no longer in flight
    /// (its episode ended, or goes on in another life): what it brought is dropped.
    pub fn finish(&mut self, key: &CallKey, finished: Finished) -> Option<Answer> {
        let held = self.episodes.get_mut(&key.episode)?;
        let digest = held.end_generation(key)?;
        let row = held.ledger.append(Entry {
            operation: key.operation,
            episode: key.episode.clone(),
            execution: key.execution,
            request_digest: digest,
            prompt_tokens: finished.prompt_tokens,
            span: finished.span,
            carried: finished.carried,
            finish: finished.finish,
        });
        let reply = Arc::new(finished.reply);
        held.last = Some(reply.clone());
        Some(Answer { reply, row })
    }

    /// A generation has failed: it is as if the call had not arrived.
    pub fn fail(&mut self, key: &CallKey) {
        if let Some(held) = self.episodes.get_mut(&key.episode) {
            held.end_generation(key);
        }
    }

    /// The episode is held in this life. EPISODE_UNKNOWN, STALE_EXECUTION.
    pub fn check(&self, episode: &Episode, execution: ExecutionId) -> Result<(), Refusal> {
        self.ledger(episode, execution).map(|_| ())
    }

    /// The episode's ledger as it is now. EPISODE_UNKNOWN, STALE_EXECUTION.
    pub fn ledger(&self, episode: &Episode, execution: ExecutionId) -> Result<Ledger, Refusal> {
        let held = self
            .episodes
            .get(episode)
            .ok_or_else(|| unknown(episode, "no ledger of it is here"))?;
        held.check_life(episode, execution)?;
        Ok(held.ledger.clone())
    }

    /// The generations of which a prefix may be cut, listed for the worker under this id. A round before it is over.
    pub fn begin_cut(&mut self, id: CheckpointId) -> Vec<CallKey> {
        let listed: Vec<_> = self
            .episodes
            .iter()
            .filter_map(|(episode, held)| held.cuttable(episode))
            .collect();
        self.round = Some(CutRound::new(id, &listed));
        listed
    }

    /// The worker's receipt. Each listed call that it answers exactly once is answered; a missing, double or foreign answer,
    /// and any that comes after the capture, leaves the call to be generated anew. Replies the calls that the worker has
    /// finished and whose replies are still on their way.
    pub fn receipt(&mut self, id: CheckpointId, answers: Vec<CutAnswer>) -> Vec<CallKey> {
        let Some(round) = self.round.as_mut().filter(|round| round.is(id)) else {
            return Vec::new();
        };
        let mut finished = round.take(answers);
        finished.retain(|key| self.is_generating(key));
        finished
    }

    /// The call is generating.
    pub fn is_generating(&self, key: &CallKey) -> bool {
        self.episodes
            .get(&key.episode)
            .is_some_and(|held| held.is_generating(key))
    }

    /// Asked while the mesh is closed: generations whose cut is not answered, or whose whole reply is still on its way. Before the
    /// round has begun these are all that can be cut.
    pub fn cuts_pending(&self) -> u64 {
        match &self.round {
            None => self
                .episodes
                .iter()
                .filter(|(episode, held)| held.cuttable(episode).is_some())
                .count() as u64,
            Some(round) => round.pending().filter(|key| self.is_generating(key)).count() as u64,
        }
    }

    /// The checkpoint's id has ended: its round of cuts is over.
    pub fn end_cut(&mut self, id: CheckpointId) {
        self.round.take_if(|round| round.is(id));
    }

    /// Captures the listed episodes that are held, by reference, and ends the round of cuts: a receipt that comes later
    /// changes nothing.
    pub fn capture<'a>(
        &mut self,
        id: CheckpointId,
        scope: impl IntoIterator<Item = &'a Episode>,
    ) -> Vec<CapturedEpisode> {
        let round = self.round.take_if(|round| round.is(id));
        scope
            .into_iter()
            .filter_map(|episode| Some(self.episodes.get(episode)?.capture(episode, round.as_ref())))
            .collect()
    }

    /// A restored episode goes live. Whatever its rollout had at this or a lower attempt is removed, and replied so that its
    /// generations can be stopped: no row of a dead life stays.
    pub fn install(&mut self, episode: Episode, execution: ExecutionId, restored: Restored) -> Vec<Removed> {
        let removed = self.remove_through(&episode.rollout, episode.attempt);
        self.episodes.insert(episode, Held::restored(execution, restored));
        removed
    }

    /// Ends an episode's ledger, if it is held in this life or not at all, and those of lower attempts. `None` when another life
    /// of it is held: the call was not meant for that.
    pub fn end(&mut self, episode: &Episode, execution: ExecutionId) -> Option<Vec<Removed>> {
        if self
            .episodes
            .get(episode)
            .is_some_and(|held| held.execution != execution)
        {
            return None;
        }
        Some(self.retire(&episode.rollout, episode.attempt))
    }

    /// Removes an attempt of a rollout and all earlier ones. Until [`forget`](Self::forget) they cannot begin anew.
    pub fn retire(&mut self, rollout: &RolloutId, attempt: Attempt) -> Vec<Removed> {
        let ended = self.ended.entry(rollout.clone()).or_insert(attempt);
        *ended = attempt.max(*ended);
        self.remove_through(rollout, attempt)
    }

    fn remove_through(&mut self, rollout: &RolloutId, attempt: Attempt) -> Vec<Removed> {
        let range = Episode::new(rollout.clone(), 0)..=Episode::new(rollout.clone(), attempt);
        let gone: Vec<Episode> = self
            .episodes
            .range(range)
            .map(|(episode, _)| episode.clone())
            .collect();
        gone.into_iter()
            .filter_map(|episode| {
                let generating = self.episodes.remove(&episode)?.generating(&episode);
                Some(Removed { episode, generating })
            })
            .collect()
    }

    /// An attempt of the rollout is held.
    pub fn lives(&self, rollout: &RolloutId) -> bool {
        let range = Episode::new(rollout.clone(), 0)..=Episode::new(rollout.clone(), Attempt::MAX);
        self.episodes.range(range).next().is_some()
    }

    /// Drops what is remembered of a rollout that is over.
    pub fn forget(&mut self, rollout: &RolloutId) {
        self.ended.remove(rollout);
    }

    /// How much is held.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts {
            ledgers: self.episodes.len() as u64,
            ..Counts::default()
        };
        for held in self.episodes.values() {
            held.count(&mut counts);
        }
        counts
    }
}

fn unknown(episode: &Episode, why: &str) -> Refusal {
    Refusal::new(
        Reason::EpisodeUnknown,
        format!("{episode}: {why}; the attempt ends, restore it or start over"),
    )
    .episode(episode)
}
