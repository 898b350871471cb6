//! Where every admitted episode stands at the capture (protocol 4, the partition).

use std::collections::{BTreeMap, BTreeSet};

use super::closure::Closure;
use crate::{
    ids::{Episode, Instance},
    parts::{Mark, PartitionEntry, Restart, Standing},
};

/// The reason by which an environment marks a `LeftOut` entry as restored and not claimed: it is dropped at Settle.
pub const UNCLAIMED: &str = "restored, not claimed";

/// The partition: each episode exactly once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Partition {
    /// In the episodes' order.
    pub entries: Vec<PartitionEntry>,
    /// Each with the server and the reason.
    pub restarts: Vec<Restart>,
    /// Calls that wait at a door.
    pub at_door: u64,
}

/// What the environments say, corrected by what closure found, with the legacy runs that only agents know. `reported` are the
/// restarts of the listed scope: what is left out of it is no restart.
pub fn merge(
    environments: Vec<(Instance, Vec<PartitionEntry>)>,
    at_door: u64,
    reported: &[Restart],
    closure: &Closure,
) -> Partition {
    let mut restarts: BTreeMap<&Episode, &Restart> = BTreeMap::new();
    for restart in reported.iter().chain(&closure.restarts) {
        restarts.entry(&restart.episode).or_insert(restart);
    }
    let whole: BTreeMap<&Episode, bool> = closure
        .whole
        .iter()
        .map(|w| (&w.root.episode, w.root.finished))
        .collect();

    let mut entries: BTreeMap<Episode, (Standing, String)> = BTreeMap::new();
    let mut found: Vec<Restart> = Vec::new();
    for (environment, listed) in environments {
        for PartitionEntry {
            episode,
            standing,
            reason,
        } in listed
        {
            let saved = matches!(standing, Standing::SavedRunning | Standing::SavedFinished);
            let (standing, reason) =
                if saved && !whole.contains_key(&episode) && !restarts.contains_key(&episode) {
                    let reason = format!("{environment} listed it as saved and captured no record of it");
                    found.push(Restart {
                        episode: episode.clone(),
                        instance: environment.clone(),
                        reason: reason.clone(),
                    });
                    (Standing::Restart, reason)
                } else {
                    (standing, reason)
                };
            // Two environments can know an episode that moved with a restore: the one that still has it speaks.
            let entry = entries
                .entry(episode)
                .or_insert_with(|| (standing, reason.clone()));
            if weight(standing) < weight(entry.0) {
                *entry = (standing, reason);
            }
        }
    }
    for (episode, restart) in &restarts {
        // Left out is what an environment says of a restart that only a later server found.
        let over = matches!(
            entries.get(*episode),
            Some((Standing::Acknowledged | Standing::Retired | Standing::Failed, _))
        );
        if !over {
            entries.insert(
                (*episode).clone(),
                (
                    Standing::Restart,
                    format!("{}: {}", restart.instance, restart.reason),
                ),
            );
        }
    }
    for (episode, finished) in whole {
        let standing = if finished {
            Standing::SavedFinished
        } else {
            Standing::SavedRunning
        };
        entries.insert(episode.clone(), (standing, String::new()));
    }
    let in_partition: BTreeSet<Episode> = entries
        .iter()
        .filter(|(_, (s, _))| *s == Standing::Restart)
        .map(|(e, _)| e.clone())
        .collect();
    found.extend(restarts.into_values().cloned());
    found.retain(|r| in_partition.contains(&r.episode));
    Partition {
        entries: entries
            .into_iter()
            .map(|(episode, (standing, reason))| PartitionEntry {
                episode,
                standing,
                reason,
            })
            .collect(),
        restarts: found,
        at_door,
    }
}

/// Lower speaks first.
fn weight(standing: Standing) -> u8 {
    match standing {
        Standing::SavedRunning | Standing::SavedFinished => 0,
        Standing::Restart => 1,
        Standing::LeftOut => 2,
        Standing::Acknowledged => 3,
        Standing::Retired => 4,
        Standing::Failed => 5,
    }
}

impl Partition {
    /// What Settle drops: restored episodes that no Run has claimed and that the scope left out.
    pub fn dropped(&self) -> Vec<Mark> {
        self.entries
            .iter()
            .filter(|e| e.standing == Standing::LeftOut && e.reason == UNCLAIMED)
            .map(|e| Mark {
                rollout: e.episode.rollout.clone(),
                attempt: e.episode.attempt,
            })
            .collect()
    }

    /// How many stand so.
    pub fn count(&self, standing: Standing) -> u64 {
        self.entries.iter().filter(|e| e.standing == standing).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        coordinator::{
            closure::{WholeEpisode, close},
            test_support::{episode, instance, part},
        },
        parts::{Cursor, PartSummary},
    };

    const ENV: &str = "environment/default/0";

    fn entry(id: &str, standing: Standing) -> PartitionEntry {
        PartitionEntry {
            episode: episode(id, 0),
            standing,
            reason: String::new(),
        }
    }

    fn whole(id: &str, finished: bool) -> WholeEpisode {
        let root = PartSummary {
            root: true,
            finished,
            ..part(episode(id, 0))
        };
        WholeEpisode {
            root,
            at: instance(ENV),
            cursor: Cursor::default(),
            parts: vec![instance(ENV)],
            not_begun: 0,
        }
    }

    fn restart(id: &str) -> Restart {
        Restart {
            episode: episode(id, 0),
            instance: instance("resources/x/0"),
            reason: "gone".into(),
        }
    }

    #[test]
    fn closure_has_the_last_word_on_what_is_saved() {
        let closure = Closure {
            whole: vec![whole("run", false), whole("done", true)],
            restarts: vec![restart("hole")],
            left_out: 0,
        };
        let listed = vec![
            entry("run", Standing::SavedRunning),
            entry("done", Standing::SavedFinished),
            entry("hole", Standing::SavedRunning),
            entry("lost", Standing::SavedRunning),
            entry("ok", Standing::Acknowledged),
            entry("late", Standing::LeftOut),
        ];
        let partition = merge(
            vec![(instance(ENV), listed)],
            3,
            &[restart("ok"), restart("late")],
            &closure,
        );
        let standing: Vec<_> = partition
            .entries
            .iter()
            .map(|e| (e.episode.rollout.as_str(), e.standing))
            .collect();
        assert_eq!(
            standing,
            [
                ("done", Standing::SavedFinished),
                ("hole", Standing::Restart),
                ("late", Standing::Restart),
                ("lost", Standing::Restart),
                ("ok", Standing::Acknowledged),
                ("run", Standing::SavedRunning),
            ]
        );
        assert_eq!(partition.restarts.len(), 3, "{:?}", partition.restarts);
        assert_eq!(partition.at_door, 3);
    }

    #[test]
    fn legacy_runs_of_agents_are_in_it() {
        let run = PartSummary {
            root: true,
            ..part(episode("legacy", 0))
        };
        let captures = vec![(instance("agent/a/0"), vec![run])];
        let partition = merge(vec![], 0, &[], &close(&captures, &[]));
        assert_eq!(partition.count(Standing::SavedRunning), 1);
    }

    #[test]
    fn each_episode_once_and_whoever_still_has_it_speaks() {
        let a = (instance(ENV), vec![entry("x", Standing::Retired)]);
        let b = (
            instance("environment/default/1"),
            vec![entry("x", Standing::LeftOut)],
        );
        for listed in [vec![a.clone(), b.clone()], vec![b, a]] {
            let partition = merge(listed, 0, &[], &Closure::default());
            assert_eq!(partition.entries, vec![entry("x", Standing::LeftOut)]);
        }
    }

    #[test]
    fn only_unclaimed_ones_are_dropped() {
        let unclaimed = PartitionEntry {
            reason: UNCLAIMED.into(),
            ..entry("restored", Standing::LeftOut)
        };
        let listed = vec![unclaimed, entry("live", Standing::LeftOut)];
        let partition = merge(vec![(instance(ENV), listed)], 0, &[], &Closure::default());
        let dropped = partition.dropped();
        assert_eq!(dropped.len(), 1);
        assert_eq!(dropped[0].rollout.as_str(), "restored");
    }
}
