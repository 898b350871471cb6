//! The steps of a `single_agent_turn` episode.

use std::fmt;

use crate::parts::VerifyMode;

/// What an episode does between two boundaries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// Makes the resources session and the agent's session.
    Seed,
    /// Runs the agent's loop, which has boundaries of its own.
    InvokeAgent,
    /// Ends the agent's session.
    CloseAgent,
    /// Asks the resources server for the reward.
    Verify,
    /// Ends the resources session.
    CloseResources,
    /// Nothing is left to do: the result is there.
    Return,
}

/// What a checkpoint may do while a step runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StepMode {
    /// Safe to run twice: it is cut at the boundary before it.
    Replay,
    /// The checkpoint waits for it.
    Wait,
}

impl Step {
    /// All of them, in order.
    pub const ALL: [Self; 6] = [
        Self::Seed,
        Self::InvokeAgent,
        Self::CloseAgent,
        Self::Verify,
        Self::CloseResources,
        Self::Return,
    ];

    /// As it is written in records and shown to people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::InvokeAgent => "invoke_agent",
            Self::CloseAgent => "close_agent",
            Self::Verify => "verify",
            Self::CloseResources => "close_resources",
            Self::Return => "return",
        }
    }

    /// The step of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.as_str() == name)
    }

    /// Its mode, given what the resources server says of its verifier.
    pub fn mode(self, verify: VerifyMode) -> StepMode {
        match (self, verify) {
            (Self::Seed | Self::InvokeAgent, _) | (Self::Verify, VerifyMode::Replay) => StepMode::Replay,
            _ => StepMode::Wait,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
