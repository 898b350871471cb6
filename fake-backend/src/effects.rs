//! The effect log: what tools did, as the resources servers report it. It outlives the mesh.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// One tool call that was applied.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Effect {
    /// The rollout.
    pub rollout_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The life.
    pub execution: String,
    /// The turn.
    pub turn: u32,
    /// Its place among the turn's operations.
    pub index: u32,
    /// The tool.
    pub tool: String,
    /// It has effects outside the session.
    #[serde(default)]
    pub external: bool,
    /// What a tool with effects outside hands on: the same for a call that is made again.
    #[serde(default)]
    pub key: String,
    /// The server that applied it.
    pub instance: String,
    /// The session's revision after it.
    pub revision: u64,
}

/// All effects, in the order of arrival. A report that is sent again (nothing in it differs) is one effect; the same
/// operation applied twice is two, since the second leaves another revision.
#[derive(Default, Debug)]
pub struct EffectLog {
    order: Vec<Effect>,
    known: HashSet<Effect>,
}

impl EffectLog {
    /// Adds an effect. False if it was reported before.
    pub fn add(&mut self, effect: Effect) -> bool {
        let new = self.known.insert(effect.clone());
        if new {
            self.order.push(effect);
        }
        new
    }

    /// All of them.
    pub fn all(&self) -> &[Effect] {
        &self.order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_sent_again_is_one_effect_and_one_applied_again_is_two() {
        let effect = Effect {
            rollout_id: "r".into(),
            attempt: 0,
            execution: "e".into(),
            turn: 1,
            index: 1,
            tool: "add".into(),
            external: false,
            key: String::new(),
            instance: "resources/counter/0".into(),
            revision: 4,
        };
        let mut log = EffectLog::default();
        assert!(log.add(effect.clone()));
        assert!(!log.add(effect.clone()));
        assert!(log.add(Effect {
            revision: 5,
            ..effect
        }));
        assert_eq!(log.all().len(), 2);
    }

    #[test]
    fn a_report_that_says_nothing_of_outside_reads() {
        let report = r#"{"rollout_id": "r", "attempt": 0, "execution": "e", "turn": 1, "index": 1, "tool": "add",
                         "instance": "resources/counter/0", "revision": 4}"#;
        let effect: Effect = serde_json::from_str(report).expect("an effect");
        assert_eq!((effect.external, effect.key.as_str()), (false, ""));
    }
}
