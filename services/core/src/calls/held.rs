//! One episode of the table, and the rules for a call that arrives for it.

use std::sync::Arc;

use super::{
    Answer, Arrival, Begin, CallKey, CapturedCall, CapturedEpisode, Counts, Reply, Restored, cut::CutRound,
    unknown,
};
use crate::{
    ids::{Digest, Episode, ExecutionId, Operation},
    ledger::{Ledger, TokenSpan},
    refusal::{Reason, Refusal},
};

/// What is held of one episode.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Held {
    pub(super) execution: ExecutionId,
    pub(super) ledger: Ledger,
    /// The reply of the ledger's last row. `None` once a later operation has begun.
    pub(super) last: Option<Arc<Reply>>,
    pending: Option<Pending>,
}

/// The one call that is later than the ledger.
#[derive(Clone, Debug)]
struct Pending {
    operation: Operation,
    digest: Digest,
    state: PendingState,
}

#[derive(Clone, Debug)]
enum PendingState {
    /// Restored, and not re-issued yet.
    Waiting { prefix: Option<TokenSpan> },
    /// The engine works on it.
    Generating { cuttable: bool },
}

impl Held {
    pub(super) fn new(execution: ExecutionId) -> Self {
        Self {
            execution,
            ledger: Ledger::default(),
            last: None,
            pending: None,
        }
    }

    pub(super) fn restored(execution: ExecutionId, restored: Restored) -> Self {
        let Restored {
            ledger,
            last,
            waiting,
        } = restored;
        let pending = waiting.map(|call| Pending {
            operation: call.operation,
            digest: call.digest,
            state: PendingState::Waiting { prefix: call.prefix },
        });
        Self {
            execution,
            ledger,
            last,
            pending,
        }
    }

    pub(super) fn check_life(&self, episode: &Episode, execution: ExecutionId) -> Result<(), Refusal> {
        if self.execution == execution {
            return Ok(());
        }
        Err(Refusal::new(
            Reason::StaleExecution,
            format!(
                "{episode} lives here as execution {}, not as {execution}; the attempt ends",
                self.execution
            ),
        )
        .episode(episode))
    }

    /// A call arrives for this episode: checks first, and changes something only when nothing is refused.
    pub(super) fn begin(&mut self, arrival: &Arrival) -> Result<Begin, Refusal> {
        let CallKey {
            episode,
            execution,
            operation,
        } = &arrival.key;
        self.check_life(episode, *execution)?;
        let tip = self.ledger.tip();
        if let Some(tip) = tip
            && *operation < tip.operation
        {
            return Err(self.past(arrival));
        }
        if tip.is_some_and(|tip| *operation == tip.operation) {
            return self.again(arrival);
        }
        // Later than the ledger: it must follow its last row, and be the only one that does.
        if arrival.parent != tip.map(|tip| tip.chain) {
            return Err(unknown(
                episode,
                &format!("operation {operation} does not follow the ledger's last row"),
            ));
        }
        let next = self.ledger.next_operation();
        if *operation != next {
            return Err(unknown(
                episode,
                &format!("operation {operation} came before its predecessor, {next}, was answered"),
            ));
        }
        let prefix = match &self.pending {
            None => None,
            Some(pending) if pending.digest != arrival.digest => return Err(mismatch(arrival)),
            Some(Pending {
                state: PendingState::Generating { .. },
                ..
            }) => return Ok(Begin::Join),
            Some(Pending {
                state: PendingState::Waiting { prefix },
                ..
            }) => prefix.clone(),
        };
        self.last = None;
        self.pending = Some(Pending {
            operation: *operation,
            digest: arrival.digest,
            state: PendingState::Generating {
                cuttable: arrival.cuttable,
            },
        });
        Ok(Begin::Sample { prefix })
    }

    /// The operation of the ledger's last row, once more.
    fn again(&self, arrival: &Arrival) -> Result<Begin, Refusal> {
        let row = self
            .ledger
            .last()
            .expect("the caller has compared with the last row");
        if row.entry.request_digest != arrival.digest {
            return Err(mismatch(arrival));
        }
        if row.parent != arrival.parent {
            return Err(unknown(
                &arrival.key.episode,
                &format!(
                    "operation {} was answered after another parent",
                    arrival.key.operation
                ),
            ));
        }
        match &self.last {
            Some(reply) => Ok(Begin::Kept(Answer {
                reply: reply.clone(),
                row: row.clone(),
            })),
            None => Err(self.past(arrival)),
        }
    }

    fn past(&self, arrival: &Arrival) -> Refusal {
        let CallKey {
            episode, operation, ..
        } = &arrival.key;
        let last = self
            .pending
            .as_ref()
            .map(|pending| pending.operation)
            .or(self.ledger.tip().map(|tip| tip.operation))
            .unwrap_or(Operation::FIRST);
        Refusal::new(
            Reason::OperationPast,
            format!("{episode}: operation {operation} is over, the last is {last}; nothing was sampled and the attempt ends"),
        )
        .episode(episode)
        .with("operation", operation)
    }

    /// Ends the generation of this very call, and replies its request's digest. `None`: it is not generating.
    pub(super) fn end_generation(&mut self, key: &CallKey) -> Option<Digest> {
        if !self.is_generating(key) {
            return None;
        }
        self.pending.take().map(|pending| pending.digest)
    }

    pub(super) fn is_generating(&self, key: &CallKey) -> bool {
        self.generating(&key.episode)
            .is_some_and(|generating| generating == *key)
    }

    pub(super) fn generating(&self, episode: &Episode) -> Option<CallKey> {
        let pending = self.pending.as_ref()?;
        matches!(pending.state, PendingState::Generating { .. }).then(|| CallKey {
            episode: episode.clone(),
            execution: self.execution,
            operation: pending.operation,
        })
    }

    pub(super) fn cuttable(&self, episode: &Episode) -> Option<CallKey> {
        let pending = self.pending.as_ref()?;
        let PendingState::Generating { cuttable: true } = pending.state else {
            return None;
        };
        self.generating(episode)
    }

    /// Finished: the whole reply is in `last`. Else the receipt's prefix, or that of a call which waits since a restore. Else
    /// nothing but which call it was.
    pub(super) fn capture(&self, episode: &Episode, round: Option<&CutRound>) -> CapturedEpisode {
        let in_flight = self.pending.as_ref().map(|pending| CapturedCall {
            operation: pending.operation,
            digest: pending.digest,
            prefix: match &pending.state {
                PendingState::Waiting { prefix } => prefix.clone(),
                PendingState::Generating { .. } => self
                    .generating(episode)
                    .and_then(|key| round?.prefix(&key).cloned())
                    .filter(|prefix| prefix.tokens > 0),
            },
        });
        CapturedEpisode {
            episode: episode.clone(),
            execution: self.execution,
            ledger: self.ledger.clone(),
            last: self.last.clone(),
            in_flight,
        }
    }

    pub(super) fn count(&self, counts: &mut Counts) {
        counts.rows += self.ledger.len() as u64;
        counts.kept += u64::from(self.last.is_some());
        match self.pending.as_ref().map(|pending| &pending.state) {
            Some(PendingState::Generating { .. }) => counts.calls += 1,
            Some(PendingState::Waiting { .. }) => counts.waiting += 1,
            None => {}
        }
    }
}

fn mismatch(arrival: &Arrival) -> Refusal {
    let CallKey {
        episode, operation, ..
    } = &arrival.key;
    Refusal::new(
        Reason::OperationMismatch,
        format!("{episode}: operation {operation} was called with another request before; nothing was sampled and the attempt ends"),
    )
    .episode(episode)
    .with("operation", operation)
}
