//! What a test may ask about the model calls: a record of each, and counters of constant cost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::holds::CallId;

/// How a model call stands in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordState {
    /// In flight, held or not.
    Received,
    /// Sampled to its end; nobody has taken the reply.
    Finished,
    /// Its reply was handed out.
    Returned,
    /// Stopped before its end.
    Cancelled,
}

/// One model call: sampled once, whoever joined it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallRecord {
    /// In the order of arrival.
    pub id: CallId,
    /// The rollout; empty where the caller did not say.
    pub rollout: String,
    /// The attempt, where the caller said.
    pub attempt: Option<u32>,
    /// The life, where the caller said.
    pub execution: Option<String>,
    /// The turn, where the caller said.
    pub turn: Option<u32>,
    /// The index, where the caller said.
    pub index: Option<u32>,
    /// `worker`, `chat` or `completions`.
    pub door: String,
    /// BLAKE3 of the prompt's ids, hexadecimal.
    pub prompt_digest: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the reply that came from a prefix.
    pub prefix_tokens: usize,
    /// Tokens of the reply that this call sampled.
    pub sampled_tokens: usize,
    /// How it stands.
    pub state: RecordState,
    /// Callers that joined it while it was in flight.
    pub joined: u32,
    /// Callers that got its finished reply again.
    pub replayed: u32,
}

/// Counted since the start or the last reset, but for `held`: that is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Model calls that arrived.
    pub received: u64,
    /// Sampled to their end.
    pub finished: u64,
    /// Of those, replies handed out at least once.
    pub returned: u64,
    /// Stopped before their end.
    pub cancelled: u64,
    /// Callers that joined a call in flight.
    pub joined: u64,
    /// Callers that got a finished reply again.
    pub replayed: u64,
    /// Tokens sampled.
    pub sampled_tokens: u64,
    /// Effects reported.
    pub effects: u64,
    /// Calls that are held now.
    pub held: u64,
}

/// The records and the counters.
#[derive(Default, Debug)]
pub struct CallLog {
    records: BTreeMap<CallId, CallRecord>,
    /// The counters.
    pub counts: Counts,
}

impl CallLog {
    /// A call that arrived.
    pub fn received(&mut self, record: CallRecord) {
        self.counts.received += 1;
        self.records.insert(record.id, record);
    }

    /// Tokens that a call sampled.
    pub fn sampled(&mut self, id: CallId, tokens: usize) {
        self.counts.sampled_tokens += tokens as u64;
        if let Some(record) = self.records.get_mut(&id) {
            record.sampled_tokens += tokens;
        }
    }

    /// A caller that joined.
    pub fn joined(&mut self, id: CallId) {
        if let Some(record) = self.records.get_mut(&id) {
            record.joined += 1;
            self.counts.joined += 1;
        }
    }

    /// A caller that asked for a finished reply again.
    pub fn replayed(&mut self, id: CallId) {
        if let Some(record) = self.records.get_mut(&id) {
            record.replayed += 1;
            self.counts.replayed += 1;
        }
    }

    /// A call's new state. What is over stays over; calls from before a reset are not counted.
    pub fn becomes(&mut self, id: CallId, state: RecordState) {
        let Some(record) = self.records.get_mut(&id) else {
            return;
        };
        match (record.state, state) {
            (RecordState::Received, RecordState::Finished) => self.counts.finished += 1,
            (RecordState::Received, RecordState::Cancelled) => self.counts.cancelled += 1,
            (RecordState::Finished, RecordState::Returned) => self.counts.returned += 1,
            _ => return,
        }
        record.state = state;
    }

    /// The records of a rollout, or all, in the order of arrival.
    pub fn records(&self, rollout: Option<&str>) -> Vec<CallRecord> {
        let all = self.records.values();
        all.filter(|record| rollout.is_none_or(|r| r == record.rollout))
            .cloned()
            .collect()
    }
}
