//! Which captured episodes are whole (protocol 4, closure).
//!
//! Each participant captures at its own moment, all while the mesh stands still. Yet a server may have died and come back
//! empty since an episode was seeded there, so a root's record proves nothing about its other parts. Here the replies to
//! Commit are held against each other: an episode goes into the checkpoint only if each part that it names was captured, in
//! the same life, and reaches as far as the agent's cursor.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    ids::{Episode, Instance, Kind},
    parts::{Cursor, Need, PartNeeded, PartSummary, Restart},
};

/// An episode of which every part was captured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WholeEpisode {
    /// Its root.
    pub root: PartSummary,
    /// Where the root is.
    pub at: Instance,
    /// How far its agent has come: the agent's own word while it holds the session, else the root's.
    pub cursor: Cursor,
    /// Every instance that holds a part of it, the root's first; also the policy model that its first model call will go to, so
    /// that a plan places the episode there.
    pub parts: Vec<Instance>,
    /// How many of these hold nothing yet.
    pub not_begun: u64,
}

/// What the check came to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Closure {
    /// What the checkpoint holds.
    pub whole: Vec<WholeEpisode>,
    /// Roots that are not whole: which part is missing, and how.
    pub restarts: Vec<Restart>,
    /// Parts that no whole episode names.
    pub left_out: u64,
}

/// Holds the captures of one checkpoint against each other. `restarts` are those that participants have reported: such an
/// episode is a restart whatever was captured of it.
pub fn close(captures: &[(Instance, Vec<PartSummary>)], restarts: &[Restart]) -> Closure {
    let mut parts: BTreeMap<(&Episode, &Instance), &PartSummary> = BTreeMap::new();
    let mut roots: BTreeMap<&Episode, Vec<(&Instance, &PartSummary)>> = BTreeMap::new();
    for (instance, captured) in captures {
        for part in captured {
            parts.insert((&part.episode, instance), part);
            if part.root {
                roots.entry(&part.episode).or_default().push((instance, part));
            }
        }
    }
    let known: BTreeSet<&Episode> = restarts.iter().map(|r| &r.episode).collect();
    let mut closure = Closure::default();
    for (episode, found) in roots {
        if known.contains(episode) {
            continue;
        }
        let (at, root) = found[0];
        if let Some((other, _)) = found.get(1) {
            closure.restarts.push(Restart {
                episode: episode.clone(),
                instance: (*other).clone(),
                reason: format!("{at} and {other} both captured it as a root"),
            });
            continue;
        }
        match whole(at, root, &parts) {
            Ok(episode) => closure.whole.push(episode),
            Err(restart) => closure.restarts.push(restart),
        }
    }
    let named: u64 = closure
        .whole
        .iter()
        .map(|w| w.parts.len() as u64 - w.not_begun)
        .sum();
    closure.left_out = parts.len() as u64 - named;
    closure
}

fn whole(
    at: &Instance,
    root: &PartSummary,
    parts: &BTreeMap<(&Episode, &Instance), &PartSummary>,
) -> Result<WholeEpisode, Restart> {
    let episode = &root.episode;
    let find = |instance: &Instance| parts.get(&(episode, instance)).copied();
    // The session knows better than the environment how far the agent has come, and where its parts are.
    let session = root
        .needs
        .iter()
        .filter(|n| n.instance.kind == Kind::Agent && n.instance != *at)
        .find_map(|n| find(&n.instance));
    let cursor = session.map_or(root.cursor, |s| s.cursor);

    let mut needs: BTreeMap<&Instance, Need> = BTreeMap::new();
    for PartNeeded { instance, need } in root.needs.iter().chain(session.iter().flat_map(|s| &s.needs)) {
        let stricter = needs.get(instance) == Some(&Need::Whole) || *need == Need::Whole;
        needs.insert(instance, if stricter { Need::Whole } else { Need::IfBegun });
    }
    needs.remove(at);

    let (mut held, mut not_begun) = (vec![at.clone()], 0);
    for (instance, need) in needs {
        let lacks = |reason: String| Restart {
            episode: episode.clone(),
            instance: instance.clone(),
            reason,
        };
        match find(instance) {
            Some(part) => {
                fits(root, &cursor, instance, part).map_err(lacks)?;
                held.push(instance.clone());
            }
            None if need == Need::IfBegun && !begun(instance.kind, &cursor) => {
                // A policy model begins a ledger at the first call, and takes the episode without a record.
                if instance.kind == Kind::PolicyModel {
                    held.push(instance.clone());
                    not_begun += 1;
                }
            }
            None => return Err(lacks(missing(instance.kind))),
        }
    }
    Ok(WholeEpisode {
        root: root.clone(),
        at: at.clone(),
        cursor,
        parts: held,
        not_begun,
    })
}

/// The agent has applied something that this kind of server must remember.
fn begun(kind: Kind, cursor: &Cursor) -> bool {
    match kind {
        Kind::PolicyModel => cursor.chain.is_some(),
        Kind::Resources => cursor.revision > 0,
        Kind::Agent | Kind::Environment => cursor.operation.is_some(),
    }
}

fn missing(kind: Kind) -> String {
    let what = match kind {
        Kind::Environment => "episode",
        Kind::PolicyModel => "ledger",
        Kind::Agent | Kind::Resources => "session",
    };
    format!("its {what} is not there: the server was restarted since")
}

fn fits(root: &PartSummary, cursor: &Cursor, at: &Instance, part: &PartSummary) -> Result<(), String> {
    if part.execution != root.execution {
        return Err(format!(
            "it holds another life of the episode ({}, not {})",
            part.execution, root.execution
        ));
    }
    match at.kind {
        Kind::Resources if part.revision < cursor.revision => Err(format!(
            "its session is at revision {}, the agent has seen {}",
            part.revision, cursor.revision
        )),
        // The ledger ends where the agent is, or one row further: that row's reply is kept and has not reached the agent.
        Kind::PolicyModel => {
            let (tip, parent) = (part.ledger.map(|l| l.chain), part.ledger.and_then(|l| l.parent));
            if cursor.chain == tip || cursor.chain == parent {
                Ok(())
            } else {
                Err("its ledger does not end at the chain hash that the agent has seen".into())
            }
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        coordinator::test_support::{Dice, chain, episode, execution, instance, need, part},
        ids::Operation,
        parts::LedgerTip,
    };

    const ENV: &str = "environment/default/0";
    const AGENT: &str = "agent/default/0";
    const RES: &str = "resources/counter/0";
    const POLICY: &str = "policy-model/default/0";

    /// One episode in the middle of its second model call.
    fn captures() -> Vec<(Instance, Vec<PartSummary>)> {
        let e = episode("a", 0);
        let env = PartSummary {
            root: true,
            needs: vec![
                need(AGENT, Need::Whole),
                need(RES, Need::Whole),
                need(POLICY, Need::IfBegun),
            ],
            ..part(e.clone())
        };
        let agent = PartSummary {
            cursor: Cursor {
                operation: Some(Operation::tool_call(0, 0)),
                chain: Some(chain(1)),
                revision: 1,
            },
            needs: vec![need(RES, Need::Whole), need(POLICY, Need::IfBegun)],
            ..part(e.clone())
        };
        let resources = PartSummary {
            revision: 1,
            ..part(e.clone())
        };
        let tip = LedgerTip {
            operation: Operation::FIRST,
            chain: chain(1),
            parent: None,
        };
        let policy = PartSummary {
            ledger: Some(tip),
            ..part(e)
        };
        vec![
            (instance(ENV), vec![env]),
            (instance(AGENT), vec![agent]),
            (instance(RES), vec![resources]),
            (instance(POLICY), vec![policy]),
        ]
    }

    fn restart_at(captures: &[(Instance, Vec<PartSummary>)]) -> Restart {
        let closure = close(captures, &[]);
        assert_eq!(closure.whole, vec![]);
        assert_eq!(closure.restarts.len(), 1, "{closure:?}");
        closure.restarts[0].clone()
    }

    #[test]
    fn an_episode_with_all_its_parts_is_whole() {
        let closure = close(&captures(), &[]);
        assert_eq!(closure.restarts, vec![]);
        assert_eq!(closure.whole[0].parts.len(), 4);
        assert_eq!(closure.whole[0].cursor.revision, 1);
        assert_eq!(closure.left_out, 0);
    }

    #[test]
    fn each_missing_part_makes_a_restart_that_names_it() {
        for lost in 1..4 {
            let mut captures = captures();
            captures[lost].1.clear();
            assert_eq!(restart_at(&captures).instance, captures[lost].0);
        }
    }

    #[test]
    fn a_part_of_another_life_does_not_count() {
        for other in 1..4 {
            let mut captures = captures();
            captures[other].1[0].execution = execution(2);
            let restart = restart_at(&captures);
            assert_eq!(restart.instance, captures[other].0);
            assert!(restart.reason.contains("another life"), "{}", restart.reason);
        }
    }

    #[test]
    fn a_session_behind_the_cursor_is_not_whole_and_one_ahead_is() {
        let mut captures = captures();
        captures[2].1[0].revision = 0;
        assert_eq!(restart_at(&captures).instance, instance(RES));
        // The tool's reply is kept there and has not reached the agent.
        captures[2].1[0].revision = 2;
        assert_eq!(close(&captures, &[]).whole.len(), 1);
    }

    #[test]
    fn the_ledger_may_be_one_row_ahead_and_no_more() {
        let mut captures = captures();
        let tip = |op, chain, parent| {
            Some(LedgerTip {
                operation: Operation::model_call(op),
                chain,
                parent,
            })
        };
        captures[3].1[0].ledger = tip(1, chain(2), Some(chain(1)));
        assert_eq!(close(&captures, &[]).whole.len(), 1);
        captures[3].1[0].ledger = tip(2, chain(3), Some(chain(2)));
        assert_eq!(restart_at(&captures).instance, instance(POLICY));
        captures[3].1[0].ledger = None;
        assert_eq!(restart_at(&captures).instance, instance(POLICY));
        // Before the agent's first reply: no row, or one that is on its way.
        captures[1].1[0].cursor = Cursor::default();
        assert_eq!(close(&captures, &[]).whole.len(), 1);
        captures[3].1[0].ledger = tip(0, chain(1), None);
        assert_eq!(close(&captures, &[]).whole.len(), 1);
    }

    #[test]
    fn a_part_that_is_needed_if_begun_may_be_missing_before_the_first_call_only() {
        let mut captures = captures();
        captures[3].1.clear();
        assert_eq!(restart_at(&captures).instance, instance(POLICY));
        captures[1].1[0].cursor = Cursor::default();
        let closure = close(&captures, &[]);
        assert_eq!(
            closure.whole[0].parts.len(),
            4,
            "it is placed where its first call will go"
        );
        assert_eq!((closure.whole[0].not_begun, closure.left_out), (1, 0));
    }

    #[test]
    fn without_a_session_the_roots_own_cursor_counts() {
        let mut captures = captures();
        let seen = captures[1].1[0].cursor;
        captures[1].1.clear();
        captures[0].1[0].needs.remove(0);
        captures[0].1[0].cursor = seen;
        assert_eq!(close(&captures, &[]).whole[0].cursor, seen);
        captures[2].1[0].revision = 0;
        assert_eq!(restart_at(&captures).instance, instance(RES));
    }

    #[test]
    fn a_reported_restart_stays_one_and_parts_without_a_root_are_left_out() {
        let known = [Restart {
            episode: episode("a", 0),
            instance: instance(RES),
            reason: "too large".into(),
        }];
        let closure = close(&captures(), &known);
        assert_eq!(
            (closure.whole.len(), closure.restarts.len(), closure.left_out),
            (0, 0, 4)
        );
        let mut orphan = captures();
        orphan[0].1.clear();
        let closure = close(&orphan, &[]);
        assert_eq!(
            (closure.whole.len(), closure.restarts.len(), closure.left_out),
            (0, 0, 3)
        );
    }

    #[test]
    fn two_roots_of_one_episode_are_not_whole() {
        let mut captures = captures();
        let twin = captures[0].1.clone();
        captures.push((instance("environment/default/1"), twin));
        let restart = restart_at(&captures);
        assert!(restart.reason.contains("environment/default/1"));
    }

    /// Whatever is lost, altered or misplaced: each root is whole or a restart, and what is whole has all that it needs.
    #[test]
    fn random_damage_never_makes_a_whole_episode_with_a_hole() {
        let mut dice = Dice::new("random_damage_never_makes_a_whole_episode_with_a_hole");
        let mut kept = 0;
        for _ in 0..5_000 {
            let mut captures = captures();
            for _ in 0..dice.below(3) {
                let at = dice.below(captures.len() as u64) as usize;
                let Some(part) = captures[at].1.first_mut() else {
                    continue;
                };
                match dice.below(5) {
                    0 => captures[at].1.clear(),
                    1 => part.execution = execution(u128::from(dice.below(2))),
                    2 => part.revision = dice.below(3),
                    3 => part.cursor.revision = dice.below(3),
                    _ => part.cursor.chain = dice.one_in(2).then(|| chain(dice.below(3) as u8)),
                }
            }
            let roots = captures.iter().flat_map(|(_, p)| p).filter(|p| p.root).count();
            let closure = close(&captures, &[]);
            assert_eq!(closure.whole.len() + closure.restarts.len(), roots);
            for whole in &closure.whole {
                kept += 1;
                for (instance, parts) in &captures {
                    let held = whole.parts.contains(instance) && !parts.is_empty();
                    assert!(!held || parts[0].execution == whole.root.execution);
                    assert!(
                        !held
                            || instance.kind != Kind::Resources
                            || parts[0].revision >= whole.cursor.revision
                    );
                }
            }
        }
        assert!(kept > 500, "the test must see whole episodes too");
    }
}
