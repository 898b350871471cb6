//! Random sequences of calls, failures, cuts, captures, restores and retires. `BELAY_SEED=…` replays one.

use std::collections::BTreeMap;

use super::*;

/// SplitMix64: enough to choose, and the same on every machine.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// The agent's side of an episode: which call it makes next. Deterministic, so a restored one makes the same calls.
#[derive(Clone)]
struct Agent {
    life: u128,
    attempt: Attempt,
    turn: u32,
    parent: Option<Digest>,
}

impl Agent {
    fn arrival(&self, rollout: &RolloutId) -> Arrival {
        let mut request = rollout.as_str().as_bytes().to_vec();
        request.extend(self.turn.to_le_bytes());
        Arrival {
            key: CallKey {
                episode: Episode::new(rollout.clone(), self.attempt),
                execution: life(self.life),
                operation: Operation::model_call(self.turn),
            },
            parent: self.parent,
            digest: blake3::hash(&request).into(),
            cuttable: true,
        }
    }
}

struct Saved {
    agents: BTreeMap<RolloutId, Agent>,
    captured: Vec<CapturedEpisode>,
}

struct World {
    calls: Calls,
    agents: BTreeMap<RolloutId, Agent>,
    saved: Option<Saved>,
    /// Samplings that have not ended, each with the prefix it was given.
    engine: Vec<CallKey>,
    lives: u128,
    sequence: u64,
    sampled: usize,
    kept: usize,
    continued: usize,
}

impl World {
    fn call(&mut self, rollout: &RolloutId, agent: &Agent) {
        let arrival = agent.arrival(rollout);
        let generating = self.calls.is_generating(&arrival.key);
        match self
            .calls
            .begin(&arrival)
            .expect("an honest agent is never refused")
        {
            Begin::Sample { prefix } => {
                assert!(!generating, "sampled twice at once");
                let rows = self
                    .calls
                    .ledger(&arrival.key.episode, arrival.key.execution)
                    .expect("held");
                assert!(
                    rows.rows()
                        .iter()
                        .all(|row| row.entry.operation != arrival.key.operation),
                    "sampled although it has a row"
                );
                self.sampled += 1;
                self.continued += usize::from(prefix.is_some());
                self.engine.push(arrival.key);
            }
            Begin::Join => assert!(generating),
            Begin::Kept(answer) => {
                assert_eq!(answer.row.entry.request_digest, arrival.digest);
                self.kept += 1;
            }
        }
    }

    /// A call that no honest agent makes: refused, and nothing changes.
    fn dishonest(&mut self, rollout: &RolloutId, agent: &Agent, chance: &mut Chance) {
        let mut arrival = agent.arrival(rollout);
        match chance.below(5) {
            0 => arrival.digest[0] ^= 1,
            1 => arrival.key.execution = life(u128::MAX),
            2 => arrival.key.operation.turn += 1,
            3 if agent.turn > 1 => arrival.key.operation.turn -= 2,
            _ => arrival.parent = Some([1; 32]),
        }
        let honest = agent.arrival(rollout);
        let fresh = self.calls.clone().begin(&honest) == Ok(Begin::Sample { prefix: None });
        if fresh && (arrival.digest != honest.digest || honest.key.operation == Operation::FIRST) {
            return; // Nothing is held yet that this call could differ from.
        }
        let before = (self.calls.counts(), format!("{:?}", self.calls));
        self.calls
            .begin(&arrival)
            .expect_err("a dishonest call is refused");
        assert_eq!(before, (self.calls.counts(), format!("{:?}", self.calls)));
    }

    fn engine_answers(&mut self, chance: &mut Chance) {
        if self.engine.is_empty() {
            return;
        }
        let key = self.engine.swap_remove(chance.below(self.engine.len()));
        let generating = self.calls.is_generating(&key);
        if chance.below(6) == 0 {
            self.calls.fail(&key);
            return;
        }
        let answer = self.calls.finish(&key, finished("reply"));
        assert_eq!(answer.is_some(), generating, "a dead life adds no row");
    }

    /// The agent hears the answer and goes on; or not: the reply is lost, and it asks again.
    fn deliver(&mut self, rollout: &RolloutId, chance: &mut Chance) {
        let agent = self.agents.get_mut(rollout).expect("one of them");
        let arrival = agent.arrival(rollout);
        let Ok(ledger) = self.calls.ledger(&arrival.key.episode, arrival.key.execution) else {
            return;
        };
        if ledger
            .tip()
            .is_some_and(|tip| tip.operation == arrival.key.operation)
            && chance.below(3) > 0
        {
            agent.turn += 1;
            agent.parent = ledger.tip().map(|tip| tip.chain);
        }
    }

    fn checkpoint(&mut self, chance: &mut Chance) {
        self.sequence += 1;
        let listed = self.calls.begin_cut(id(self.sequence));
        let mut answers = Vec::new();
        for key in &listed {
            match chance.below(5) {
                0 => {}
                1 => answers.extend([staged(key, 3), staged(key, 3)]),
                2 => answers.push(staged(
                    &CallKey {
                        execution: life(u128::MAX),
                        ..key.clone()
                    },
                    3,
                )),
                _ => answers.push(staged(key, 3)),
            }
        }
        let good: Vec<_> = answers
            .iter()
            .filter(|a| answers.iter().filter(|b| b.key == a.key).count() == 1)
            .cloned()
            .collect();
        self.calls.receipt(id(self.sequence), answers);
        self.engine_answers(chance);
        let scope: Vec<_> = self
            .agents
            .iter()
            .map(|(rollout, agent)| agent.arrival(rollout).key.episode)
            .collect();
        let captured = self.calls.capture(id(self.sequence), &scope);
        for call in captured.iter() {
            let key = call
                .in_flight
                .as_ref()
                .filter(|c| c.prefix.is_some())
                .map(|c| CallKey {
                    episode: call.episode.clone(),
                    execution: call.execution,
                    operation: c.operation,
                });
            if let Some(key) = key {
                let waits = !self.calls.is_generating(&key);
                assert!(
                    waits || good.iter().any(|answer| answer.key == key),
                    "a prefix needs one good answer"
                );
            }
        }
        self.saved = Some(Saved {
            agents: self.agents.clone(),
            captured,
        });
    }

    /// A crash: all that lived is gone (or lives on beside the restore), and the saved episodes go on as the next attempts.
    fn restore(&mut self, crash: bool) {
        let Some(saved) = &self.saved else { return };
        if crash {
            self.calls = Calls::default();
            self.engine.clear();
        }
        let mut agents = saved.agents.clone();
        for captured in &saved.captured {
            let rollout = &captured.episode.rollout;
            let next = 1 + self.agents[rollout].attempt.max(captured.episode.attempt);
            self.lives += 1;
            self.calls.install(
                Episode::new(rollout.clone(), next),
                life(self.lives),
                restored(captured),
            );
            let agent = agents.get_mut(rollout).expect("saved");
            agent.attempt = next;
            agent.life = self.lives;
        }
        for (rollout, agent) in &mut agents {
            if saved
                .captured
                .iter()
                .all(|captured| captured.episode.rollout != *rollout)
            {
                // It had made no call: it starts over.
                let next = 1 + self.agents[rollout].attempt;
                self.calls.retire(rollout, next - 1);
                self.lives += 1;
                *agent = Agent {
                    life: self.lives,
                    attempt: next,
                    turn: 0,
                    parent: None,
                };
            }
        }
        self.agents = agents;
    }

    fn check(&self) {
        let mut held = 0;
        for (rollout, agent) in &self.agents {
            let key = agent.arrival(rollout).key;
            let Ok(ledger) = self.calls.ledger(&key.episode, key.execution) else {
                continue;
            };
            held += 1;
            let rows: Vec<Row> = ledger.rows().iter().map(|row| (**row).clone()).collect();
            Ledger::from_rows(rows).expect("rows form a chain, one for each operation");
            let tip = ledger.tip();
            assert!(
                tip.map(|tip| tip.chain) == agent.parent || tip.and_then(|tip| tip.parent) == agent.parent,
                "the agent is at the ledger's end, or one reply before it"
            );
        }
        assert_eq!(self.calls.counts().ledgers, held, "no dead life is left");
    }
}

#[test]
fn no_operation_is_sampled_twice_while_its_reply_is_kept() {
    let (first, runs) = match std::env::var("BELAY_SEED") {
        Ok(seed) => (seed.parse().expect("BELAY_SEED is a number"), 1),
        Err(_) => (1, 400),
    };
    let (mut sampled, mut kept, mut continued) = (0, 0, 0);
    for seed in first..first + runs {
        let outcome = std::panic::catch_unwind(|| run(seed));
        let world = outcome.unwrap_or_else(|_| panic!("replay with BELAY_SEED={seed}"));
        sampled += world.0;
        kept += world.1;
        continued += world.2;
    }
    if runs > 1 {
        assert!(
            sampled > 1000 && kept > 1000 && continued > 100,
            "too tame: {sampled} {kept} {continued}"
        );
    }
}

fn run(seed: u64) -> (usize, usize, usize) {
    let mut chance = Chance(seed);
    let agents = ["a", "b", "c"].iter().enumerate().map(|(n, name)| {
        let agent = Agent {
            life: n as u128 + 1,
            attempt: 0,
            turn: 0,
            parent: None,
        };
        (RolloutId::new(name).expect("legal"), agent)
    });
    let mut world = World {
        calls: Calls::default(),
        agents: agents.collect(),
        saved: None,
        engine: Vec::new(),
        lives: 10,
        sequence: 0,
        sampled: 0,
        kept: 0,
        continued: 0,
    };
    let rollouts: Vec<RolloutId> = world.agents.keys().cloned().collect();
    for _ in 0..150 {
        let rollout = &rollouts[chance.below(rollouts.len())];
        let agent = world.agents[rollout].clone();
        match chance.below(20) {
            0..=6 => world.call(rollout, &agent),
            7..=10 => world.engine_answers(&mut chance),
            11..=13 => world.deliver(rollout, &mut chance),
            14..=15 => world.dishonest(rollout, &agent, &mut chance),
            16..=17 => world.checkpoint(&mut chance),
            18 => world.restore(true),
            _ => world.restore(false),
        }
        world.check();
    }
    (world.sampled, world.kept, world.continued)
}
