//! What the engine knows, and the changes that a sampler makes. Whoever holds it holds the engine's lock.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::{Notify, watch};

use super::Progress;
use crate::{
    call::{Call, CallState},
    effects::EffectLog,
    error::BackendError,
    faults::Faults,
    holds::{CallId, Holds},
    keyed::Keyed,
    log::{CallLog, RecordState},
    rows::RowStore,
    staging::Staging,
};

/// A call and those who wait for it.
pub(crate) struct Entry {
    pub(crate) call: Call,
    pub(crate) progress: watch::Sender<Progress>,
    pub(super) wake: Arc<Notify>,
}

/// Everything that the engine knows.
pub(crate) struct State {
    pub(crate) calls: HashMap<CallId, Entry>,
    pub(crate) keyed: Keyed,
    pub(crate) rows: RowStore,
    pub(crate) staging: Staging,
    pub(crate) holds: Holds,
    pub(crate) faults: Faults,
    pub(crate) log: CallLog,
    pub(crate) effects: EffectLog,
    pub(crate) weights: Arc<str>,
    pub(super) last_call: CallId,
}

/// What a sampler is to do next.
pub(super) enum Advance {
    /// Tokens were sampled, more are to come.
    More,
    /// It waits for a release.
    Held,
    /// Nothing more comes.
    Ended,
}

impl State {
    /// Samples up to `most` tokens of a call, as far as it may.
    pub(super) fn advance(&mut self, id: CallId, most: usize) -> Advance {
        let Some(entry) = self.calls.get_mut(&id) else {
            return Advance::Ended;
        };
        let call = &mut entry.call;
        if !matches!(call.state, CallState::Sampling) {
            return Advance::Ended;
        }
        let allowed = match self.holds.allowance(id, call.ordinal, call.sampled() as u64) {
            Some(0) => return Advance::Held,
            Some(allowed) => usize::try_from(allowed).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        if call.left() == 0 {
            self.finish(id);
            return Advance::Ended;
        }
        let before = call.sampled();
        call.sample(most.min(allowed), &self.weights);
        self.log.sampled(id, call.sampled() - before);
        entry.progress.send_replace(Progress {
            tokens: call.tokens().len(),
            ended: false,
        });
        Advance::More
    }

    /// The rows are staged before anybody can read that the call is over.
    fn finish(&mut self, id: CallId) {
        let Some(entry) = self.calls.get_mut(&id) else {
            return;
        };
        let (finish, row) = entry.call.finish();
        entry.call.state = if entry.call.key.is_some() {
            let stored = self.rows.insert(row);
            CallState::Finished(finish, stored.row.clone(), Some(stored))
        } else {
            CallState::Finished(finish, Arc::new(row), None)
        };
        self.log.becomes(id, RecordState::Finished);
        self.holds.forget(id);
        entry.progress.send_replace(Progress {
            tokens: entry.call.tokens().len(),
            ended: true,
        });
    }

    /// Stops a call that is not over. True if it was going on.
    pub(crate) fn stop(&mut self, id: CallId, why: BackendError) -> bool {
        let Some(entry) = self.calls.get_mut(&id) else {
            return false;
        };
        if !matches!(entry.call.state, CallState::Sampling) {
            return false;
        }
        entry.call.state = CallState::Stopped(why);
        self.log.becomes(id, RecordState::Cancelled);
        self.holds.forget(id);
        entry.wake.notify_one();
        entry.progress.send_replace(Progress {
            tokens: entry.call.tokens().len(),
            ended: true,
        });
        true
    }
}
