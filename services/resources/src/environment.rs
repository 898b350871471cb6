//! What an environment fills in to be served: seed, tools, verifier, and its state as bytes.

use std::future::Future;

use belay_core::{
    ids::Digest,
    parts::{CheckpointMode, VerifyMode},
    refusal::{Reason, Refusal},
};
use bytes::Bytes;

/// An environment behind a resources server: it turns a task row into a session's state, applies tool calls to it, and
/// scores it.
///
/// The state is an immutable value. A tool call gets the state by reference and hands out a new one, so that a capture is
/// a reference, and a call that fails leaves nothing half done.
pub trait Environment: Send + Sync + 'static {
    /// A session's state.
    type State: Send + Sync + 'static;

    /// The name that is written into records: a restore into another environment is refused.
    fn name(&self) -> &str;

    /// Whether sessions can be saved.
    fn mode(&self) -> CheckpointMode {
        CheckpointMode::RestartOnly
    }

    /// Whether a checkpoint waits for the verifier. `Replay` promises that it is safe to run twice: it reads the session,
    /// and never changes or ends it.
    fn verify_mode(&self) -> VerifyMode {
        VerifyMode::Wait
    }

    /// Sessions share state with others, so that none of them can be left out of a cut while it is in a call.
    fn shared(&self) -> bool {
        false
    }

    /// Whether a tool has effects outside the session: mail that is sent, an order that is placed. It promises to hand the call's
    /// [`key`](ToolCall::key) to the outside, which applies a key once: a call that a checkpoint does not have is made again
    /// after a restore, with the same key.
    fn external(&self, _tool: &str) -> bool {
        false
    }

    /// The tools, for the message that a call of another one gets.
    fn tools(&self) -> &[&'static str];

    /// The state that a task begins with.
    fn seed(&self, task: &[u8]) -> Result<Self::State, TaskError>;

    /// Applies a call. Not called again for an operation that has a reply; a call that is in flight when a checkpoint is asked
    /// for is waited for.
    fn call<'a>(
        &'a self,
        state: &'a Self::State,
        call: ToolCall<'a>,
    ) -> impl Future<Output = ToolOutcome<Self::State>> + Send + 'a;

    /// Scores a session against its task and the agent's response (an OpenAI Responses object).
    fn verify<'a>(
        &'a self,
        state: &'a Self::State,
        task: &'a [u8],
        response: &'a [u8],
    ) -> impl Future<Output = Result<Verdict, TaskError>> + Send + 'a;

    /// The state as bytes, for a record. Empty where the task says it all.
    fn export(&self, state: &Self::State) -> Bytes;

    /// About how many bytes `export` would make: asked at every capture, so it must be cheap.
    fn export_size(&self, state: &Self::State) -> u64;

    /// The state from a record's task and bytes; the error says what does not read.
    fn import(&self, task: &[u8], exported: &[u8]) -> Result<Self::State, String>;
}

/// One tool call.
#[derive(Clone, Copy, Debug)]
pub struct ToolCall<'a> {
    /// The tool's name.
    pub name: &'a str,
    /// The arguments as the model wrote them: JSON if the model was right.
    pub arguments: &'a [u8],
    /// `rollout/turn/index/digest`: the same for a re-issue, also after a restore. A tool with effects outside
    /// ([`external`](Environment::external)) hands it on.
    pub key: &'a str,
    /// BLAKE3 over name and arguments.
    pub digest: &'a Digest,
}

/// What a tool call came to. `output` is what the model reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToolOutcome<S> {
    /// It was applied, and this is the state after it.
    Changed {
        /// What the model reads.
        output: Bytes,
        /// The state after the call.
        state: S,
    },
    /// It was applied, and the state is as it was.
    Same {
        /// What the model reads.
        output: Bytes,
    },
    /// The model called it wrongly: nothing was applied.
    Failed {
        /// Says what was wrong, and what would be right.
        output: Bytes,
    },
}

impl<S> ToolOutcome<S> {
    /// A failure as the JSON object `{"error": "..."}`.
    pub fn failed(message: impl AsRef<str>) -> Self {
        let text = serde_json::Value::from(message.as_ref());
        Self::Failed {
            output: format!("{{\"error\": {text}}}").into(),
        }
    }

    /// A call of a tool that there is not.
    pub fn unknown_tool(name: &str, tools: &[&str]) -> Self {
        Self::failed(format!(
            "there is no tool {name:?}; the tools are: {}",
            tools.join(", ")
        ))
    }
}

/// What a verifier gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The reward.
    pub reward: f64,
    /// The verifier's own fields: a raw JSON object.
    pub details: Bytes,
}

/// A task row or a response that the environment cannot use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}: {message}")]
pub struct TaskError {
    /// Where: `task` or `response`.
    pub field: &'static str,
    /// What is wrong, and what is expected.
    pub message: String,
}

impl From<TaskError> for Refusal {
    fn from(error: TaskError) -> Self {
        Self::new(Reason::InvalidRequest, error.to_string()).with("field", error.field)
    }
}
