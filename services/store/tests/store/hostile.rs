//! Bytes of any kind, with digests that are right: an error or records, never a panic and never a huge allocation.

use std::fs;

use belay_core::refusal::Reason;
use belay_proto::record as pb;
use belay_store::Decided;
use proptest::{collection::vec, prelude::*, sample::Index};
use prost::Message;

use crate::{
    fixture::{Fixture, few, header, id, random},
    foreign::{frames, plant, plant_bytes},
};

fn good(fixture: &Fixture) -> Vec<u8> {
    crate::fixture::write(&fixture.store, &header(1), &few()).expect("a share");
    fs::read(fixture.records(1)).expect("records")
}

/// Reads everything; the error, if there is one, is INVALID_CHECKPOINT.
fn read(fixture: &Fixture, shard: &belay_store::ShardRef) -> Result<(), TestCaseError> {
    if let Err(error) = fixture.store.read_shard(id(2), shard, &|_| true) {
        prop_assert_eq!(error.reason(), Reason::InvalidCheckpoint, "{}", error);
    }
    fs::remove_dir_all(fixture.store.checkpoint_dir(id(2))).expect("a clean slate");
    Ok(())
}

#[test]
fn any_bytes_as_a_records_file() {
    let fixture = Fixture::new();
    let good = good(&fixture);
    let edit = (any::<Index>(), any::<u8>());
    let strategy = prop_oneof![
        vec(any::<u8>(), 0..200),
        (vec(edit, 1..6), any::<Index>()).prop_map(move |(edits, cut)| {
            let mut bytes = good.clone();
            for (at, value) in edits {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes.truncate(bytes.len() - cut.index(bytes.len()) % 3);
            bytes
        }),
    ];
    random(400, &strategy, |bytes| {
        let shard = plant_bytes(&fixture, 2, &bytes, 3);
        read(&fixture, &shard)
    });
}

#[test]
fn any_messages_in_good_frames() {
    let fixture = Fixture::new();
    let good = frames(&good(&fixture));
    let number = prop_oneof![any::<u64>(), 0..400_u64, Just(u64::MAX)];
    let entry = (number.clone(), number, any::<bool>());
    let strategy = (
        vec(entry, 0..5),
        vec(any::<u8>(), 0..60),
        any::<Index>(),
        any::<bool>(),
    );
    random(400, &strategy, |(entries, noise, which, noisy)| {
        let mut planted = good.clone();
        let mut header = pb::FileHeader::decode(&planted[0][..]).expect("a header");
        header.checkpoint_id = id(2).to_string();
        planted[0] = header.encode_to_vec();
        if noisy {
            planted[which.index(good.len())] = noise;
        } else {
            let known = pb::FileIndex::decode(&planted[4][..]).expect("an index");
            planted[4] = pb::FileIndex {
                entries: entries
                    .into_iter()
                    .map(|(offset, length, named)| pb::IndexEntry {
                        episode: known.entries[0].episode.clone().filter(|_| named),
                        offset,
                        length,
                    })
                    .collect(),
            }
            .encode_to_vec();
            planted.truncate(5);
        }
        let shard = plant(&fixture, 2, &planted);
        read(&fixture, &shard)
    });
}

#[test]
fn any_bytes_as_checkpoint_json() {
    let path = std::path::Path::new("checkpoint.json");
    random(2000, &"\\PC{0,200}", |text| {
        prop_assert!(Decided::read(path, text.as_bytes(), "test", id(1)).is_err());
        Ok(())
    });
}
