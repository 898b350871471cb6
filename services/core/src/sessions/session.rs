//! One session: its state, its revision, and the replies of its latest turn.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    ids::{Digest, Episode, ExecutionId, Operation},
    refusal::{Reason, Refusal},
};

/// The digest of a tool call: BLAKE3 over the name, a zero byte, and the arguments as they arrived.
pub fn call_digest(name: &str, arguments: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(name.as_bytes());
    hasher.update(&[0]);
    hasher.update(arguments);
    *hasher.finalize().as_bytes()
}

/// A tool's reply that is kept until the next turn begins to be answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptReply {
    /// Which operation.
    pub operation: Operation,
    /// The call's digest.
    pub digest: Digest,
    /// What the model is to read.
    pub output: Bytes,
    /// The call failed; the session is as it was.
    pub is_error: bool,
    /// The session's revision after it.
    pub revision: u64,
}

/// What a tool call came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied<S> {
    /// What the model is to read.
    pub output: Bytes,
    /// The state after the call; `None` when the call failed and the session is as it was.
    pub state: Option<S>,
}

/// What to do with a tool call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begin<S> {
    /// It was applied before: this is its reply.
    Kept(KeptReply),
    /// It runs already: wait for it.
    Joined,
    /// Apply it to this state, then say `finish` or `abort`.
    Apply(S),
}

/// A session by reference, as of now.
#[derive(Clone, Debug)]
pub struct SessionView<S> {
    /// Which episode.
    pub episode: Episode,
    /// In which life.
    pub execution: ExecutionId,
    /// The task row, raw JSON.
    pub task: Bytes,
    /// The environment's state.
    pub state: S,
    /// Grows with every applied call.
    pub revision: u64,
    /// Replies of the latest turn, in order.
    pub replies: Arc<Vec<KeptReply>>,
    /// When it ends if nobody calls it, in open time. `None`: not by itself, or not yet, since it is being used.
    pub ends: Option<Duration>,
}

/// A live session.
#[derive(Clone, Debug)]
pub(super) struct Session<S> {
    pub(super) execution: ExecutionId,
    pub(super) task: Bytes,
    pub(super) state: S,
    pub(super) revision: u64,
    pub(super) replies: Arc<Vec<KeptReply>>,
    /// The call that runs: a session's calls run one after another.
    pub(super) in_flight: Option<(Operation, Digest)>,
    /// How many verifiers read it now.
    pub(super) verifying: u32,
    /// When it ends if nobody calls it until then; `None` on a server without a time to live.
    pub(super) ends: Option<Duration>,
    /// Its attempt was retired; it goes when the call in flight ends.
    pub(super) retired: bool,
}

impl<S: Clone> Session<S> {
    pub(super) fn new(execution: ExecutionId, task: Bytes, state: S) -> Self {
        Self {
            execution,
            task,
            state,
            revision: 0,
            replies: Arc::default(),
            in_flight: None,
            verifying: 0,
            ends: None,
            retired: false,
        }
    }

    /// The last operation that was applied.
    pub(super) fn last(&self) -> Option<Operation> {
        self.replies.last().map(|reply| reply.operation)
    }

    /// Decides what becomes of a call; in flight from here on if it is to be applied.
    pub(super) fn begin(&mut self, operation: Operation, digest: Digest) -> Result<Begin<S>, Refusal> {
        if let Some((running, running_digest)) = self.in_flight {
            if operation == running {
                return if digest == running_digest {
                    Ok(Begin::Joined)
                } else {
                    Err(mismatch(operation))
                };
            }
            if operation.turn < running.turn {
                return Err(past(operation, running));
            }
        }
        if let Some(kept) = self.replies.iter().find(|reply| reply.operation == operation) {
            return if kept.digest == digest {
                Ok(Begin::Kept(kept.clone()))
            } else {
                Err(mismatch(operation))
            };
        }
        if let Some(last) = self.last().filter(|last| operation < *last) {
            return Err(past(operation, last));
        }
        if let Some((running, _)) = self.in_flight {
            return Err(Refusal::new(
                Reason::InvalidRequest,
                format!(
                    "tool call {operation} while {running} still runs: a session's calls run one after another; \
                     wait for its reply"
                ),
            )
            .with("field", "operation"));
        }
        self.in_flight = Some((operation, digest));
        Ok(Begin::Apply(self.state.clone()))
    }

    /// The call in flight ended: its effect and its reply become visible together.
    pub(super) fn finish(&mut self, operation: Operation, applied: Applied<S>) -> Option<KeptReply> {
        let (_, digest) = self.in_flight.take_if(|(running, _)| *running == operation)?;
        let is_error = applied.state.is_none();
        if let Some(state) = applied.state {
            self.state = state;
            self.revision += 1;
        }
        let reply = KeptReply {
            operation,
            digest,
            output: applied.output,
            is_error,
            revision: self.revision,
        };
        let replies = Arc::make_mut(&mut self.replies);
        if replies
            .last()
            .is_some_and(|last| last.operation.turn != operation.turn)
        {
            replies.clear();
        }
        replies.push(reply.clone());
        Some(reply)
    }

    pub(super) fn view(&self, episode: &Episode) -> SessionView<S> {
        SessionView {
            episode: episode.clone(),
            execution: self.execution,
            task: self.task.clone(),
            state: self.state.clone(),
            revision: self.revision,
            replies: Arc::clone(&self.replies),
            ends: self.ends(),
        }
    }
}

fn mismatch(operation: Operation) -> Refusal {
    Refusal::new(
        Reason::OperationMismatch,
        format!(
            "tool call {operation} was made before with another name or other arguments; nothing was applied, the \
             attempt cannot go on: retire it and send the next"
        ),
    )
    .with("operation", operation)
}

fn past(operation: Operation, last: Operation) -> Refusal {
    Refusal::new(
        Reason::OperationPast,
        format!(
            "tool call {operation} is older than {last} and its reply is no longer kept; nothing was applied, the \
             attempt cannot go on: retire it and send the next"
        ),
    )
    .with("operation", operation)
}
