//! The mesh as a plain value: the real machines, tables and runs of four servers and a coordinator, with lost and repeated messages,
//! crashes, lapses and failing writes between any two of their steps, and the rules of protocol 6 after each.
//!
//! `BELAY_SEED=<seed>` replays one history, `BELAY_SEQUENCES=<n>` runs more of them.

#![allow(clippy::unwrap_used)]

mod checks;
mod controller;
mod coordinator;
mod data;
mod dice;
mod servers;
mod world;

use belay_core::{
    ids::{Kind, RolloutId},
    invariants::{Invariant, Violation},
    participant::Phase,
};

use crate::world::{Checked, Tally, World, broken};

/// A deliberate defect: the sequences must find each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// A restored policy model has forgotten its last reply.
    KeptReplyDropped,
    /// What closure found lacking is published all the same.
    NotWholePublished,
    /// A restore hands out the checkpointed attempt + 1.
    AttemptHandedOutAgain,
}

const STEPS: usize = 2_000;
const QUIET_STEPS: usize = 40_000;

fn history(seed: u64, mutation: Option<Mutation>) -> Result<Tally, Violation> {
    let mut world = World::new(seed, 5, mutation);
    for _ in 0..STEPS {
        step(&mut world)?;
        world.check()?;
    }
    world.faults = false;
    for _ in 0..QUIET_STEPS {
        if world.rollouts.values().all(|asked| asked.result.is_some()) {
            return Ok(world.tally);
        }
        step(&mut world)?;
        world.check()?;
    }
    let left: Vec<_> = world
        .rollouts
        .iter()
        .filter(|(_, asked)| asked.result.is_none())
        .collect();
    let phases: Vec<Phase> = Kind::ALL
        .map(|kind| world.servers[&kind].machine.phase())
        .to_vec();
    broken(
        Invariant::WaitsNamed,
        format!(
            "{left:?} never end; phases {phases:?}, tasks {:?}",
            world.tasks.len()
        ),
    )
}

fn any_rollout(world: &mut World) -> RolloutId {
    let all: Vec<RolloutId> = world.rollouts.keys().cloned().collect();
    world.dice.pick(all).expect("there are some")
}

fn step(world: &mut World) -> Checked {
    match world.dice.below(100) {
        0..14 => {
            let tasks: Vec<_> = world.tasks.keys().copied().collect();
            if let Some(task) = world.dice.pick(tasks) {
                world.task_step(task)?;
            }
        }
        14..28 => {
            let loops: Vec<_> = world.loops.keys().copied().collect();
            if let Some(run) = world.dice.pick(loops) {
                world.loop_step(run)?;
            }
        }
        28..31 => world.engine_step(),
        31..38 => {
            let rollout = any_rollout(world);
            world.ask_rollout(&rollout)?;
        }
        38..80 => world.coordinator_step()?,
        80..86 => {
            let kind = world.dice.pick(Kind::ALL).expect("four");
            world.write(kind);
        }
        86..91 => {
            if let Some(id) = world.machine(Kind::PolicyModel).open_id() {
                world.receipt(id);
            }
        }
        91 => world.pass(2),
        92..95 => {
            let rollout = any_rollout(world);
            world.acknowledge(&rollout);
        }
        95..97 => begin(world),
        97 if world.faults => fault(world),
        98 if world.faults => {
            let rollout = any_rollout(world);
            world.forget(&rollout);
        }
        _ => {}
    }
    Ok(())
}

/// The coordinator is asked for a checkpoint or a restore.
fn begin(world: &mut World) {
    let idle = world.coordinator.run.is_none() && world.coordinator.in_doubt.is_none();
    if !idle || !world.coordinator.chores.is_empty() {
        return;
    }
    let newest = world.disk.published.last_key_value().map(|(id, _)| *id);
    match (world.waits(), newest) {
        (true, Some(newest)) => world.begin_restore(newest),
        _ if world.faults && world.dice.one_in(5) => {
            let all: Vec<_> = world.disk.published.keys().copied().collect();
            if let Some(source) = world.dice.pick(all) {
                world.begin_restore(source);
            }
        }
        _ if world.faults => world.begin_checkpoint(),
        _ => {}
    }
}

fn fault(world: &mut World) {
    match world.dice.below(24) {
        0..2 => {
            let kind = world.dice.pick(Kind::ALL).expect("four");
            world.crash(kind);
        }
        2 => {
            Kind::ALL.into_iter().for_each(|kind| world.crash(kind));
            world.coordinator_crash();
        }
        3..5 => world.coordinator_crash(),
        5 => world.pass(90),
        _ => {}
    }
}

fn first_seed() -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("BELAY_SEED") {
        Some(seed) => (seed, 1),
        None => (1, number("BELAY_SEQUENCES").unwrap_or(100)),
    }
}

#[test]
fn whatever_happens_the_rules_hold() {
    let (first, sequences) = first_seed();
    let mut all = Tally::default();
    for seed in first..first + sequences {
        match history(seed, None) {
            Ok(tally) => all.add(&tally),
            Err(violation) => panic!("BELAY_SEED={seed}: {violation}"),
        }
    }
    eprintln!("{sequences} histories from seed {first}: {all:?}");
    if sequences >= 100 {
        all.has_seen_enough(sequences);
    }
}

#[test]
fn each_deliberate_defect_is_found() {
    for mutation in [
        Mutation::KeptReplyDropped,
        Mutation::NotWholePublished,
        Mutation::AttemptHandedOutAgain,
    ] {
        let found = (1..400).find_map(|seed| history(seed, Some(mutation)).err());
        let violation = found.unwrap_or_else(|| panic!("{mutation:?} is not found"));
        eprintln!("{mutation:?}: {violation}");
    }
}
