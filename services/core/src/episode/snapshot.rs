//! What a checkpoint takes of the table, and where every episode stands (protocol 4, the partition).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    boundary::Boundary,
    step::Step,
    table::{Entry, Episodes, State},
    work::Work,
};
use crate::{
    coordinator::partition::UNCLAIMED,
    ids::{Episode, Instance},
    parts::{PartSummary, PartitionEntry, Restart, Standing},
};

/// One episode of a capture: references, not bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct SavedEpisode {
    /// What the coordinator needs to know.
    pub summary: PartSummary,
    /// What is asked for.
    pub work: Arc<Work>,
    /// Where it goes on.
    pub boundary: Boundary,
    /// What is left of its time. `None`: no limit.
    pub deadline_left: Option<Duration>,
}

impl SavedEpisode {
    /// Bytes of its record, about.
    pub fn size(&self) -> u64 {
        self.work.task.len() as u64 + self.boundary.size()
    }
}

/// A capture.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Snapshot {
    /// What is in the checkpoint, in the episodes' order.
    pub saved: Vec<SavedEpisode>,
    /// Every episode that was admitted and is not forgotten, exactly once, in order.
    pub partition: Vec<PartitionEntry>,
}

impl Episodes {
    /// Live episodes with a part that cannot be saved.
    pub fn restarts(&self) -> Vec<Restart> {
        let mut restarts: Vec<Restart> = self
            .entries()
            .filter_map(|(episode, entry)| {
                let (instance, reason) = self.unsaveable(entry)?;
                Some(Restart {
                    instance: instance.clone(),
                    reason,
                    episode,
                })
            })
            .collect();
        restarts.sort_by(|a, b| a.episode.cmp(&b.episode));
        restarts
    }

    /// Takes the listed episodes, less the restarts. `now` is the time the mesh was open.
    pub fn snapshot(&self, scope: &[Episode], restarts: &[Restart], now: Duration) -> Snapshot {
        let scope: BTreeSet<&Episode> = scope.iter().collect();
        let restarts: BTreeMap<&Episode, &Restart> = restarts.iter().map(|r| (&r.episode, r)).collect();
        let mut snapshot = Snapshot::default();
        let mut entries: Vec<(Episode, &Entry)> = self.entries().collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        for (episode, entry) in entries {
            let saved = entry.saved(&episode, now);
            let (standing, reason) = match (&entry.state, saved) {
                (State::Acknowledged, _) => (Standing::Acknowledged, String::new()),
                (State::Failed(refusal), _) => (Standing::Failed, refusal.to_string()),
                (State::Retired { .. }, _) => (Standing::Retired, String::new()),
                _ if restarts.contains_key(&episode) => {
                    let restart = restarts[&episode];
                    (
                        Standing::Restart,
                        format!("{}: {}", restart.instance, restart.reason),
                    )
                }
                // Known here and to no stage of prepare: it is named all the same, and never saved.
                _ if self.unsaveable(entry).is_some() => {
                    let reason = self.unsaveable(entry).map_or_else(String::new, |(_, why)| why);
                    (Standing::Restart, reason)
                }
                (_, Some(saved)) if scope.contains(&episode) => {
                    let finished = saved.summary.finished;
                    snapshot.saved.push(saved);
                    match finished {
                        true => (Standing::SavedFinished, String::new()),
                        false => (Standing::SavedRunning, String::new()),
                    }
                }
                _ if !entry.claimed => (Standing::LeftOut, UNCLAIMED.to_owned()),
                _ => (Standing::LeftOut, String::new()),
            };
            snapshot.partition.push(PartitionEntry {
                episode,
                standing,
                reason,
            });
        }
        snapshot
    }

    /// The server that cannot save its part of a live episode, and why.
    fn unsaveable<'a>(&'a self, entry: &'a Entry) -> Option<(&'a Instance, String)> {
        let State::Live { boundary, .. } = &entry.state else {
            return None;
        };
        if !self.boundaries {
            return Some((
                &self.instance,
                format!("{} declares no boundaries", self.instance),
            ));
        }
        let instance = boundary.unsaveable()?;
        Some((instance, format!("{instance} declares restart_only")))
    }
}

impl Entry {
    fn saved(&self, episode: &Episode, now: Duration) -> Option<SavedEpisode> {
        let (work, boundary, deadline_left) = match &self.state {
            State::Live {
                work,
                boundary,
                deadline,
            } => (work, boundary.clone(), deadline.left(now)),
            State::Finished(f) => (
                &f.work,
                Boundary::Return(f.parts.clone(), f.outcome.clone(), f.verdict.clone()),
                None,
            ),
            _ => return None,
        };
        let summary = PartSummary {
            episode: episode.clone(),
            execution: self.execution,
            root: true,
            cursor: boundary.cursor(),
            needs: boundary.needs(),
            ledger: None,
            revision: 0,
            boundary: boundary.step().to_string(),
            task: Some(work.digest),
            finished: boundary.step() == Step::Return,
        };
        Some(SavedEpisode {
            summary,
            work: work.clone(),
            boundary,
            deadline_left,
        })
    }
}
