//! Where an episode is between two steps.
//!
//! ```text
//! Seed ─Seeded─> InvokeAgent ─AgentReplied─> CloseAgent ─AgentClosed─> Verify ─Verified─> CloseResources ─ResourcesClosed─> Return
//! ```
//!
//! A boundary is an immutable value; what a step has brought is shared by all later ones. So a checkpoint copies references.

use std::sync::Arc;

use bytes::Bytes;

use super::step::{Step, StepMode};
use crate::{
    agent::Usage,
    ids::Instance,
    parts::{CheckpointMode, Cursor, Need, PartNeeded, VerifyMode},
};

/// Where the parts of an episode live: decided at its seed, or by a restore's plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeededParts {
    /// The resources session.
    pub resources: Instance,
    /// Whether it can be saved.
    pub resources_mode: CheckpointMode,
    /// What a checkpoint may do while it verifies.
    pub verify: VerifyMode,
    /// The agent's session.
    pub agent: Instance,
    /// Whether it can be saved.
    pub agent_mode: CheckpointMode,
    /// The ledger.
    pub policy_model: Instance,
    /// The resources session's revision after its seed.
    pub revision: u64,
}

/// What the agent came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentOutcome {
    /// A Responses object, raw JSON.
    pub response: Bytes,
    /// Tokens of all model calls.
    pub usage: Usage,
    /// How far the agent came.
    pub cursor: Cursor,
    /// Model calls.
    pub model_calls: u32,
    /// Tool calls.
    pub tool_calls: u32,
}

/// What the verifier gave.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The reward.
    pub reward: f64,
    /// The verifier's own fields, raw JSON object.
    pub details: Bytes,
}

/// Which step is next, and all that it needs.
#[derive(Clone, PartialEq, Debug)]
pub enum Boundary {
    /// Nothing is made yet.
    Seed,
    /// Both sessions are there.
    InvokeAgent(Arc<SeededParts>),
    /// The agent has answered.
    CloseAgent(Arc<SeededParts>, Arc<AgentOutcome>),
    /// The agent's session is gone; what it came to is carried on here.
    Verify(Arc<SeededParts>, Arc<AgentOutcome>),
    /// The reward is there.
    CloseResources(Arc<SeededParts>, Arc<AgentOutcome>, Arc<Verdict>),
    /// Everything is done.
    Return(Arc<SeededParts>, Arc<AgentOutcome>, Arc<Verdict>),
}

/// What a step came to.
#[derive(Clone, PartialEq, Debug)]
pub enum StepDone {
    /// `seed`.
    Seeded(SeededParts),
    /// `invoke_agent`.
    AgentReplied(AgentOutcome),
    /// `close_agent`.
    AgentClosed,
    /// `verify`.
    Verified(Verdict),
    /// `close_resources`.
    ResourcesClosed,
}

impl Boundary {
    /// The next step.
    pub fn step(&self) -> Step {
        match self {
            Self::Seed => Step::Seed,
            Self::InvokeAgent(..) => Step::InvokeAgent,
            Self::CloseAgent(..) => Step::CloseAgent,
            Self::Verify(..) => Step::Verify,
            Self::CloseResources(..) => Step::CloseResources,
            Self::Return(..) => Step::Return,
        }
    }

    /// What a checkpoint may do while the next step runs.
    pub fn mode(&self) -> StepMode {
        let verify = self.parts().map_or(VerifyMode::Wait, |parts| parts.verify);
        self.step().mode(verify)
    }

    /// After `seed`.
    pub fn parts(&self) -> Option<&Arc<SeededParts>> {
        match self {
            Self::Seed => None,
            Self::InvokeAgent(parts)
            | Self::CloseAgent(parts, _)
            | Self::Verify(parts, _)
            | Self::CloseResources(parts, _, _)
            | Self::Return(parts, _, _) => Some(parts),
        }
    }

    /// After `invoke_agent`.
    pub fn outcome(&self) -> Option<&Arc<AgentOutcome>> {
        match self {
            Self::Seed | Self::InvokeAgent(_) => None,
            Self::CloseAgent(_, outcome)
            | Self::Verify(_, outcome)
            | Self::CloseResources(_, outcome, _)
            | Self::Return(_, outcome, _) => Some(outcome),
        }
    }

    /// After `verify`.
    pub fn verdict(&self) -> Option<&Arc<Verdict>> {
        match self {
            Self::CloseResources(_, _, verdict) | Self::Return(_, _, verdict) => Some(verdict),
            _ => None,
        }
    }

    /// How far the agent came, as far as the environment has been told.
    pub fn cursor(&self) -> Cursor {
        match (self.outcome(), self.parts()) {
            (Some(outcome), _) => outcome.cursor,
            (None, Some(parts)) => Cursor {
                revision: parts.revision,
                ..Cursor::default()
            },
            (None, None) => Cursor::default(),
        }
    }

    /// The boundary after this one. `None` when the step is not the next one: the one list of legal transitions.
    #[must_use]
    pub fn after(&self, done: StepDone) -> Option<Self> {
        Some(match (self, done) {
            (Self::Seed, StepDone::Seeded(parts)) => Self::InvokeAgent(Arc::new(parts)),
            (Self::InvokeAgent(parts), StepDone::AgentReplied(outcome)) => {
                Self::CloseAgent(parts.clone(), Arc::new(outcome))
            }
            (Self::CloseAgent(parts, outcome), StepDone::AgentClosed) => {
                Self::Verify(parts.clone(), outcome.clone())
            }
            (Self::Verify(parts, outcome), StepDone::Verified(verdict)) => {
                Self::CloseResources(parts.clone(), outcome.clone(), Arc::new(verdict))
            }
            (Self::CloseResources(parts, outcome, verdict), StepDone::ResourcesClosed) => {
                Self::Return(parts.clone(), outcome.clone(), verdict.clone())
            }
            _ => return None,
        })
    }

    /// A boundary from the fields of its record. `None` when a field that the step needs is not there.
    pub fn assemble(
        next: Step,
        parts: Option<SeededParts>,
        outcome: Option<AgentOutcome>,
        verdict: Option<Verdict>,
    ) -> Option<Self> {
        let (parts, outcome, verdict) = (parts.map(Arc::new), outcome.map(Arc::new), verdict.map(Arc::new));
        Some(match next {
            Step::Seed => Self::Seed,
            Step::InvokeAgent => Self::InvokeAgent(parts?),
            Step::CloseAgent => Self::CloseAgent(parts?, outcome?),
            Step::Verify => Self::Verify(parts?, outcome?),
            Step::CloseResources => Self::CloseResources(parts?, outcome?, verdict?),
            Step::Return => Self::Return(parts?, outcome?, verdict?),
        })
    }

    /// The same boundary, its parts elsewhere.
    #[must_use]
    pub fn moved(&self, parts: Arc<SeededParts>) -> Self {
        match self {
            Self::Seed => Self::Seed,
            Self::InvokeAgent(_) => Self::InvokeAgent(parts),
            Self::CloseAgent(_, outcome) => Self::CloseAgent(parts, outcome.clone()),
            Self::Verify(_, outcome) => Self::Verify(parts, outcome.clone()),
            Self::CloseResources(_, outcome, verdict) => {
                Self::CloseResources(parts, outcome.clone(), verdict.clone())
            }
            Self::Return(_, outcome, verdict) => Self::Return(parts, outcome.clone(), verdict.clone()),
        }
    }

    /// The parts on other servers without which the episode cannot go on from here.
    ///
    /// At `seed` there are none: what a seed in progress has made belongs to this life only, a restored one seeds anew.
    /// While the agent runs, its own cursor says how far the ledger goes.
    pub fn needs(&self) -> Vec<PartNeeded> {
        let Some(parts) = self.parts() else {
            return Vec::new();
        };
        let need = |instance: &Instance, need| PartNeeded {
            instance: instance.clone(),
            need,
        };
        let mut needs = Vec::with_capacity(3);
        if self.step() <= Step::CloseAgent {
            needs.push(need(&parts.agent, Need::Whole));
        }
        if self.step() <= Step::CloseResources {
            needs.push(need(&parts.resources, Need::Whole));
        }
        let ledger = match self.outcome() {
            Some(outcome) if outcome.cursor.chain.is_some() => Need::Whole,
            _ => Need::IfBegun,
        };
        needs.push(need(&parts.policy_model, ledger));
        needs
    }

    /// The server that cannot save a part which is still needed: the episode is a restart.
    pub fn unsaveable(&self) -> Option<&Instance> {
        let parts = self.parts()?;
        if self.step() <= Step::CloseResources && parts.resources_mode == CheckpointMode::RestartOnly {
            return Some(&parts.resources);
        }
        (self.step() <= Step::CloseAgent && parts.agent_mode == CheckpointMode::RestartOnly)
            .then_some(&parts.agent)
    }

    /// Bytes that a record of it holds, about.
    pub fn size(&self) -> u64 {
        let outcome = self.outcome().map_or(0, |outcome| outcome.response.len());
        let verdict = self.verdict().map_or(0, |verdict| verdict.details.len());
        (outcome + verdict) as u64 + 256
    }
}
