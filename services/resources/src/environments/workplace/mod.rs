//! `workplace`: an office's tables, which 27 tools read and change.
//!
//! | module | what |
//! | --- | --- |
//! | `tables` | a table, and changes to it that share what is not changed |
//! | `session` | the five tables of a session, and their bytes in a record |
//! | `load` | the tables that sessions begin with, from CSV |
//! | `tool` | what the tools share: arguments, outputs, pages |
//! | `directory`, `email`, `calendar`, `analytics`, `project`, `customers` | the tools |
//! | `verify` | the rule of the reward |
//! | `moment` | points in time as the tables write them |
//!
//! A tool's output is `{"output": ...}`, also where it says that the call was wrong. Arguments that do not read are answered
//! with `{"error": ...}`, as in the other environments. Texts are searched for as they are, without wildcards, and rows of the
//! same point in time are found in the order of their table.

mod analytics;
mod calendar;
mod customers;
mod directory;
mod email;
mod load;
mod moment;
mod project;
mod session;
mod tables;
mod tool;
mod verify;

use std::path::Path;

use belay_core::parts::{CheckpointMode, VerifyMode};
use bytes::Bytes;

pub use load::TablesError;
pub use session::Session;

use self::tool::{Arguments, Outcome, Tool};
use super::json;
use crate::environment::{Environment, TaskError, ToolCall, ToolOutcome, Verdict};

/// The order of the task rows' own list of tools.
const TOOLS: [&[Tool]; 6] = [
    directory::TOOLS,
    email::TOOLS,
    calendar::TOOLS,
    analytics::TOOLS,
    project::TOOLS,
    customers::TOOLS,
];

/// Five tables for each session (analytics, calendar, customers, email and project tasks) and 27 tools; the reward is 1.0 if
/// the tables end as the calls of the task's `ground_truth` would leave them, else 0.0.
#[derive(Clone, Debug)]
pub struct Workplace {
    /// What every session begins with.
    initial: Session,
    /// Its digest.
    began_with: String,
    names: Vec<&'static str>,
}

impl Workplace {
    /// With the tables of a directory of six CSV files; with the environment's own small set where there is none.
    pub fn new(tables: Option<&Path>) -> Result<Self, TablesError> {
        let initial = match tables {
            Some(directory) => load::directory(directory)?,
            None => load::own()?,
        };
        Ok(Self {
            began_with: initial.digest(),
            initial,
            names: TOOLS.iter().copied().flatten().map(|tool| tool.name).collect(),
        })
    }

    fn apply(&self, session: &Session, name: &str, arguments: &[u8]) -> Outcome {
        let Some(tool) = TOOLS.iter().copied().flatten().find(|tool| tool.name == name) else {
            return ToolOutcome::unknown_tool(name, &self.names);
        };
        match Arguments::read(tool, arguments) {
            Ok(arguments) => (tool.run)(session, &arguments).unwrap_or_else(|failed| failed),
            Err(message) => ToolOutcome::failed(message),
        }
    }

    fn task(raw: &[u8]) -> Result<verify::Task, TaskError> {
        json::task(
            raw,
            "`ground_truth`, a list of calls with `name` and `arguments` (JSON in a string),",
        )
    }

    /// The tables as the ground truth leaves them.
    fn expected(&self, task: &verify::Task) -> Session {
        task.ground_truth
            .iter()
            .fold(self.initial.clone(), |session, call| {
                match self.apply(&session, &call.name, call.arguments.as_bytes()) {
                    ToolOutcome::Changed { state, .. } => state,
                    ToolOutcome::Same { .. } | ToolOutcome::Failed { .. } => session,
                }
            })
    }
}

impl Environment for Workplace {
    type State = Session;

    fn name(&self) -> &str {
        "workplace"
    }

    fn mode(&self) -> CheckpointMode {
        CheckpointMode::Exported
    }

    fn verify_mode(&self) -> VerifyMode {
        VerifyMode::Replay
    }

    fn tools(&self) -> &[&'static str] {
        &self.names
    }

    fn seed(&self, raw: &[u8]) -> Result<Session, TaskError> {
        Self::task(raw).map(|_| self.initial.clone())
    }

    async fn call<'a>(&'a self, session: &'a Session, call: ToolCall<'a>) -> Outcome {
        self.apply(session, call.name, call.arguments)
    }

    async fn verify<'a>(
        &'a self,
        session: &'a Session,
        raw: &'a [u8],
        _response: &'a [u8],
    ) -> Result<Verdict, TaskError> {
        let details = verify::compare(session, &self.expected(&Self::task(raw)?));
        let written = serde_json::to_vec(&details).map_err(|error| TaskError {
            field: "task",
            message: error.to_string(),
        })?;
        Ok(Verdict {
            reward: if details.different.is_empty() { 1.0 } else { 0.0 },
            details: written.into(),
        })
    }

    fn export(&self, session: &Session) -> Bytes {
        session.written(&self.began_with)
    }

    fn export_size(&self, session: &Session) -> u64 {
        session.size()
    }

    fn import(&self, _task: &[u8], exported: &[u8]) -> Result<Session, String> {
        self.initial.read(&self.began_with, exported)
    }
}

#[cfg(test)]
mod tests;
