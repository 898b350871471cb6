//! Random histories: whatever is called, in whatever order, late, twice or with other arguments, the invariants hold.
//!
//! `BELAY_SEED=<seed>` replays one history.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use belay_core::{
    ids::CheckpointId,
    participant::{Admit, Effect, MarkList, Outcome, PermitId, Phase, Prepare, Settle},
    refusal::{Reason, Refusal},
};

use crate::rig::{
    GRACE, Rig, commit, durable, episode, id, mark, marks, prepare, restart, restore, s, settle,
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// SplitMix64: small, and the same on every machine.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.below(NAMES.len() as u64) as usize]
    }
}

/// What a history has seen; each must have happened often enough that the test means something.
#[derive(Default)]
struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    fn count(&mut self, what: &'static str, happened: bool) {
        *self.0.entry(what).or_default() += u64::from(happened);
    }
}

struct History {
    rig: Rig,
    rng: Rng,
    permits: Vec<PermitId>,
    newest: u64,
    ended: BTreeSet<CheckpointId>,
    /// Captures that were started and not yet freed.
    held: BTreeSet<CheckpointId>,
    /// When a call of the open run was last accepted.
    accepted: Duration,
    version: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let rig = if rng.below(4) == 0 {
            Rig::joining()
        } else {
            Rig::idle()
        };
        Self {
            rig,
            rng,
            permits: Vec::new(),
            newest: 1,
            ended: BTreeSet::new(),
            held: BTreeSet::new(),
            accepted: Duration::ZERO,
            version: 1,
        }
    }

    /// The open id mostly, else an old, a present or a new one.
    fn id(&mut self) -> CheckpointId {
        match (self.rng.below(6), self.rig.machine.open_id()) {
            (0..=3, Some(open)) => open,
            (4, _) => id(1 + self.rng.below(self.newest)),
            _ => {
                self.newest += self.rng.below(2);
                id(self.newest)
            }
        }
    }

    fn marks(&mut self) -> MarkList {
        self.version += self.rng.below(2);
        let late = self.rng.below(5) == 0;
        let version = if late {
            self.version.saturating_sub(2)
        } else {
            self.version
        };
        let attempt = self.rng.below(2) as u32;
        marks(version, &[mark(self.rng.name(), attempt)])
    }

    fn step(&mut self, tally: &mut Tally) {
        let now = self.rig.now;
        match self.rng.below(24) {
            0..=3 => {
                let name = self.rng.name();
                let attempt = self.rng.below(3) as u32;
                let open = self.rig.machine.is_open();
                let marked = self.rig.machine.marks().refuses(&episode(name, attempt));
                let admit = self
                    .rig
                    .machine
                    .admit(now, &episode(name, attempt), "tool".into());
                match admit {
                    Ok(Admit::Admitted(permit)) => {
                        assert!(open && !marked, "admitted in {}", self.rig.phase());
                        self.permits.push(permit);
                        tally.count("admitted", true);
                    }
                    Ok(Admit::Closed) => assert!(!open && !marked),
                    Err(refusal) => {
                        let joining = self.rig.phase() == Phase::Joining;
                        assert!(marked || joining, "{refusal}");
                    }
                }
            }
            4..=6 if !self.permits.is_empty() => {
                let n = self.rng.below(self.permits.len() as u64) as usize;
                let permit = self.permits.swap_remove(n);
                self.rig.release(permit);
            }
            4..=7 => {
                let wide = self.rng.below(8) == 0;
                self.rig.now += s(self.rng.below(if wide { 90 } else { 4 }));
                let (open, closed) = (self.rig.machine.open_id(), self.rig.phase().is_closed());
                self.rig.machine.tick(self.rig.now);
                if closed && self.rig.machine.is_open() {
                    tally.count("lapsed", true);
                    assert!(self.rig.now >= self.accepted + GRACE, "{open:?} lapsed early");
                }
            }
            8..=10 => {
                let id = self.id();
                let call = Prepare {
                    soft_limit: (self.rng.below(3) == 0).then(|| s(2)),
                    restarts: vec![restart(self.rng.name())],
                    ..prepare(id)
                };
                // A repeated Prepare that happens to be the same is accepted, any other is refused.
                let result = self.rig.prepare(&call);
                self.accept(id, result.is_ok());
                tally.count("prepared", result == Ok(true));
                self.rig.report(id, &[restart("d")]);
            }
            11..=12 => {
                let id = self.id();
                let names = [self.rng.name()];
                let result = self.rig.commit(&commit(id, &names));
                self.accept(id, result.is_ok());
                tally.count("committed", result.is_ok());
            }
            13 => {
                let id = self.id();
                let result = self.rig.machine.renew(now, &self.rig.fence, id);
                self.accept(id, result.is_ok());
            }
            14..=15 => {
                let id = self.id();
                let committed = self.rig.phase() == Phase::Committed;
                let result = self.rig.keep(id);
                if result.is_ok() && committed {
                    tally.count("kept", self.rig.machine.is_open());
                }
            }
            16 => {
                let id = self.id();
                let result = self.rig.abandon(id);
                if let Err(refusal) = &result {
                    assert_eq!(refusal.reason, Reason::CheckpointConflict, "{refusal}");
                }
                tally.count("abandoned", result.is_ok());
            }
            17 => {
                if let Some(id) = self.held.iter().next_back().copied() {
                    let full = Refusal::new(Reason::StorageFull, "full");
                    let good = self.rng.below(4) > 0;
                    self.rig
                        .machine
                        .persisted(id, if good { Ok(durable()) } else { Err(full) });
                }
            }
            18..=19 => {
                let id = match self.held.first() {
                    Some(held) if self.rng.below(3) > 0 => *held,
                    _ => self.id(),
                };
                let outcome = if self.rng.below(2) == 0 {
                    Outcome::Published
                } else {
                    Outcome::Discarded
                };
                let mut call: Settle = settle(id, outcome);
                if outcome == Outcome::Published {
                    call.drop = self.marks();
                }
                tally.count("settled", self.rig.settle(&call).is_ok());
            }
            20 => {
                let id = self.id();
                let attempt = 1 + self.rng.below(3) as u32;
                let call = restore(id, &[(self.rng.name(), attempt)]);
                let result = self.rig.machine.restore(now, &self.rig.fence, &call);
                tally.count("restored", result.is_ok());
            }
            21 => {
                let id = self.id();
                if self.rng.below(4) == 0 {
                    self.rig.machine.stage_failed(id);
                } else {
                    let joining = self.rig.phase() == Phase::Joining;
                    let staged = self.rig.staged(id).is_some();
                    assert!(!staged || (self.rig.phase() == Phase::Restored) == joining);
                    tally.count("staged", staged);
                }
            }
            22 => {
                let list = self.marks();
                if self.rng.below(2) == 0 {
                    let _ = self.rig.machine.retire(now, &self.rig.fence, &list);
                } else {
                    let open = self.rng.below(2) == 0;
                    let _ = self.rig.join(open, list);
                }
            }
            _ => {
                let rollouts = [crate::rig::rollout(self.rng.name())];
                self.version += 1;
                let (fence, version) = (self.rig.fence, self.version);
                if let Ok(asked) = self.rig.machine.may_forget(now, &fence, &rollouts, version) {
                    tally.count("forgotten", self.rig.machine.forget(&asked, version) > 0);
                }
            }
        }
    }

    fn accept(&mut self, id: CheckpointId, accepted: bool) {
        if accepted && self.rig.machine.open_id() == Some(id) {
            self.accepted = self.rig.now;
        }
    }

    /// What the effects and the state must say after every step.
    fn check(&mut self) {
        let machine = &mut self.rig.machine;
        machine.check(self.rig.now).unwrap();
        let mut phase = None;
        for effect in machine.take_effects() {
            match effect {
                Effect::Phase(entered) => phase = Some(entered),
                Effect::Over(id) => {
                    assert!(self.ended.insert(id), "{id} ended twice");
                }
                Effect::StartPersist(id) => {
                    assert!(self.held.insert(id), "{id} captured twice");
                }
                Effect::FreeCapture(id) => {
                    assert!(self.held.remove(&id), "{id} freed, not held");
                }
                _ => {}
            }
        }
        if let Some(phase) = phase {
            assert_eq!(phase, machine.phase(), "the last phase told is the phase");
        }
        assert!(self.held.len() <= 1, "one capture at a time: {:?}", self.held);
        if let Some(open) = machine.open_id() {
            assert!(!self.ended.contains(&open), "{open} had ended and is open");
        }
        if machine.phase().is_closed() {
            let deadline = machine.next_deadline().unwrap();
            assert!(
                deadline <= self.accepted + GRACE,
                "no lease runs longer than its grace"
            );
        }
    }
}

fn run(seed: u64, tally: &mut Tally) {
    let mut history = History::new(seed);
    for _ in 0..400 {
        history.step(tally);
        history.check();
    }
    // Whatever happened: with no more calls, a closed participant opens by itself.
    let closed = history.rig.phase().is_closed();
    let limit = history.accepted.max(history.rig.now) + GRACE;
    history.rig.machine.tick(limit);
    assert!(!closed || history.rig.machine.is_open());
}

#[test]
fn invariants_hold_in_random_histories() {
    let replay = std::env::var("BELAY_SEED")
        .ok()
        .map(|seed| seed.parse::<u64>().unwrap());
    let first = replay.unwrap_or_else(|| {
        let elapsed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        elapsed.as_nanos() as u64
    });
    let histories = if replay.is_some() { 1 } else { 600 };
    let mut tally = Tally::default();
    for seed in (0..histories).map(|n| first.wrapping_add(n)) {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut tally)));
        if let Err(panic) = ran {
            eprintln!("replay with BELAY_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    if replay.is_none() {
        for (what, count) in &tally.0 {
            assert!(*count > 100, "{what} happened {count} times only: {:?}", tally.0);
        }
        assert_eq!(tally.0.len(), 10, "{:?}", tally.0.keys());
    }
}
