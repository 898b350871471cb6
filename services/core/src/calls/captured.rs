//! What a capture takes of an episode, and what a restore brings back.

use std::sync::Arc;

use super::Reply;
use crate::{
    ids::{Digest, Episode, ExecutionId, Operation},
    ledger::{BrokenChain, Ledger, Row, TokenSpan},
};

/// A call that had no reply at the capture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedCall {
    /// Its place in the rollout.
    pub operation: Operation,
    /// BLAKE3 of its request.
    pub digest: Digest,
    /// What was sampled of it and is durable. `None`: it is generated anew.
    pub prefix: Option<TokenSpan>,
}

/// One episode as of the capture: references, with the ledger's length pinned.
#[derive(Clone, Debug)]
pub struct CapturedEpisode {
    /// Which.
    pub episode: Episode,
    /// In which life.
    pub execution: ExecutionId,
    /// Its rows.
    pub ledger: Ledger,
    /// The reply of the last row, where no later operation had begun.
    pub last: Option<Arc<Reply>>,
    /// The call later than the ledger.
    pub in_flight: Option<CapturedCall>,
}

/// An episode that was read from a record, checked, and is not live yet.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Its rows.
    pub(super) ledger: Ledger,
    /// The reply of the last row.
    pub(super) last: Option<Arc<Reply>>,
    /// The call that waits for its re-issue.
    pub(super) waiting: Option<CapturedCall>,
}

/// A record that cannot be what a capture wrote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BrokenRecord {
    /// The rows are no chain.
    #[error(transparent)]
    Chain(#[from] BrokenChain),
    /// The kept reply is not that of the last row.
    #[error("the kept reply is of operation {0}, and not that of the ledger's last row")]
    ForeignReply(Operation),
    /// The call in flight does not follow the ledger.
    #[error("the call in flight, operation {0}, does not follow the ledger's last row")]
    CallNotNext(Operation),
}

impl Restored {
    /// Checks that rows, kept reply and call in flight fit together.
    pub fn new(
        rows: Vec<Row>,
        last: Option<(Operation, Digest, Reply)>,
        in_flight: Option<CapturedCall>,
    ) -> Result<Self, BrokenRecord> {
        let ledger = Ledger::from_rows(rows)?;
        let tip = ledger.last();
        if let Some((operation, digest, _)) = &last
            && !tip
                .is_some_and(|row| row.entry.operation == *operation && row.entry.request_digest == *digest)
        {
            return Err(BrokenRecord::ForeignReply(*operation));
        }
        if let Some(call) = &in_flight
            && call.operation != ledger.next_operation()
        {
            return Err(BrokenRecord::CallNotNext(call.operation));
        }
        Ok(Self {
            ledger,
            last: last.map(|(_, _, reply)| Arc::new(reply)),
            waiting: in_flight,
        })
    }

    /// Its rows.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The prefix of the call that waits.
    pub fn prefix(&self) -> Option<&TokenSpan> {
        self.waiting.as_ref()?.prefix.as_ref()
    }

    /// The prefix is lost: the call will be generated anew.
    pub fn drop_prefix(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.prefix = None;
        }
    }
}
