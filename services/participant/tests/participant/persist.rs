//! The write of a capture: it fails, it is slow, it is told to stop.

use std::{
    fs,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use belay_core::refusal::Reason;
use belay_proto::checkpoint as pb;
use belay_store::{
    fs::RealFs,
    testing::{FailingFs, Op},
};
use tempfile::TempDir;

use crate::rig::{Rig, SOON, episode, id, refused, until};

const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EACCES: i32 = 13;
const EIO: i32 = 5;

async fn failing() -> (Rig, FailingFs) {
    let fs = FailingFs::new(RealFs);
    let dir = Arc::new(TempDir::new().unwrap());
    let rig = Rig::with(dir, 0, |options| options.file_system = Arc::new(fs.clone()))
        .opened()
        .await;
    rig.owner.set(&episode("a"), 1);
    (rig, fs)
}

async fn captured(rig: &Rig, sequence: u64) {
    rig.prepare(id(sequence)).await.unwrap();
    rig.commit(id(sequence), &["a"]).await.unwrap();
    rig.keep(id(sequence)).await.unwrap();
}

#[tokio::test]
async fn a_root_that_is_a_file_is_a_typed_error_and_the_mesh_goes_on() {
    let dir = Arc::new(TempDir::new().unwrap());
    let file = dir.path().join("root");
    fs::write(&file, "not a directory").unwrap();
    let rig = Rig::with(dir.clone(), 0, |options| options.root.clone_from(&file))
        .opened()
        .await;
    rig.owner.set(&episode("a"), 1);
    captured(&rig, 1).await;
    let refusal = refused(rig.wait_durable(id(1)).await, Reason::StorageIo);
    assert!(refusal.message.contains("root"), "{refusal}");
    refused(rig.wait_durable(id(1)).await, Reason::StorageIo);
    assert!(rig.gate.is_open());
    rig.gate.enter(&episode("a"), "tool").await.unwrap();
    refused(
        rig.settle(id(1), pb::Outcome::Published).await,
        Reason::InvalidPhase,
    );
    rig.settle(id(1), pb::Outcome::Discarded).await.unwrap();
    until("discarded", || {
        rig.owner.discarded.lock().unwrap().contains(&id(1))
    })
    .await;

    // With a root that can be written, the next checkpoint is good, and nothing of the first one appears.
    fs::remove_file(&file).unwrap();
    rig.checkpoint(id(2), &["a"]).await;
    assert!(rig.has_manifest(id(2)) && !rig.has_manifest(id(1)));
}

#[tokio::test]
async fn every_kind_of_bad_disk_has_its_reason_and_the_next_checkpoint_works() {
    let mut sequence = 0;
    for (errno, reason) in [
        (ENOSPC, Reason::StorageFull),
        (EROFS, Reason::StorageReadonly),
        (EACCES, Reason::StorageDenied),
        (EIO, Reason::StorageIo),
    ] {
        for op in [Op::Create, Op::Write, Op::SyncFile, Op::Link, Op::SyncDir] {
            let (rig, fs) = failing().await;
            sequence += 1;
            fs.fail_all(op, errno);
            captured(&rig, sequence).await;
            let refusal = refused(rig.wait_durable(id(sequence)).await, reason);
            assert_eq!(refusal.get("instance"), Some("resources/counter/0"));
            rig.settle(id(sequence), pb::Outcome::Discarded).await.unwrap();
            fs.heal();
            sequence += 1;
            captured(&rig, sequence).await;
            rig.wait_durable(id(sequence)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_write_that_failed_once_is_tried_again_with_the_same_capture() {
    for op in [Op::Create, Op::Write, Op::SyncFile, Op::Link, Op::SyncDir] {
        let (rig, fs) = failing().await;
        fs.fail_nth(op, 0, EIO);
        captured(&rig, 1).await;
        rig.owner.set(&episode("a"), 99);
        let durable = rig.wait_durable(id(1)).await.unwrap();
        assert_eq!(durable.records, 1);
        assert_eq!(rig.owner.captures.load(Ordering::SeqCst), 1);
        rig.settle(id(1), pb::Outcome::Published).await.unwrap();

        let shard = pb::Shard {
            instance: Some(belay_mesh::wire::ToWire::to_wire(rig.gate.instance())),
            manifest: durable.manifest,
            digest: durable.digest,
        };
        let fresh = rig.beside(0);
        fresh
            .restore(fresh.restore_request(id(2), id(1), &["a"], &[shard]))
            .await
            .unwrap();
        fresh.keep(id(2)).await.unwrap();
        let restored = belay_core::ids::Episode::new(crate::rig::rollout("a"), 1);
        assert_eq!(
            fresh.owner.get(&restored),
            Some(1),
            "as captured, not as it is now"
        );
    }
}

#[tokio::test]
async fn discard_answers_only_once_the_writer_has_stopped_and_leaves_no_manifest() {
    let rig = Rig::holding(&["a", "b"]).await;
    let latch = rig.owner.slow_down();
    rig.prepare(id(1)).await.unwrap();
    rig.commit(id(1), &["a", "b"]).await.unwrap();
    rig.keep(id(1)).await.unwrap();
    until("a write", || rig.owner.encoding.load(Ordering::SeqCst) == 1).await;
    let settling = tokio::spawn({
        let rig = rig.clone();
        async move { rig.settle(id(1), pb::Outcome::Discarded).await }
    });
    until("discarded", || {
        rig.owner.discarded.lock().unwrap().contains(&id(1))
    })
    .await;
    assert!(!settling.is_finished(), "the writer has not stopped");
    assert!(rig.gate.is_open(), "and nobody waits for it");
    latch.open();
    tokio::time::timeout(SOON, settling)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(!rig.has_manifest(id(1)));
    assert_eq!(
        rig.owner.encoding.load(Ordering::SeqCst),
        1,
        "no further record was begun"
    );
    *rig.owner.slow.lock().unwrap() = None;
    rig.checkpoint(id(2), &["a", "b"]).await;
    assert!(!rig.has_manifest(id(1)), "nothing appears later");
}

#[tokio::test]
async fn keep_does_not_wait_for_the_write_and_await_says_when_its_time_is_over() {
    let rig = Rig::holding(&["a"]).await;
    let latch = rig.owner.slow_down();
    captured(&rig, 1).await;
    assert!(rig.gate.is_open());
    assert!(!rig.status().await.unsettled.unwrap().durable);
    let late = rig.wait_durable_for(id(1), Duration::from_millis(5)).await;
    let refusal = refused(late, Reason::DeadlinePassed);
    assert_eq!(refusal.get("checkpoint_id"), Some("00000001-00000001"));
    refused(rig.prepare(id(2)).await, Reason::CheckpointConflict);
    latch.open();
    tokio::time::timeout(SOON, rig.participant.drained())
        .await
        .unwrap();
    assert!(
        rig.has_manifest(id(1)),
        "a process that ends in order has written"
    );
    rig.wait_durable(id(1)).await.unwrap();
}

#[tokio::test]
async fn a_record_that_is_too_large_is_a_restart_and_the_others_are_written() {
    let rig = Rig::holding(&["a"]).await;
    rig.owner.set(&episode("big"), u64::MAX);
    rig.prepare(id(1)).await.unwrap();
    let report = rig.commit(id(1), &["a", "big"]).await.unwrap();
    assert_eq!((report.parts.len(), report.restarts.len()), (1, 1));
    assert!(report.restarts[0].reason.contains("RECORD_TOO_LARGE"));
    assert_eq!(rig.wait_durable(id(1)).await.unwrap().records, 1);
}

#[tokio::test]
async fn a_panic_while_preparing_abandons_the_id_and_reopens() {
    let rig = Rig::holding(&["a"]).await;
    rig.prepare(id(1)).await.unwrap();
    rig.owner.panic_in_capture.store(true, Ordering::SeqCst);
    let refusal = refused(rig.commit(id(1), &["a"]).await, Reason::Internal);
    assert!(refusal.message.contains("told to panic"), "{refusal}");
    assert!(rig.gate.is_open());
    rig.owner.panic_in_capture.store(false, Ordering::SeqCst);
    refused(rig.commit(id(1), &["a"]).await, Reason::StaleCheckpoint);
    rig.checkpoint(id(2), &["a"]).await;

    rig.owner.panic_in_closing.store(true, Ordering::SeqCst);
    let busy = rig.gate.enter(&episode("a"), "tool").await.unwrap();
    refused(rig.prepare(id(3)).await, Reason::StaleCheckpoint);
    assert!(rig.gate.is_open());
    drop(busy);
}
