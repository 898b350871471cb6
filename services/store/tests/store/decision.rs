//! One name, taken once: publishing, burying, finding.

use std::{sync::Barrier, thread};

use belay_core::refusal::{Reason, Refusal};
use belay_store::{CheckpointFile, Decided, Published};

use crate::fixture::{Fixture, assert_invalid, checkpoint_file, few, header, id, write};

fn file(fixture: &Fixture, sequence: u64) -> CheckpointFile {
    let header = header(sequence);
    let shard = write(&fixture.store, &header, &few()).expect("a share");
    checkpoint_file(&header, shard, &few())
}

fn buried(why: &str) -> Decided {
    Decided::Tombstone {
        epoch: 1,
        why: why.into(),
    }
}

#[test]
fn the_first_decision_stands_and_is_told_to_the_second() {
    let fixture = Fixture::new();
    let (store, first, second) = (&fixture.store, file(&fixture, 1), file(&fixture, 2));
    assert_eq!(store.decided(id(1)).expect("readable"), None);

    assert_eq!(store.publish(&first).expect("free"), Published::Won);
    let stands = Decided::Checkpoint(Box::new(first.clone()));
    assert_eq!(
        store.bury(id(1), 1, "late").expect("taken"),
        Published::Lost(stands.clone())
    );
    let other = CheckpointFile {
        epoch: 9,
        ..first.clone()
    };
    assert_eq!(
        store.publish(&other).expect("taken"),
        Published::Lost(stands.clone())
    );
    assert_eq!(store.decided(id(1)).expect("readable"), Some(stands));

    assert_eq!(store.bury(id(2), 1, "late").expect("free"), Published::Won);
    assert_eq!(
        store.publish(&second).expect("taken"),
        Published::Lost(buried("late"))
    );
    assert_eq!(
        store.bury(id(2), 2, "other").expect("taken"),
        Published::Lost(buried("late"))
    );
    assert_eq!(store.decided(id(2)).expect("readable"), Some(buried("late")));

    // The same again, as after a lost reply: its own decision stands.
    assert_eq!(store.publish(&first).expect("taken"), Published::Won);
    assert_eq!(store.bury(id(2), 1, "late").expect("taken"), Published::Won);
    assert_eq!(store.newest().expect("readable"), Some(first));
    assert_eq!(store.list().expect("readable"), [id(1), id(2)]);
}

#[test]
fn a_race_between_publish_and_bury_has_one_winner() {
    let fixture = Fixture::new();
    let mut won_by_publish = 0;
    for sequence in 1..=40 {
        let file = file(&fixture, sequence);
        let barrier = Barrier::new(6);
        let outcomes: Vec<(Decided, Published)> = thread::scope(|scope| {
            let racers: Vec<_> = (0..6)
                .map(|racer: u64| {
                    let (store, barrier, file) = (fixture.store.clone(), &barrier, &file);
                    scope.spawn(move || {
                        let mine = CheckpointFile {
                            epoch: racer,
                            ..file.clone()
                        };
                        let why = format!("racer {racer}");
                        barrier.wait();
                        if racer.is_multiple_of(2) {
                            let outcome = store.publish(&mine).expect("an outcome");
                            (Decided::Checkpoint(Box::new(mine)), outcome)
                        } else {
                            let outcome = store.bury(file.id, 1, &why).expect("an outcome");
                            (buried(&why), outcome)
                        }
                    })
                })
                .collect();
            racers
                .into_iter()
                .map(|racer| racer.join().expect("a racer"))
                .collect()
        });
        let winners: Vec<&Decided> = outcomes
            .iter()
            .filter(|(_, outcome)| *outcome == Published::Won)
            .map(|(wanted, _)| wanted)
            .collect();
        let [winner] = winners[..] else {
            panic!("checkpoint {sequence} has {} winners", winners.len());
        };
        for (_, outcome) in &outcomes {
            if let Published::Lost(told) = outcome {
                assert_eq!(told, winner, "checkpoint {sequence}");
            }
        }
        let stands = fixture.store.decided(id(sequence)).expect("readable");
        assert_eq!(stands.as_ref(), Some(winner));
        won_by_publish += u32::from(matches!(winner, Decided::Checkpoint(_)));
    }
    println!("publish won {won_by_publish} of 40");
    assert_eq!(fixture.leftovers(), [""; 0].map(std::path::PathBuf::from));
}

#[test]
fn two_writers_of_one_share_both_get_the_one_that_stands() {
    let fixture = Fixture::new();
    for sequence in 1..=20 {
        let barrier = Barrier::new(4);
        let shards: Vec<_> = thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        write(&fixture.store, &header(sequence), &few()).expect("a share")
                    })
                })
                .collect();
            writers
                .into_iter()
                .map(|writer| writer.join().expect("a writer"))
                .collect()
        });
        assert!(shards.windows(2).all(|pair| pair[0] == pair[1]));
        assert_eq!(crate::fixture::names(&fixture.shard_dir(sequence)).len(), 2);
    }
}

#[test]
fn nothing_is_published_whose_manifests_are_not_there() {
    let fixture = Fixture::new();
    let file = file(&fixture, 1);
    std::fs::remove_file(fixture.manifest(1)).expect("a server on another root");
    assert_invalid(fixture.store.publish(&file), &fixture.manifest(1), "missing");
    assert_eq!(fixture.store.decided(id(1)).expect("readable"), None);
}

#[test]
fn another_process_of_the_server_is_not_taken_for_this_one() {
    let fixture = Fixture::new();
    write(&fixture.store, &header(1), &few()).expect("a share");
    let mut other = header(1);
    other.incarnation = belay_core::ids::Incarnation(uuid::Uuid::from_u128(8));
    let refusal = Refusal::from(write(&fixture.store, &other, &few()).expect_err("taken"));
    assert_eq!(refusal.reason, Reason::CheckpointConflict, "{refusal}");
}
