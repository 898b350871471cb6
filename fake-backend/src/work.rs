//! Work of servers that a test holds: with `faults.work_asks` a resources server asks here before each tool call and each verify,
//! and waits while a rule holds it. So a tool is as slow as a test needs, without a clock.

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// What is about to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// A tool call.
    Tool,
    /// A verifier.
    Verify,
}

/// One piece of work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Work {
    /// Its kind.
    pub what: WorkKind,
    /// Of a tool call `rollout/turn/index/digest`, of a verify the task row.
    pub about: String,
}

/// Work that waits: of this kind, and with `about` in what it is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkHold {
    /// The kind.
    pub what: WorkKind,
    /// Empty: all of the kind.
    #[serde(default)]
    pub about: String,
}

/// Work that asked, in the order of arrival.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkRecord {
    /// What it is.
    #[serde(flatten)]
    pub work: Work,
    /// It is held; false again when its server is lost.
    pub waiting: bool,
}

#[derive(Default, Debug)]
struct Asked {
    holds: Vec<WorkHold>,
    records: Vec<WorkRecord>,
}

impl Asked {
    fn holds(&self, work: &Work) -> bool {
        let applies = |hold: &WorkHold| hold.what == work.what && work.about.contains(&hold.about);
        self.holds.iter().any(applies)
    }
}

/// The rules, and what has asked.
#[derive(Debug)]
pub(crate) struct WorkGate(watch::Sender<Asked>);

impl Default for WorkGate {
    fn default() -> Self {
        Self(watch::Sender::new(Asked::default()))
    }
}

impl WorkGate {
    /// Adds a rule.
    pub(crate) fn hold(&self, hold: WorkHold) {
        self.0.send_modify(|asked| asked.holds.push(hold));
    }

    /// Takes away the rules of the kind.
    pub(crate) fn release(&self, what: WorkKind) {
        self.0
            .send_modify(|asked| asked.holds.retain(|hold| hold.what != what));
    }

    /// Takes away all rules and records.
    pub(crate) fn reset(&self) {
        self.0.send_modify(|asked| *asked = Asked::default());
    }

    /// Returns when no rule holds it.
    pub(crate) async fn ask(&self, work: Work) {
        let mut at = 0;
        self.0.send_modify(|asked| {
            at = asked.records.len();
            let waiting = asked.holds(&work);
            let work = work.clone();
            asked.records.push(WorkRecord { work, waiting });
        });
        let _waiting = Waiting { gate: self, at };
        let mut seen = self.0.subscribe();
        // The sender is here: it cannot be gone.
        let _ = seen.wait_for(|asked| !asked.holds(&work)).await;
    }

    /// What has asked so far.
    pub(crate) fn records(&self) -> Vec<WorkRecord> {
        self.0.borrow().records.clone()
    }

    /// Returns when at least so many of the kind wait.
    pub(crate) async fn until_waiting(&self, what: WorkKind, at_least: usize) {
        let waiting = |record: &&WorkRecord| record.work.what == what && record.waiting;
        let mut seen = self.0.subscribe();
        let _ = seen
            .wait_for(|asked| asked.records.iter().filter(waiting).count() >= at_least)
            .await;
    }
}

/// Ends with the asking, also when the asker is gone.
struct Waiting<'a> {
    gate: &'a WorkGate,
    at: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.gate.0.send_modify(|asked| {
            if let Some(record) = asked.records.get_mut(self.at) {
                record.waiting = false;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(about: &str) -> Work {
        Work {
            what: WorkKind::Tool,
            about: about.into(),
        }
    }

    #[tokio::test]
    async fn what_a_rule_names_waits_for_its_release_and_all_else_goes_on() {
        let gate = std::sync::Arc::new(WorkGate::default());
        gate.hold(WorkHold {
            what: WorkKind::Tool,
            about: "r1/".into(),
        });
        gate.ask(tool("r2/0/1/x")).await;
        let asking = gate.clone();
        let held = tokio::spawn(async move { asking.ask(tool("r1/0/1/x")).await });
        gate.until_waiting(WorkKind::Tool, 1).await;
        gate.release(WorkKind::Verify);
        assert!(!held.is_finished());
        gate.release(WorkKind::Tool);
        held.await.expect("it ends");
        let waiting: Vec<bool> = gate.records().iter().map(|record| record.waiting).collect();
        assert_eq!(waiting, [false, false]);
    }
}
