//! Random sequences against a simple model: every operation's effect is in a session's state exactly once.
//!
//! The state is the list of operations that were applied to it, so a repeated or lost effect shows in the state itself.
//! A session that is not used for its time to live ends, and no other does.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;

use super::*;
use crate::ids::{Episode, ExecutionId, Operation, RolloutId};

type State = Arc<Vec<Operation>>;

const TTL: Duration = Duration::from_secs(30);

/// What the episode's owner believes: the agent's side.
#[derive(Clone)]
struct Believed {
    attempt: u32,
    execution: ExecutionId,
    /// Operations with a reply, in order.
    done: Vec<Operation>,
    in_flight: Option<Operation>,
    /// When it ends if it is not used.
    ends: Duration,
    saved: Option<Saved>,
}

#[derive(Clone)]
struct Saved {
    done: Vec<Operation>,
    view: SessionView<State>,
    time_left: Option<Duration>,
}

/// A small generator: the sequence is the seed's.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

struct World {
    table: Sessions<State>,
    rollouts: BTreeMap<RolloutId, Believed>,
    lives: u128,
    applied: u64,
    kept: u64,
    restored: u64,
    expired: u64,
    now: Duration,
}

impl World {
    fn new() -> Self {
        Self {
            table: Sessions::new("resources/test/0".parse().unwrap()).with_ttl(Some(TTL)),
            rollouts: BTreeMap::new(),
            lives: 0,
            applied: 0,
            kept: 0,
            restored: 0,
            expired: 0,
            now: Duration::ZERO,
        }
    }

    fn life(&mut self) -> ExecutionId {
        self.lives += 1;
        ExecutionId(uuid::Uuid::from_u128(self.lives))
    }

    /// Whoever uses a session says so.
    fn touch(&mut self, rollout: &RolloutId) {
        if let Some(held) = self.rollouts.get_mut(rollout) {
            let episode = Episode::new(rollout.clone(), held.attempt);
            self.table.touch(&episode, held.execution, self.now);
            held.ends = self.now + TTL;
        }
    }

    /// Time goes by, and what nobody used meanwhile ends.
    fn wait(&mut self, random: &mut Random) {
        self.now += Duration::from_secs(random.below(30));
        let due: Vec<_> = self.table.expired(self.now).collect();
        for (rollout, held) in self.rollouts.clone() {
            let episode = Episode::new(rollout.clone(), held.attempt);
            let over = held.in_flight.is_none() && held.ends <= self.now;
            assert_eq!(due.contains(&episode), over);
            assert_eq!(self.table.expire(&episode, self.now), over);
            if over {
                self.rollouts.remove(&rollout);
                self.table
                    .seed(&episode, held.execution, Bytes::new(), State::default())
                    .expect_err("it is over");
                self.table.forget(&rollout);
                self.expired += 1;
            }
        }
    }

    fn seed(&mut self, rollout: &RolloutId) {
        let task = Bytes::from_static(b"{}");
        if let Some(held) = self.rollouts.get(rollout) {
            let episode = Episode::new(rollout.clone(), held.attempt);
            let execution = held.execution;
            self.table
                .seed(&episode, execution, task.clone(), State::default())
                .unwrap();
            let stranger = self.life();
            self.table
                .seed(&episode, stranger, task, State::default())
                .unwrap_err();
            return;
        }
        let execution = self.life();
        let episode = Episode::new(rollout.clone(), 0);
        if self
            .table
            .seed(&episode, execution, task, State::default())
            .is_ok()
        {
            let believed = Believed {
                attempt: 0,
                execution,
                done: Vec::new(),
                in_flight: None,
                ends: Duration::ZERO,
                saved: None,
            };
            self.rollouts.insert(rollout.clone(), believed);
        }
    }

    fn call(&mut self, rollout: &RolloutId, random: &mut Random) {
        let Some(held) = self.rollouts.get_mut(rollout) else {
            return;
        };
        let episode = Episode::new(rollout.clone(), held.attempt);
        let last = held.done.last().copied();
        let fresh = match last {
            None => Operation::tool_call(0, 0),
            Some(last) if random.below(2) == 0 => Operation {
                index: last.index + 1,
                ..last
            },
            Some(last) => Operation::tool_call(last.turn + 1, 0),
        };
        // Now and then an older one again: its reply was lost.
        let operation = match held.done.len() as u64 {
            n if n > 0 && random.below(3) == 0 => held.done[random.below(n) as usize],
            _ => held.in_flight.unwrap_or(fresh),
        };
        let begun = self
            .table
            .begin(&episode, held.execution, operation, digest(operation));
        match begun {
            Ok(Begin::Kept(_)) => {
                assert!(
                    held.done.contains(&operation),
                    "kept, but never applied: {operation}"
                );
                self.kept += 1;
            }
            Ok(Begin::Joined) => assert_eq!(held.in_flight, Some(operation)),
            Ok(Begin::Apply(_)) => {
                assert!(!held.done.contains(&operation), "applied twice: {operation}");
                assert_eq!(held.in_flight, None);
                held.in_flight = Some(operation);
            }
            Err(refusal) => assert!(
                last.is_some_and(|last| operation.turn < last.turn)
                    || held
                        .in_flight
                        .is_some_and(|running| operation.turn < running.turn),
                "{refusal}"
            ),
        }
        self.table
            .begin(&episode, held.execution, operation, [9; 32])
            .expect_err("another digest, or an operation of the past");
    }

    fn end_call(&mut self, rollout: &RolloutId, random: &mut Random) {
        let Some(held) = self.rollouts.get_mut(rollout) else {
            return;
        };
        let Some(operation) = held.in_flight.take() else {
            return;
        };
        let episode = Episode::new(rollout.clone(), held.attempt);
        if random.below(5) == 0 {
            self.table.abort(&episode, held.execution, operation);
            return;
        }
        let mut state = Vec::clone(&self.table.get(&episode).unwrap().state);
        state.push(operation);
        let applied = Applied {
            output: Bytes::new(),
            state: Some(Arc::new(state)),
        };
        let reply = self
            .table
            .finish(&episode, held.execution, operation, applied)
            .unwrap();
        held.done.push(operation);
        assert_eq!(reply.revision, held.done.len() as u64);
        self.applied += 1;
    }

    fn save(&mut self, rollout: &RolloutId) {
        if let Some(held) = self
            .rollouts
            .get_mut(rollout)
            .filter(|held| held.in_flight.is_none())
        {
            let episode = Episode::new(rollout.clone(), held.attempt);
            let now = self.now;
            held.saved = self.table.get(&episode).map(|view| Saved {
                done: held.done.clone(),
                time_left: view.ends.map(|ends| ends.saturating_sub(now)),
                view,
            });
        }
    }

    fn restore(&mut self, rollout: &RolloutId) {
        let execution = self.life();
        let Some(held) = self.rollouts.get_mut(rollout) else {
            return;
        };
        let Some(saved) = held.saved.clone() else {
            return;
        };
        let Saved {
            done,
            view,
            time_left,
        } = saved;
        held.attempt += 1;
        held.execution = execution;
        held.done = done;
        held.in_flight = None;
        held.ends = self.now + time_left.expect("it was idle");
        let restored = RestoredSession {
            episode: Episode::new(rollout.clone(), held.attempt),
            execution,
            task: view.task,
            state: view.state,
            revision: view.revision,
            replies: view.replies.to_vec(),
            time_left,
        };
        self.table.activate(restored, self.now);
        self.restored += 1;
    }

    fn end(&mut self, rollout: &RolloutId, retire: bool) {
        let Some(held) = self.rollouts.remove(rollout) else {
            return;
        };
        let episode = Episode::new(rollout.clone(), held.attempt);
        if retire {
            self.table.retire(rollout, held.attempt);
            if let Some(operation) = held.in_flight {
                self.table.may_forget(rollout).unwrap_err();
                self.table.abort(&episode, held.execution, operation);
            }
        } else {
            self.table.close(&episode, held.execution).unwrap();
        }
        self.table.forget(rollout);
        assert!(!self.table.retiring(rollout, u32::MAX));
    }

    /// The table holds what the owners believe, and nothing else.
    fn check(&self) {
        for (rollout, held) in &self.rollouts {
            let episode = Episode::new(rollout.clone(), held.attempt);
            let view = self.table.get(&episode).expect("held");
            assert_eq!(*view.state, held.done);
            assert_eq!(view.revision, held.done.len() as u64);
            assert_eq!(view.execution, held.execution);
            let ends = held.in_flight.is_none().then_some(held.ends);
            assert_eq!(view.ends, ends);
            let turn = held.done.last().map(|last| last.turn);
            let kept: Vec<_> = view.replies.iter().map(|reply| reply.operation).collect();
            let latest: Vec<_> = held
                .done
                .iter()
                .copied()
                .filter(|o| Some(o.turn) == turn)
                .collect();
            assert_eq!(kept, latest);
        }
        let in_flight = self
            .rollouts
            .values()
            .filter(|held| held.in_flight.is_some())
            .count();
        assert_eq!(
            self.table.counts(),
            (self.rollouts.len() as u64, in_flight as u64)
        );
        assert_eq!(self.table.episodes().count(), self.rollouts.len());
    }
}

fn digest(operation: Operation) -> [u8; 32] {
    call_digest("tool", operation.to_string().as_bytes())
}

fn run(seed: u64, steps: u64) -> World {
    let mut random = Random(seed | 1);
    let mut world = World::new();
    let rollouts = ["a", "b", "c"].map(|id| RolloutId::new(id).unwrap());
    for _ in 0..steps {
        let rollout = &rollouts[random.below(3) as usize];
        match random.below(20) {
            0..3 => {
                world.seed(rollout);
                world.touch(rollout);
            }
            3..9 => {
                world.call(rollout, &mut random);
                world.touch(rollout);
            }
            9..15 => {
                world.end_call(rollout, &mut random);
                world.touch(rollout);
            }
            15 => world.wait(&mut random),
            16 => world.save(rollout),
            17..19 => world.restore(rollout),
            _ if random.below(6) == 0 => world.end(rollout, random.below(2) == 0),
            _ => {}
        }
        world.check();
    }
    world
}

#[test]
fn effects_are_applied_once_per_operation() {
    let given = std::env::var("BELAY_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let base: u64 = given.unwrap_or(now.as_nanos() as u64);
    let (mut applied, mut kept, mut restored, mut expired) = (0, 0, 0, 0);
    for n in 0..if given.is_some() { 1 } else { 300 } {
        let seed = base.wrapping_add(n);
        let outcome = std::panic::catch_unwind(|| run(seed, 400));
        let world = outcome.unwrap_or_else(|_| panic!("failed; run it again with BELAY_SEED={seed}"));
        applied += world.applied;
        kept += world.kept;
        restored += world.restored;
        expired += world.expired;
    }
    println!("seed {base}: {applied} applied, {kept} kept, {restored} restored, {expired} expired");
    if given.is_none() {
        assert!(
            applied > 1_000 && kept > 100 && restored > 100 && expired > 100,
            "the sequences do too little"
        );
    }
}
