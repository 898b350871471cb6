//! How runs of checkpoint and restore ended here (protocol 3.2 rule 1).

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::ids::{CheckpointId, Digest};

use super::{calls::Outcome, phase::Phase};

/// So many endings are remembered with how they ended.
pub const REMEMBERED: usize = 1024;

/// How a run ended at a participant.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Ending {
    /// Resumed with KEEP.
    Kept,
    /// Resumed with ABANDON, or given up after an unexpected error.
    Abandoned,
    /// The lease ran out.
    Lapsed,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "kept",
            Self::Abandoned => "abandoned",
            Self::Lapsed => "ended by its lease, which lapsed",
        })
    }
}

/// The reply of a Resume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// Where the participant is now.
    pub phase: Phase,
    /// After a restore: how many records went live.
    pub activated: u64,
}

/// A capture that is durable: the reply of an Await.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Durable {
    /// The manifest, as a path below the checkpoint's directory.
    pub manifest: String,
    /// BLAKE3 of the manifest's bytes.
    pub digest: Digest,
    /// Bytes of the records file.
    pub bytes: u64,
    /// Records in it.
    pub records: u64,
    /// From capture to durable.
    pub took: Duration,
}

/// How a kept capture was settled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Settled {
    pub(super) outcome: Outcome,
    /// BLAKE3 of the list of episodes to drop: tells a repeated call from another one.
    pub(super) drop: Digest,
    pub(super) dropped: u64,
}

/// What is remembered of a run that ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) how: Ending,
    pub(super) resumed: Resumed,
    /// The run had a capture that was kept.
    pub(super) captured: bool,
    pub(super) durable: Option<Durable>,
    pub(super) settled: Option<Settled>,
}

/// What a participant knows of an id that is not open.
pub(super) enum Seen<'a> {
    /// Nothing: it may be opened.
    Never,
    /// How it ended.
    Ended(&'a Ended),
    /// It is below an id that ended, so it is over as well; how is no longer known, or it was never here.
    Passed,
}

/// The last endings, and by order all below.
#[derive(Clone, Debug, Default)]
pub(super) struct Endings {
    last: BTreeMap<CheckpointId, Ended>,
    /// The highest id that was open here and has ended, or was forgotten: a coordinator's ids only grow, so a call with a
    /// lower one is late.
    passed: Option<CheckpointId>,
}

impl Endings {
    pub(super) fn seen(&self, id: CheckpointId) -> Seen<'_> {
        match self.last.get(&id) {
            Some(ended) => Seen::Ended(ended),
            None if self.passed.is_some_and(|passed| id <= passed) => Seen::Passed,
            None => Seen::Never,
        }
    }

    pub(super) fn get_mut(&mut self, id: CheckpointId) -> Option<&mut Ended> {
        self.last.get_mut(&id)
    }

    /// A run that was open has ended.
    pub(super) fn add(&mut self, id: CheckpointId, ended: Ended) {
        self.passed = self.passed.max(Some(id));
        self.insert(id, ended);
    }

    /// An id that was never open here is not to be opened any more. It says nothing about lower ids.
    pub(super) fn fence(&mut self, id: CheckpointId, phase: Phase) {
        let resumed = Resumed { phase, activated: 0 };
        self.insert(
            id,
            Ended {
                how: Ending::Abandoned,
                resumed,
                captured: false,
                durable: None,
                settled: None,
            },
        );
    }

    fn insert(&mut self, id: CheckpointId, ended: Ended) {
        self.last.insert(id, ended);
        while self.last.len() > REMEMBERED {
            let forgotten = self.last.pop_first().map(|(id, _)| id);
            self.passed = self.passed.max(forgotten);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.last.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sequence: u64) -> CheckpointId {
        CheckpointId { epoch: 1, sequence }
    }

    fn kept() -> Ended {
        Ended {
            how: Ending::Kept,
            resumed: Resumed {
                phase: Phase::Idle,
                activated: 0,
            },
            captured: true,
            durable: None,
            settled: None,
        }
    }

    #[test]
    fn the_last_endings_are_known_and_all_below_are_over() {
        let mut endings = Endings::default();
        assert!(matches!(endings.seen(id(1)), Seen::Never));
        for n in 2..=(REMEMBERED as u64 + 10) {
            endings.add(id(n), kept());
        }
        assert_eq!(endings.len(), REMEMBERED);
        assert!(matches!(endings.seen(id(1)), Seen::Passed), "never here");
        assert!(matches!(endings.seen(id(2)), Seen::Passed), "forgotten");
        let newest = id(REMEMBERED as u64 + 10);
        assert!(matches!(endings.seen(newest), Seen::Ended(e) if e.how == Ending::Kept));
        assert!(matches!(endings.seen(id(REMEMBERED as u64 + 11)), Seen::Never));
    }

    #[test]
    fn a_fence_holds_its_own_id_only_until_it_is_forgotten() {
        let mut endings = Endings::default();
        endings.fence(id(9), Phase::Idle);
        assert!(matches!(endings.seen(id(9)), Seen::Ended(e) if e.how == Ending::Abandoned));
        assert!(matches!(endings.seen(id(8)), Seen::Never));
        for n in 10..=(REMEMBERED as u64 + 9) {
            endings.fence(id(n), Phase::Idle);
        }
        assert!(matches!(endings.seen(id(9)), Seen::Passed));
        assert!(matches!(endings.seen(id(8)), Seen::Passed));
    }
}
