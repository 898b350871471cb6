//! What a checkpoint costs: bytes read by scope, syncs by participant and not by rollout.

use belay_store::testing::Op;

use crate::fixture::{Fixture, header, id, record, write};

#[test]
fn a_scope_of_few_reads_little_more_than_those() {
    const PAYLOAD: usize = 2048;
    let fixture = Fixture::new();
    let records: Vec<_> = (0..2000).map(|n| record(n, vec![n as u8; PAYLOAD])).collect();
    let shard = write(&fixture.store, &header(1), &records).expect("a share");
    let read = |wanted: usize| {
        let before = fixture.fs.bytes_read();
        let found = fixture
            .failing
            .read_shard(id(1), &shard, &|episode| {
                records[..wanted].iter().any(|r| r.episode == *episode)
            })
            .expect("records");
        assert_eq!(found.len(), wanted);
        fixture.fs.bytes_read() - before
    };
    let none = read(0);
    // Digest, index and manifest once.
    assert!(none < shard.bytes + shard.bytes / 20, "{none} of {}", shard.bytes);
    let ten = read(10) - none;
    assert!((10 * PAYLOAD as u64..11 * PAYLOAD as u64).contains(&ten), "{ten}");
}

#[test]
fn the_number_of_syncs_and_files_does_not_grow_with_the_records() {
    let cost = |number: usize| {
        let fixture = Fixture::new();
        let ops = [Op::SyncFile, Op::SyncDir, Op::Create, Op::Link, Op::Open];
        let before = ops.map(|op| fixture.fs.count(op));
        let mut records = (0..number).map(|n| record(n, vec![n as u8; 3000]));
        let stop = std::sync::atomic::AtomicBool::new(false);
        let started = std::time::Instant::now();
        let shard = fixture
            .failing
            .write_shard(&header(1), &mut records, &stop)
            .expect("a share");
        println!("{number} records, {} bytes: {:?}", shard.bytes, started.elapsed());
        // One pass: what is written is the file and its manifest.
        assert!(fixture.fs.bytes_written() - shard.bytes < 2000);
        let after = ops.map(|op| fixture.fs.count(op));
        std::array::from_fn::<u64, 5, _>(|i| after[i] - before[i])
    };
    assert_eq!(cost(1), cost(16_000));
}
