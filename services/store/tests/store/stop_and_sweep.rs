//! A write that is told to stop, and what is deleted afterwards.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use belay_core::refusal::Reason;
use belay_store::StoreError;

use crate::fixture::{Fixture, few, header, id, names, write};

#[test]
fn a_stopped_write_leaves_no_manifest_and_no_file() {
    for after in 0..=few().len() + 1 {
        let fixture = Fixture::new();
        let stop = AtomicBool::new(after == 0);
        let mut given = 0;
        // Stops before the first record, between records, and when there are no more.
        let mut records = few().into_iter();
        let mut stopping = std::iter::from_fn(|| {
            given += 1;
            stop.fetch_or(given >= after, Ordering::AcqRel);
            records.next()
        });
        let result = fixture.store.write_shard(&header(1), &mut stopping, &stop);
        assert!(
            matches!(result, Err(StoreError::Stopped { .. })),
            "{after}: {result:?}"
        );
        assert_eq!(names(&fixture.shard_dir(1)), [""; 0], "{after}");
        let shard = write(&fixture.store, &header(1), &few()).expect("no longer stopped");
        assert_eq!(shard.records, 3);
    }
}

#[test]
fn a_sweep_keeps_the_tombstone_and_what_is_not_a_checkpoints() {
    let fixture = Fixture::new();
    write(&fixture.store, &header(1), &few()).expect("a share");
    let mut agent = header(1);
    agent.instance = "agent/default/3".parse().expect("an instance");
    write(&fixture.store, &agent, &few()).expect("a share");
    fixture
        .store
        .write_controller_state(id(1), b"state")
        .expect("a state");
    let dir = fixture.store.checkpoint_dir(id(1));
    fs::write(dir.join(".records.77-1.tmp"), "of a crash").expect("a leftover");
    fs::write(fixture.shard_dir(1).join("notes.txt"), "of a person").expect("a stranger");

    let undecided = fixture.store.sweep(id(1)).expect_err("not decided");
    assert_eq!(undecided.reason(), Reason::InvalidRequest, "{undecided}");
    assert!(fixture.manifest(1).exists());

    fixture.store.bury(id(1), 1, "late").expect("a tombstone");
    for _ in 0..2 {
        fixture.store.sweep(id(1)).expect("a sweep");
        let mut left = names(&dir);
        left.sort();
        assert_eq!(left, ["checkpoint.json", "resources"]);
        assert_eq!(names(&fixture.shard_dir(1)), ["notes.txt"]);
    }
    assert!(fixture.store.decided(id(1)).expect("readable").is_some());
    assert_eq!(fixture.store.newest().expect("readable"), None);
}

#[test]
fn a_published_checkpoint_is_not_swept() {
    let fixture = Fixture::new();
    let file = fixture.checkpoint(1, &few());
    let error = fixture.store.sweep(id(1)).expect_err("published");
    assert_eq!(error.reason(), Reason::CheckpointConflict, "{error}");
    assert_eq!(fixture.store.verify(id(1)).expect("whole"), Some(file));
}
