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
    let since = match kind {
        Kind::Resources => "the server was restarted since, or its time to live ended",
        Kind::Agent | Kind::Environment | Kind::PolicyModel => "the server was restarted since",
    };
    format!("its {what} is not there: {since}")
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
mod tests;
