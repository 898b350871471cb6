//! Short names for tests.

use uuid::Uuid;

use crate::{
    ids::{Digest, Episode, ExecutionId, Instance, RolloutId},
    parts::{Cursor, Need, PartNeeded, PartSummary},
};

pub fn instance(text: &str) -> Instance {
    text.parse().expect("an instance")
}

pub fn rollout(id: &str) -> RolloutId {
    RolloutId::new(id).expect("a rollout id")
}

pub fn episode(id: &str, attempt: u32) -> Episode {
    Episode::new(rollout(id), attempt)
}

pub fn execution(n: u128) -> ExecutionId {
    ExecutionId(Uuid::from_u128(n))
}

pub fn chain(n: u8) -> Digest {
    [n; 32]
}

pub fn need(instance_: &str, need: Need) -> PartNeeded {
    PartNeeded {
        instance: instance(instance_),
        need,
    }
}

/// A part without anything to say: no root, no needs, the first execution.
pub fn part(episode: Episode) -> PartSummary {
    PartSummary {
        episode,
        execution: execution(1),
        root: false,
        cursor: Cursor::default(),
        needs: Vec::new(),
        ledger: None,
        revision: 0,
        boundary: "seed".into(),
        task: None,
        finished: false,
    }
}

/// Small, seeded, good enough to pick test cases: xorshift64*.
pub struct Dice(u64);

impl Dice {
    /// `BELAY_SEED` replays a run; each test prints the seed it uses.
    pub fn new(test: &str) -> Self {
        use std::hash::{BuildHasher as _, Hasher as _, RandomState};
        let seed = std::env::var("BELAY_SEED")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| RandomState::new().build_hasher().finish());
        println!("{test}: BELAY_SEED={seed}");
        Self(seed | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
