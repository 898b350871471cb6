//! Every operation of every write fails once: the right reason, nothing half visible, and the next try works.

use belay_core::refusal::{Reason, Refusal};
use belay_store::{CheckpointStore, Decided, Published, StoreError, testing::Op};
use rustix::io::Errno;

use crate::fixture::{DEPLOYMENT, Fixture, checkpoint_file, few, header, id, write};

const REASONS: [(Errno, Reason); 6] = [
    (Errno::NOSPC, Reason::StorageFull),
    (Errno::DQUOT, Reason::StorageFull),
    (Errno::ROFS, Reason::StorageReadonly),
    (Errno::ACCESS, Reason::StorageDenied),
    (Errno::PERM, Reason::StorageDenied),
    (Errno::IO, Reason::StorageIo),
];

/// Runs `case` with each call of each operation that `work` makes failing once, in each way. `work` starts from what
/// `prepare` leaves. Gives the number of cases.
fn each_fault<P>(
    prepare: impl Fn(&Fixture) -> P,
    work: impl Fn(&CheckpointStore, &P) -> Result<(), StoreError>,
    case: impl Fn(&Fixture, &P, Op, Reason, Result<(), StoreError>, &str),
) -> usize {
    let calls = |op| {
        let fixture = Fixture::new();
        let prepared = prepare(&fixture);
        let before = fixture.fs.count(op);
        work(&fixture.failing, &prepared).expect("nothing fails");
        fixture.fs.count(op) - before
    };
    let mut cases = 0;
    for op in Op::ALL {
        for nth in 0..calls(op) {
            for (errno, reason) in REASONS {
                let fixture = Fixture::new();
                let prepared = prepare(&fixture);
                fixture.fs.fail_nth(op, nth, errno.raw_os_error());
                let result = work(&fixture.failing, &prepared);
                if let Err(error) = &result {
                    assert_eq!(error.reason(), reason, "{op:?} {nth} {errno:?}: {error}");
                    let refusal = Refusal::from(StoreError::io("x", "y".as_ref())(errno.into()));
                    assert_eq!(refusal.reason, reason);
                    assert!(!error.to_string().contains('\n'), "{error}");
                }
                fixture.fs.heal();
                let context = format!("{op:?} number {nth} with {errno:?}");
                case(&fixture, &prepared, op, reason, result, &context);
                assert_eq!(fixture.fs.violations(), [""; 0], "{context}");
                cases += 1;
            }
        }
    }
    cases
}

#[test]
fn write_shard() {
    let cases = each_fault(
        |_| (),
        |store, ()| write(store, &header(1), &few()).map(drop),
        |fixture, (), op, _, result, context| {
            let visible = fixture.manifest(1).exists();
            match result {
                // A temporary file that stays is harmless.
                Ok(()) => assert!(op == Op::RemoveFile && visible, "{context}"),
                // Only the sync after the link comes too late to undo it: then what is there is whole.
                Err(_) => assert!(!visible || op == Op::SyncDir, "{context}"),
            }
            if op != Op::RemoveFile {
                assert_eq!(fixture.leftovers().len(), 0, "{context}");
            }
            let shard = write(&fixture.failing, &header(1), &few()).expect(context);
            let read = fixture.store.read_shard(id(1), &shard, &|_| true).expect(context);
            assert_eq!(read.len(), few().len(), "{context}");
        },
    );
    assert!(
        cases > 100,
        "only {cases} cases: the faults did not reach the store"
    );
}

#[test]
fn publish() {
    let cases = each_fault(
        |fixture| {
            let shard = write(&fixture.store, &header(1), &few()).expect("a share");
            checkpoint_file(&header(1), shard, &few())
        },
        |store, file| store.publish(file).map(drop),
        |fixture, file, op, _, result, context| {
            let stands = fixture.store.decided(id(1)).expect(context);
            let published = Some(Decided::Checkpoint(Box::new(file.clone())));
            match result {
                Ok(()) => assert_eq!(stands, published, "{context}"),
                Err(_) if stands.is_some() => {
                    assert!(op == Op::SyncDir && stands == published, "{context}");
                }
                Err(_) => {}
            }
            if op != Op::RemoveFile {
                assert_eq!(fixture.leftovers().len(), 0, "{context}");
            }
            // Whoever comes next gets one answer, which stands for ever.
            if stands.is_none() && op == Op::Link {
                assert_eq!(
                    fixture.failing.bury(id(1), 1, "x").expect(context),
                    Published::Won
                );
                assert!(matches!(
                    fixture.failing.publish(file).expect(context),
                    Published::Lost(Decided::Tombstone { .. })
                ));
            } else {
                assert_eq!(fixture.failing.publish(file).expect(context), Published::Won);
                assert!(fixture.store.verify(id(1)).expect(context).is_some());
            }
        },
    );
    assert!(
        cases > 100,
        "only {cases} cases: the faults did not reach the store"
    );
}

#[test]
fn write_shard_again() {
    // The error of the first try came after the manifest's link.
    each_fault(
        |fixture| {
            let syncs = 6;
            fixture.fs.fail_nth(Op::SyncDir, syncs, Errno::IO.raw_os_error());
            write(&fixture.failing, &header(1), &few()).expect_err("the last sync");
            fixture.fs.heal();
            assert!(fixture.manifest(1).exists());
            std::fs::read(fixture.manifest(1)).expect("a manifest")
        },
        |store, _| write(store, &header(1), &few()).map(drop),
        |fixture, manifest, _, _, result, context| {
            assert!(result.is_err(), "{context}");
            let shard = write(&fixture.failing, &header(1), &few()).expect(context);
            assert_eq!(shard.digest, *blake3::hash(manifest).as_bytes(), "{context}");
            assert!(fixture.store.read_shard(id(1), &shard, &|_| true).is_ok());
        },
    );
}

#[test]
fn publish_and_bury_again() {
    each_fault(
        |fixture| fixture.checkpoint(1, &few()),
        |store, file| {
            assert_eq!(store.publish(file)?, Published::Won);
            assert!(matches!(store.bury(id(1), 1, "late")?, Published::Lost(_)));
            Ok(())
        },
        |fixture, file, op, _, result, context| {
            assert!(result.is_err() || op == Op::RemoveFile, "{context}");
            assert_eq!(fixture.store.verify(id(1)).expect(context).as_ref(), Some(file));
        },
    );
}

#[test]
fn bury_and_sweep() {
    each_fault(
        |fixture| drop(write(&fixture.store, &header(1), &few()).expect("a share")),
        |store, ()| {
            store.bury(id(1), 1, "late")?;
            store.sweep(id(1))
        },
        |fixture, (), op, _, result, context| {
            assert!(result.is_err() || op == Op::RemoveFile, "{context}");
            assert_eq!(
                fixture.failing.bury(id(1), 1, "late").expect(context),
                Published::Won
            );
            fixture.failing.sweep(id(1)).expect(context);
            let dir = fixture.store.checkpoint_dir(id(1));
            assert_eq!(crate::fixture::names(&dir), ["checkpoint.json"], "{context}");
        },
    );
}

#[test]
fn controller_state() {
    each_fault(
        |_| (),
        |store, ()| store.write_controller_state(id(1), b"state").map(drop),
        |fixture, (), op, _, result, context| {
            assert!(result.is_err() || op == Op::RemoveFile, "{context}");
            let state = fixture
                .failing
                .write_controller_state(id(1), b"state")
                .expect(context);
            let read = fixture.store.read_controller_state(id(1), &state);
            assert_eq!(read.expect(context), &b"state"[..]);
        },
    );
}

#[test]
fn open() {
    for op in [Op::CreateDir, Op::SyncDir] {
        for nth in 0..4 {
            for (errno, reason) in REASONS {
                let fixture = Fixture::new();
                let root = fixture.root.path().join("made/here");
                let fs = std::sync::Arc::new(fixture.fs.clone());
                fixture.fs.fail_nth(op, nth, errno.raw_os_error());
                let error = CheckpointStore::with_fs(fs.clone(), &root, DEPLOYMENT).expect_err("a fault");
                assert_eq!(error.reason(), reason, "{op:?} {nth}: {error}");
                fixture.fs.heal();
                CheckpointStore::with_fs(fs, &root, DEPLOYMENT).expect("healed");
            }
        }
    }
}

#[test]
fn every_new_directory_is_synced_into_its_parent() {
    // Whoever made a directory may have died before the sync: the next one syncs it all the same.
    let fixture = Fixture::new();
    fixture.fs.fail_nth(Op::SyncDir, 0, Errno::IO.raw_os_error());
    write(&fixture.failing, &header(1), &few()).expect_err("a fault");
    fixture.fs.heal();
    let before = fixture.fs.count(Op::SyncDir);
    write(&fixture.failing, &header(1), &few()).expect("healed");
    // checkpoints, id, kind, name, replica; then records and manifest.
    assert_eq!(fixture.fs.count(Op::SyncDir) - before, 7);
}

#[test]
fn a_root_that_is_a_file_or_in_a_file_is_refused_by_name() {
    let fixture = Fixture::new();
    let file = fixture.root.path().join("file");
    std::fs::write(&file, "x").expect("a file");
    for root in [file.clone(), file.join("below")] {
        let refusal = Refusal::from(CheckpointStore::open(&root, DEPLOYMENT).expect_err("a file"));
        assert_eq!(refusal.reason, Reason::StorageIo);
        assert!(refusal.message.contains(&file.display().to_string()), "{refusal}");
    }
    for name in ["", "..", "a/b", "/etc", ".hidden"] {
        let error = CheckpointStore::open(fixture.root.path(), name).expect_err("no name");
        assert_eq!(error.reason(), Reason::InvalidId, "{name:?}");
    }
}
