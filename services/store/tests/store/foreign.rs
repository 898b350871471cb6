//! Files that are whole and not ours: another deployment's, another checkpoint's, a newer program's.

use std::fs;

use belay_core::refusal::Refusal;
use belay_proto::record as pb;
use belay_store::{CheckpointFile, CheckpointStore, Format, ShardRef, frame, manifest::Manifest, sealed};
use prost::Message;
use serde_json::{Value, json};

use crate::fixture::{Fixture, assert_invalid, few, header, id, instance};

#[test]
fn another_deployments_or_another_checkpoints_file_is_refused() {
    let fixture = Fixture::new();
    let file = fixture.checkpoint(1, &few());
    let path = fixture.decision(2);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");

    fs::copy(fixture.decision(1), &path).expect("another checkpoint's");
    let refusal = assert_invalid(fixture.store.newest(), &path, "another checkpoint's");
    assert!(refusal.message.contains("00000001-00000001"), "{refusal}");

    let other = CheckpointFile {
        deployment: "other".into(),
        id: id(2),
        ..file.clone()
    };
    fs::write(&path, other.to_bytes()).expect("another deployment's");
    let refusal = assert_invalid(fixture.store.newest(), &path, "another deployment's");
    assert!(
        refusal.message.contains("deployment other, not test"),
        "{refusal}"
    );

    // Two deployments share a root and do not see each other.
    let store = CheckpointStore::open(fixture.root.path(), "other").expect("a store");
    assert_eq!(store.list().expect("readable"), []);
    assert!(store.publish(&file).is_err());
}

#[test]
fn another_instances_manifest_is_refused() {
    let fixture = Fixture::new();
    let file = fixture.checkpoint(1, &few());
    let shard = &file.shards[0];
    let other = ShardRef::named(
        "resources/counter/1".parse().expect("an instance"),
        "resources/counter/1/manifest.json".into(),
        shard.digest,
    );
    let path = fixture.store.checkpoint_dir(id(1)).join(&other.manifest);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    fs::copy(fixture.manifest(1), &path).expect("a copy");
    let read = fixture.store.read_shard(id(1), &other, &|_| true);
    assert_invalid(read, &path, "another instance's");

    // A reference that leads out of the checkpoint is not followed.
    let outside = ShardRef {
        manifest: "../00000001-00000001/resources/counter/0/manifest.json".into(),
        ..shard.clone()
    };
    assert_invalid(
        fixture.store.read_shard(id(1), &outside, &|_| true),
        &fixture.store.checkpoint_dir(id(1)),
        "a path",
    );

    // By name and digest alone, as a restore's request has it.
    let named = ShardRef::named(instance(), shard.manifest.clone(), shard.digest);
    assert_eq!(
        fixture
            .store
            .read_shard(id(1), &named, &|_| true)
            .expect("whole")
            .len(),
        3
    );
}

#[test]
fn a_newer_major_is_refused_in_one_line_and_a_newer_minor_is_read() {
    let fixture = Fixture::new();
    let file = fixture.checkpoint(1, &few());
    let path = fixture.decision(1);
    let rewrite = |major: u32, minor: u32| {
        let mut value: Value = serde_json::from_slice(&file.to_bytes()).expect("JSON");
        value["format"] = json!({"major": major, "minor": minor, "codename": "x"});
        value["new_field"] = json!([1, 2, 3]);
        value["episodes"][0]["new_field"] = json!({"deep": true});
        value.as_object_mut().expect("an object").remove("checksum");
        fs::write(&path, sealed::seal(&value)).expect("a file");
    };
    rewrite(1, 9);
    let read = fixture.store.newest().expect("passed over").expect("there");
    assert_eq!(read.format, Format { major: 1, minor: 9 });
    assert_eq!(read.episodes, file.episodes);

    rewrite(2, 0);
    let refusal = assert_invalid(fixture.store.newest(), &path, "newer");
    assert!(refusal.message.contains("format 2.0"), "{refusal}");
    assert!(refusal.message.contains("the program that wrote it"), "{refusal}");

    // Also when the newer format has another seal.
    fs::write(&path, r#"{"format":{"major":3,"minor":1},"seal":"new"}"#).expect("a file");
    let refusal = assert_invalid(fixture.store.decided(id(1)), &path, "newer");
    assert!(refusal.message.contains("format 3.1"), "{refusal}");
}

/// A records file put together from its description, and a manifest for it.
pub fn plant(fixture: &Fixture, sequence: u64, frames: &[Vec<u8>]) -> ShardRef {
    let mut bytes = Vec::new();
    let mut last = (0, 0);
    for payload in frames {
        last = (bytes.len() as u64, payload.len() as u64 + frame::HEAD);
        bytes.extend_from_slice(&frame::head(payload).expect("short"));
        bytes.extend_from_slice(payload);
    }
    let mut footer = [last.0.to_le_bytes(), last.1.to_le_bytes()].concat();
    footer.extend_from_slice(&crc32c::crc32c(&footer).to_le_bytes());
    footer.extend_from_slice(b"BELAYREC");
    bytes.extend_from_slice(&footer);
    plant_bytes(fixture, sequence, &bytes, frames.len().saturating_sub(2) as u64)
}

/// Any bytes as a records file, and a manifest that says that they are right.
pub fn plant_bytes(fixture: &Fixture, sequence: u64, bytes: &[u8], records: u64) -> ShardRef {
    let dir = fixture.shard_dir(sequence);
    fs::create_dir_all(&dir).expect("a directory");
    let header = header(sequence);
    let manifest = Manifest {
        format: Format::CURRENT,
        id: header.id,
        deployment: fixture.store.deployment().into(),
        instance: header.instance.clone(),
        incarnation: header.incarnation,
        records_digest: *blake3::hash(bytes).as_bytes(),
        bytes: bytes.len() as u64,
        records,
    };
    fs::write(dir.join(manifest.records_name()), bytes).expect("records");
    let sealed = sealed::seal(&manifest);
    fs::write(dir.join("manifest.json"), &sealed).expect("a manifest");
    ShardRef::named(
        header.instance.clone(),
        Manifest::path_of(&header.instance),
        *blake3::hash(&sealed).as_bytes(),
    )
}

/// The payloads of a good file's frames.
pub fn frames(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut at = 0;
    while at < bytes.len() - 28 {
        let word: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
        let end = at + 8 + u32::from_le_bytes(word) as usize;
        frames.push(bytes[at + 8..end].to_vec());
        at = end;
    }
    frames
}

#[test]
fn a_records_file_is_what_its_description_says_and_unknown_fields_are_passed_over() {
    let fixture = Fixture::new();
    fixture.checkpoint(1, &few());
    let original = fs::read(fixture.records(1)).expect("records");
    let mut planted = frames(&original);
    let shard = plant(&fixture, 1, &planted);
    assert_eq!(
        fs::read(fixture.records(1)).expect("records"),
        original,
        "put together by hand it is the same file"
    );
    assert!(fixture.store.read_shard(id(1), &shard, &|_| true).is_ok());

    // Field 100, a string: added to the header, to a record, to an entry of the index and to the index.
    let unknown = [0xa2, 0x06, 0x03, b'n', b'e', b'w'];
    planted[0].extend_from_slice(&unknown);
    planted[1].extend_from_slice(&unknown);
    let mut index = pb::FileIndex::decode(&planted[4][..]).expect("an index");
    let mut offset = planted[0].len() as u64 + frame::HEAD;
    for (entry, payload) in index.entries.iter_mut().zip(&planted[1..]) {
        entry.offset = offset;
        entry.length = payload.len() as u64 + frame::HEAD;
        offset += entry.length;
    }
    let header = pb::FileHeader::decode(&planted[0][..]).expect("a header");
    assert_eq!(header.format_major, 1);
    planted[4] = index.encode_to_vec();
    planted[4].extend_from_slice(&unknown);
    let shard = ShardRef {
        ..plant_in(&fixture, 2, planted, |header| header.format_minor = 7)
    };
    let read = fixture
        .store
        .read_shard(id(2), &shard, &|_| true)
        .expect("passed over");
    assert_eq!(read[0].payload, &b"first"[..]);
    assert_eq!(read.len(), 3);
}

/// Plants frames under another checkpoint, with a changed header of the same length.
fn plant_in(
    fixture: &Fixture,
    sequence: u64,
    mut frames: Vec<Vec<u8>>,
    change: impl Fn(&mut pb::FileHeader),
) -> ShardRef {
    let old = frames[0].len() as u64;
    let mut header_message = pb::FileHeader::decode(&frames[0][..]).expect("a header");
    header_message.checkpoint_id = id(sequence).to_string();
    change(&mut header_message);
    frames[0] = header_message.encode_to_vec();
    let mut index = pb::FileIndex::decode(&frames[4][..]).expect("an index");
    for entry in &mut index.entries {
        entry.offset = entry.offset + frames[0].len() as u64 - old;
    }
    frames[4] = index.encode_to_vec();
    plant(fixture, sequence, &frames)
}

#[test]
fn records_of_a_newer_major_or_another_checkpoint_are_refused() {
    let fixture = Fixture::new();
    fixture.checkpoint(1, &few());
    let good = frames(&fs::read(fixture.records(1)).expect("records"));
    type Change = fn(&mut pb::FileHeader);
    let cases: [(&str, Change); 4] = [
        ("of format 2.0", |header| header.format_major = 2),
        ("foreign", |header| {
            header.checkpoint_id = "00000001-00000001".into()
        }),
        ("foreign", |header| header.incarnation = "x".into()),
        ("foreign", |header| header.instance = None),
    ];
    for (sequence, (what, change)) in (2..).zip(cases) {
        let shard = plant_in(&fixture, sequence, good.clone(), change);
        let read = fixture.store.read_shard(id(sequence), &shard, &|_| false);
        let refusal = assert_invalid(read, &fixture.records(sequence), what);
        assert!(refusal.message.contains(what), "{refusal}");
    }
}

#[test]
fn a_checkpoint_that_names_a_part_which_is_not_there_does_not_verify() {
    let fixture = Fixture::new();
    let mut file = fixture.checkpoint(1, &few());
    file.episodes[1]
        .parts
        .push("agent/default/0".parse().expect("an instance"));
    fs::write(fixture.decision(1), file.to_bytes()).expect("a file");
    let refusal: Refusal = assert_invalid(fixture.store.verify(id(1)), &fixture.decision(1), "a part");
    assert!(refusal.message.contains("agent/default/0"), "{refusal}");
}
