//! What is written is read, bit for bit.

use belay_core::ids::Episode;
use belay_proto::{episode as ep, record as pb, worker};
use belay_store::CheckpointStore;
use bytes::Bytes;
use proptest::{collection::vec, prelude::*};
use prost::Message;

use crate::fixture::{DEPLOYMENT, Fixture, few, header, id, random, record, write};

fn bytes() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..64).prop_map(Bytes::from),
        // What a JSON library would mend: it must come back as it went in.
        1 => Just(Bytes::from_static(br#"{"b":1e400,"a":9007199254740993,"s":"\ud800"}"#)),
    ]
}

fn environment() -> impl Strategy<Value = Vec<u8>> {
    (bytes(), bytes(), any::<(u32, u64, f64)>()).prop_map(|(task, details, (steps, revision, reward))| {
        pb::EnvironmentEpisode {
            task,
            environment: "counter".into(),
            max_steps: steps,
            boundary: Some(pb::EnvironmentBoundary {
                next_step: "return".into(),
                parts: Some(pb::SeededParts {
                    revision,
                    ..Default::default()
                }),
                verdict: Some(pb::Verdict { reward, details }),
                ..Default::default()
            }),
            ..Default::default()
        }
        .encode_to_vec()
    })
}

fn agent() -> impl Strategy<Value = Vec<u8>> {
    (bytes(), vec(bytes(), 0..5), vec(any::<u32>(), 0..4)).prop_map(|(params, items, pending)| {
        pb::AgentSession {
            params,
            items,
            pending_calls: pending,
            ..Default::default()
        }
        .encode_to_vec()
    })
}

fn resources() -> impl Strategy<Value = Vec<u8>> {
    (bytes(), vec((bytes(), any::<bool>()), 0..4), any::<u64>()).prop_map(|(state, replies, revision)| {
        pb::ResourcesSession {
            state,
            revision,
            replies: replies
                .into_iter()
                .map(|(output, is_error)| pb::KeptToolReply {
                    output,
                    is_error,
                    operation: Some(ep::Operation { turn: 1, index: 2 }),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }
        .encode_to_vec()
    })
}

fn policy_model() -> impl Strategy<Value = Vec<u8>> {
    (vec(any::<u32>(), 0..5), bytes()).prop_map(|(rows, response)| {
        pb::PolicyModelEpisode {
            rows: rows
                .into_iter()
                .map(|tokens| pb::LedgerRow {
                    prompt_tokens: tokens,
                    tokens: Some(worker::TokenSpan {
                        tokens,
                        ..Default::default()
                    }),
                    ..Default::default()
                })
                .collect(),
            last: Some(pb::KeptModelReply {
                response,
                ..Default::default()
            }),
            ..Default::default()
        }
        .encode_to_vec()
    })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => environment(),
        4 => agent(),
        4 => resources(),
        4 => policy_model(),
        2 => Just(Vec::new()),
        // Around the writer's buffer, and well over it.
        1 => ((1_usize << 20) - 200..(1 << 20) + 200, any::<u8>()).prop_map(|(n, b)| vec![b; n]),
        1 => Just(vec![3; 5 << 20]),
    ]
}

#[test]
fn every_kind_of_record_comes_back_whatever_is_asked_for() {
    random(
        40,
        &(vec(payload(), 0..12), any::<u64>()),
        |(payloads, chosen)| {
            let fixture = Fixture::new();
            let records: Vec<_> = payloads
                .into_iter()
                .enumerate()
                .map(|(number, payload)| record(number, payload))
                .collect();
            let shard = write(&fixture.store, &header(1), &records).expect("a share");
            prop_assert_eq!(shard.records, records.len() as u64);
            let scope: Vec<&Episode> = records
                .iter()
                .enumerate()
                .filter(|(number, _)| chosen >> number & 1 == 1)
                .map(|(_, record)| &record.episode)
                .collect();
            let read = fixture
                .store
                .read_shard(id(1), &shard, &|episode| scope.contains(&episode))
                .expect("the wanted records");
            let wanted = records.iter().filter(|r| scope.contains(&&r.episode));
            prop_assert!(
                wanted
                    .map(|r| (&r.episode, r.execution, &r.payload))
                    .eq(read.iter().map(|r| (&r.episode, r.execution, &r.payload)))
            );
            Ok(())
        },
    );
}

#[test]
fn a_checkpoint_and_its_state_are_read_by_another_process() {
    let fixture = Fixture::new();
    let shard = write(&fixture.store, &header(1), &few()).expect("a share");
    let state = fixture
        .store
        .write_controller_state(id(1), b"mine")
        .expect("a state");
    // Again, as after a lost reply.
    assert_eq!(
        fixture
            .store
            .write_controller_state(id(1), b"mine")
            .expect("the same"),
        state
    );
    let mut file = crate::fixture::checkpoint_file(&header(1), shard, &few());
    file.controller_state = Some(state.clone());
    fixture.store.publish(&file).expect("a checkpoint");

    let other = CheckpointStore::open(fixture.root.path(), DEPLOYMENT).expect("a store");
    assert_eq!(other.newest().expect("readable"), Some(file.clone()));
    assert_eq!(other.verify(id(1)).expect("whole"), Some(file));
    assert_eq!(
        other.read_controller_state(id(1), &state).expect("whole"),
        &b"mine"[..]
    );
    assert_eq!(
        std::fs::read_to_string(fixture.root.path().join(DEPLOYMENT).join("LATEST")).expect("a hint"),
        "00000001-00000001\n"
    );
}

#[test]
fn a_share_without_records_is_a_share() {
    let fixture = Fixture::new();
    let shard = write(&fixture.store, &header(1), &[]).expect("a share");
    assert_eq!(shard.records, 0);
    assert_eq!(
        fixture.store.read_shard(id(1), &shard, &|_| true).expect("whole"),
        []
    );
}

#[test]
fn two_records_of_one_episode_are_refused_and_leave_nothing() {
    let fixture = Fixture::new();
    let twice = [record(1, "a"), record(1, "b")];
    let error = write(&fixture.store, &header(1), &twice).expect_err("two of one");
    assert!(error.to_string().contains("rollout-1"), "{error}");
    assert_eq!(crate::fixture::names(&fixture.shard_dir(1)), [""; 0]);
}
