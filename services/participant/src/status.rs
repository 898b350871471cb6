//! Status: what an operator and a coordinator see.

use std::collections::{BTreeMap, HashSet};

use belay_core::{
    participant::{MANY_MARKS, View},
    parts::{CheckpointMode, Restart},
};

use crate::{control::Inner, owner::StateOwner};

/// A participant as it is.
pub(crate) struct Seen {
    pub(crate) view: View,
    pub(crate) mode: CheckpointMode,
    pub(crate) roots: u64,
    pub(crate) restarts: Vec<Restart>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) unclaimed: u64,
    pub(crate) warnings: Vec<String>,
    pub(crate) members_version: u64,
}

impl<O: StateOwner> Inner<O> {
    /// Reads; waits for nothing, not even for another control call.
    pub(crate) fn status(&self, max_blockers: usize) -> Seen {
        let view = self.shared.read(|machine, now| machine.view(now, max_blockers));
        let mut restarts = self.owner.restarts();
        let known: HashSet<_> = restarts.iter().map(|r| r.episode.clone()).collect();
        let found = view.waiting.restarts.iter();
        restarts.extend(found.filter(|r| !known.contains(&r.episode)).cloned());

        let mut warnings = self.owner.warnings();
        if view.marks > MANY_MARKS as u64 {
            warnings.push(format!(
                "{} marks are held: forget the rollouts that are over",
                view.marks
            ));
        }
        if let Some(age) = view.in_doubt {
            warnings.push(format!(
                "a restore has been staged for {age:?} and is not decided: see the coordinator's status"
            ));
        }
        Seen {
            mode: self.owner.mode(),
            roots: self.owner.roots().len() as u64,
            restarts,
            counts: self.owner.counts(),
            unclaimed: self.owner.unclaimed(),
            warnings,
            members_version: self.members.version(),
            view,
        }
    }
}
