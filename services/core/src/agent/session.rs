//! An agent's session at a boundary.
//!
//! ```text
//!            activate                 reply with calls
//!   waiting ─────────> model call ───────────────────────> tool call 1 ─> tool call 2 ─> ... ─> model call
//!      ^                   │ reply without calls, or max_steps after the last tool call
//!      └───────────────────┘ the activation's response is kept
//! ```
//!
//! A session is an immutable value: a reply makes a new one, so a capture that holds the older one keeps its boundary. Both
//! share the bytes of their items; a conversation is only ever added to.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Params, Usage,
    items::{self, FunctionCall},
    response::{Envelope, Incomplete, response},
};
use crate::{
    ids::{Digest, Instance, Operation},
    parts::{CheckpointMode, Cursor},
    refusal::{Reason, Refusal},
};

/// What a session is made with.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Names the response of an activation, with its number: the rollout.
    pub name: String,
    /// `responses_create_params`.
    pub params: Params,
    /// Where tools are called.
    pub resources: Instance,
    /// Whether that server can save its part.
    pub resources_mode: CheckpointMode,
    /// The resources session's revision after its seed.
    pub revision: u64,
    /// Where model calls go.
    pub policy_model: Instance,
    /// At most this many model calls.
    pub max_steps: u32,
}

/// An agent's session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    parts: Parts,
}

/// All that a session is: what its record holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parts {
    /// Names the responses: the rollout.
    pub name: String,
    /// `responses_create_params`.
    pub params: Arc<Params>,
    /// The conversation after the input of `params`.
    pub items: Arc<Vec<Bytes>>,
    /// Tokens so far.
    pub usage: Usage,
    /// How far it has come.
    pub cursor: Cursor,
    /// Where tools are called.
    pub resources: Instance,
    /// Whether that server can save its part.
    pub resources_mode: CheckpointMode,
    /// Where model calls go.
    pub policy_model: Instance,
    /// At most this many model calls.
    pub max_steps: u32,
    /// Model calls so far.
    pub model_calls: u32,
    /// Tool calls so far.
    pub tool_calls: u32,
    /// The activation that runs or is next.
    pub activation: u32,
    /// The one that runs.
    pub running: Option<Activated>,
    /// The last one that is complete.
    pub completed: Option<Arc<Completed>>,
}

/// A running activation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Activated {
    /// BLAKE3 of its input.
    pub digest: Digest,
    /// Where its output begins in the conversation.
    pub start: usize,
    /// Calls of the model's last reply that are to be made: places in the conversation, in order.
    pub pending: Vec<usize>,
}

/// A complete activation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completed {
    /// Its number.
    pub activation: u32,
    /// BLAKE3 of its input.
    pub digest: Digest,
    /// Its response, raw JSON.
    pub response: Bytes,
}

/// What a model call brought.
#[derive(Clone, Debug)]
pub struct ModelReply {
    /// A Responses object, raw JSON.
    pub response: Bytes,
    /// Tokens of the call.
    pub usage: Usage,
    /// Chain hash of its ledger row.
    pub chain: Digest,
    /// The token budget was used up.
    pub truncated: bool,
}

/// What a tool call brought.
#[derive(Clone, Debug)]
pub struct ToolReply {
    /// For the model to read.
    pub output: Bytes,
    /// The resources session's revision after it.
    pub revision: u64,
}

/// What a session does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// Nothing: no activation runs.
    Nothing,
    /// Asks the model, with [`Session::request`].
    CallModel {
        /// Its place.
        operation: Operation,
        /// Chain hash of the ledger row before.
        parent: Option<Digest>,
    },
    /// Calls a tool.
    CallTool {
        /// Its place.
        operation: Operation,
        /// The tool's name.
        name: String,
        /// A JSON object, as the model wrote it.
        arguments: Bytes,
    },
}

/// What an activation that is asked for is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// New: the session with it.
    Begins(Box<Session>),
    /// It runs.
    Runs,
    /// It is complete.
    Complete(Arc<Completed>),
}

impl Session {
    /// A session before its first activation.
    pub fn new(terms: Terms) -> Self {
        Self {
            parts: Parts {
                name: terms.name,
                params: Arc::new(terms.params),
                items: Arc::default(),
                usage: Usage::default(),
                cursor: Cursor {
                    revision: terms.revision,
                    ..Cursor::default()
                },
                resources: terms.resources,
                resources_mode: terms.resources_mode,
                policy_model: terms.policy_model,
                max_steps: terms.max_steps,
                model_calls: 0,
                tool_calls: 0,
                activation: 0,
                running: None,
                completed: None,
            },
        }
    }

    /// A session from its record. INVALID_CHECKPOINT when the fields do not fit together.
    pub fn from_parts(parts: Parts) -> Result<Self, Refusal> {
        let wrong = |what: &str| {
            Err(Refusal::new(
                Reason::InvalidCheckpoint,
                format!("an agent's session does not read: {what}"),
            ))
        };
        if let Some(running) = &parts.running {
            if running.start > parts.items.len() {
                return wrong("activation_start is behind the last item");
            }
            let call = |at: &usize| parts.items.get(*at).and_then(|item| items::function_call(item));
            if running.pending.iter().any(|at| call(at).is_none()) {
                return wrong("pending_calls names an item that is no call");
            }
            if !running.pending.is_empty() && parts.model_calls == 0 {
                return wrong("it has pending_calls and made no model call");
            }
        }
        Ok(Self { parts })
    }

    /// All that it is.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// What it does next.
    pub fn next(&self) -> Next {
        let Some(running) = &self.parts.running else {
            return Next::Nothing;
        };
        match running.pending.first().and_then(|at| self.call_at(*at)) {
            Some(FunctionCall {
                name: Some(name),
                arguments: Some(arguments),
                ..
            }) => Next::CallTool {
                operation: Operation::tool_call(self.parts.model_calls - 1, self.answered()),
                name,
                arguments,
            },
            _ => Next::CallModel {
                operation: Operation::model_call(self.parts.model_calls),
                parent: self.parts.cursor.chain,
            },
        }
    }

    /// The request of the next model call.
    pub fn request(&self) -> Bytes {
        self.parts.params.request(&self.parts.items)
    }

    /// What is next, for a person.
    pub fn boundary(&self) -> String {
        match self.next() {
            Next::Nothing => format!("activation {}", self.parts.activation),
            Next::CallModel { operation, .. } => format!("model call {operation}"),
            Next::CallTool { operation, name, .. } => format!("tool {name} {operation}"),
        }
    }

    /// Bytes of its record, about.
    pub fn size(&self) -> u64 {
        let items: usize = self.parts.items.iter().map(|item| item.len() + 4).sum();
        let completed = self.parts.completed.as_ref().map_or(0, |c| c.response.len());
        (items + completed + self.parts.params.raw().len()) as u64 + 256
    }

    /// An activation is asked for. INVALID_REQUEST out of order or with input that is no array, OPERATION_MISMATCH with another
    /// input than the first time.
    pub(super) fn activate(&self, number: u32, input: &Bytes) -> Result<Asked, Refusal> {
        let digest = *blake3::hash(input).as_bytes();
        let same = |held: &Digest| {
            if *held == digest {
                return Ok(());
            }
            Err(Refusal::new(
                Reason::OperationMismatch,
                format!("activation {number} was sent with another input; send the first one again"),
            ))
        };
        if let Some(completed) = self.parts.completed.as_ref().filter(|c| c.activation == number) {
            same(&completed.digest)?;
            return Ok(Asked::Complete(completed.clone()));
        }
        if number != self.parts.activation {
            return Err(Refusal::new(
                Reason::InvalidRequest,
                format!(
                    "activation {number} is out of order: the session is at {}",
                    self.parts.activation
                ),
            )
            .with("field", "activation"));
        }
        if let Some(running) = &self.parts.running {
            same(&running.digest)?;
            return Ok(Asked::Runs);
        }
        let input = match input.is_empty() {
            true => Vec::new(),
            false => items::array_items(input).map_err(|why| {
                Refusal::new(
                    Reason::InvalidRequest,
                    format!("input of activation {number} is not a JSON array of items: {why}"),
                )
                .with("field", "input")
            })?,
        };
        let mut session = self.clone();
        session.push(input);
        session.parts.running = Some(Activated {
            digest,
            start: session.parts.items.len(),
            pending: Vec::new(),
        });
        if session.spent() {
            session.complete(Some(Incomplete::MaxSteps), None);
        }
        Ok(Asked::Begins(Box::new(session)))
    }

    /// The model has replied. INTERNAL when that call was not next, ENGINE_FAILED when the reply does not read.
    pub fn model_replied(&self, operation: Operation, reply: &ModelReply) -> Result<Self, Refusal> {
        match self.next() {
            Next::CallModel { operation: next, .. } if next == operation => {}
            next => return Err(out_of_turn(operation, &next)),
        }
        let new = items::output_items(&reply.response).map_err(|why| {
            Refusal::new(
                Reason::EngineFailed,
                format!(
                    "the reply to model call {operation} is not a Responses object with output items: {why}"
                ),
            )
        })?;
        let mut session = self.clone();
        let first = session.parts.items.len();
        let pending: Vec<usize> = (first..)
            .zip(&new)
            .filter(|(_, item)| items::function_call(item).is_some())
            .map(|(at, _)| at)
            .collect();
        let calls = !pending.is_empty();
        session.push(new);
        session.parts.usage = session.parts.usage.plus(reply.usage);
        session.parts.model_calls += 1;
        session.parts.cursor.operation = Some(operation);
        session.parts.cursor.chain = Some(reply.chain);
        if let Some(running) = &mut session.parts.running {
            running.pending = pending;
        }
        if calls {
            session.settle(Some(&reply.response));
        } else {
            let incomplete = reply.truncated.then_some(Incomplete::MaxOutputTokens);
            session.complete(incomplete, Some(&reply.response));
        }
        Ok(session)
    }

    /// A tool has replied. INTERNAL when that call was not next.
    pub fn tool_replied(&self, operation: Operation, reply: &ToolReply) -> Result<Self, Refusal> {
        match self.next() {
            Next::CallTool { operation: next, .. } if next == operation => {}
            next => return Err(out_of_turn(operation, &next)),
        }
        let mut session = self.clone();
        session.answer(&reply.output);
        session.parts.tool_calls += 1;
        session.parts.cursor.operation = Some(operation);
        session.parts.cursor.revision = reply.revision;
        session.settle(None);
        Ok(session)
    }

    /// Answers the calls in front that cannot be made, so that the next one can; ends the activation when the last call is
    /// answered and no model call is left.
    fn settle(&mut self, last_reply: Option<&Bytes>) {
        loop {
            let Some(running) = &self.parts.running else {
                return;
            };
            let Some(at) = running.pending.first() else {
                break;
            };
            match self.call_at(*at).and_then(|call| call.malformed()) {
                Some(message) => self.answer(&items::error_output(&message)),
                None => return,
            }
        }
        if self.spent() {
            self.complete(Some(Incomplete::MaxSteps), last_reply);
        }
    }

    /// Answers the first pending call.
    fn answer(&mut self, output: &[u8]) {
        let first = match &mut self.parts.running {
            Some(running) if !running.pending.is_empty() => running.pending.remove(0),
            _ => return,
        };
        if let Some(call) = self.call_at(first) {
            self.push(vec![items::function_call_output(&call.call_id, output)]);
        }
    }

    fn complete(&mut self, incomplete: Option<Incomplete>, last_reply: Option<&Bytes>) {
        let Some(running) = self.parts.running.take() else {
            return;
        };
        let response = response(&Envelope {
            id: &format!("resp_{}_{}", self.parts.name, self.parts.activation),
            incomplete,
            last_reply,
            params: &self.parts.params,
            output: &self.parts.items[running.start..],
            usage: self.parts.usage,
        });
        self.parts.completed = Some(Arc::new(Completed {
            activation: self.parts.activation,
            digest: running.digest,
            response,
        }));
        self.parts.activation += 1;
    }

    fn push(&mut self, new: Vec<Bytes>) {
        Arc::make_mut(&mut self.parts.items).extend(new);
    }

    fn spent(&self) -> bool {
        self.parts.model_calls >= self.parts.max_steps
    }

    fn call_at(&self, at: usize) -> Option<FunctionCall> {
        items::function_call(self.parts.items.get(at)?)
    }

    /// How many calls of the last reply are answered: each has put one output behind the reply.
    fn answered(&self) -> u32 {
        let outputs = self.parts.items.iter().rev();
        outputs
            .take_while(|item| items::kind(item).as_deref() == Some("function_call_output"))
            .count() as u32
    }
}

fn out_of_turn(operation: Operation, next: &Next) -> Refusal {
    Refusal::new(
        Reason::Internal,
        format!("a reply to {operation} came out of turn: the session's next is {next:?}"),
    )
}
