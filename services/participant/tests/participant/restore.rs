//! Restore: into more replicas, beside the living, from damaged files, given up half-way.

use std::{fs, time::Duration};

use belay_core::{ids::Episode, refusal::Reason};
use belay_mesh::wire::ToWire;
use belay_proto::checkpoint as pb;

use crate::rig::{Rig, episode, id, instance, refused, rollout};

fn second(name: &str) -> Episode {
    Episode::new(rollout(name), 1)
}

#[tokio::test]
async fn a_checkpoint_of_one_replica_is_restored_into_two_and_back_into_one() {
    let one = Rig::holding(&["a", "b", "c"]).await;
    let shard = one.checkpoint(id(1), &["a", "b", "c"]).await;
    let two = [one.beside(0), one.beside(1)];
    let mut shards = Vec::new();
    for (replica, rig) in two.iter().enumerate() {
        let mut request = rig.restore_request(id(2), id(1), &["a", "b", "c"], std::slice::from_ref(&shard));
        for (n, planned) in request.plan.iter_mut().enumerate() {
            planned.placement = vec![instance(n as u32 % 2).to_wire()];
        }
        let staged = rig.restore(request).await.unwrap().staged;
        assert_eq!(staged, [2, 1][replica]);
        assert_eq!(rig.keep(id(2)).await.unwrap().activated, staged);
    }
    assert_eq!(two[0].owner.get(&second("c")), Some(3));
    assert_eq!(
        (two[0].owner.get(&second("b")), two[1].owner.get(&second("b"))),
        (None, Some(2))
    );

    // Marks refuse the old attempt also where nothing of it is placed.
    assert!(two[1].gate.check_mark(&episode("a")).is_err());

    for rig in &two {
        rig.prepare(id(3)).await.unwrap();
        let names: Vec<_> = ["a", "b", "c"]
            .iter()
            .map(|name| second(name).to_wire())
            .collect();
        let request = pb::CommitRequest {
            fence: rig.fence(),
            checkpoint_id: id(3).to_string(),
            timeout: Some(Duration::from_secs(9).to_wire()),
            scope: names,
        };
        use pb::checkpoint_participant_server::CheckpointParticipant;
        rig.participant
            .commit(tonic::Request::new(request))
            .await
            .unwrap();
        rig.keep(id(3)).await.unwrap();
        let durable = rig.wait_durable(id(3)).await.unwrap();
        rig.settle(id(3), pb::Outcome::Published).await.unwrap();
        shards.push(pb::Shard {
            instance: Some(rig.gate.instance().to_wire()),
            manifest: durable.manifest,
            digest: durable.digest,
        });
    }
    let one = one.beside(0);
    let mut request = one.restore_request(id(4), id(3), &["a", "b", "c"], &shards);
    for planned in &mut request.plan {
        planned.saved.as_mut().unwrap().attempt = 1;
        planned.attempt = 2;
    }
    assert_eq!(one.restore(request).await.unwrap().staged, 3);
    assert_eq!(one.keep(id(4)).await.unwrap().activated, 3);
    assert_eq!(one.owner.get(&Episode::new(rollout("b"), 2)), Some(2));
}

#[tokio::test]
async fn nothing_is_live_before_keep_and_nothing_is_left_after_abandon() {
    let source = Rig::holding(&["a"]).await;
    let shard = source.checkpoint(id(1), &["a"]).await;
    let rig = source.beside(0);
    let request = rig.restore_request(id(2), id(1), &["a"], std::slice::from_ref(&shard));
    rig.restore(request.clone()).await.unwrap();
    assert_eq!(rig.owner.get(&second("a")), None);
    assert!(!rig.gate.is_open());
    assert_eq!(rig.abandon(id(2)).await.unwrap().phase(), pb::Phase::Joining);
    refused(rig.keep(id(2)).await, Reason::StaleCheckpoint);
    refused(rig.restore(request).await, Reason::StaleCheckpoint);
    assert_eq!(rig.status().await.counts["sessions"], 0);
    let again = rig.restore_request(id(3), id(1), &["a"], &[shard]);
    rig.restore(again).await.unwrap();
    assert_eq!(rig.keep(id(3)).await.unwrap().activated, 1);
}

#[tokio::test]
async fn beside_the_living_the_door_stays_open() {
    let rig = Rig::holding(&["a", "lives"]).await;
    let shard = rig.checkpoint(id(1), &["a"]).await;
    rig.restore(rig.restore_request(id(2), id(1), &["a"], &[shard]))
        .await
        .unwrap();
    assert_eq!(rig.status().await.phase(), pb::Phase::Idle);
    let permit = rig.gate.enter(&episode("lives"), "tool").await.unwrap();
    refused(rig.prepare(id(3)).await, Reason::CheckpointConflict);
    assert_eq!(rig.keep(id(2)).await.unwrap().activated, 1);
    drop(permit);
    assert_eq!(rig.owner.get(&second("a")), Some(1));
    assert_eq!(rig.owner.get(&episode("a")), None, "its lower attempt is stopped");
    assert_eq!(rig.owner.get(&episode("lives")), Some(2));
}

#[tokio::test]
async fn an_abandon_ends_a_staging_that_is_slow() {
    let source = Rig::holding(&["a", "b"]).await;
    let shard = source.checkpoint(id(1), &["a", "b"]).await;
    let rig = source.beside(0);
    let latch = rig.owner.slow_down();
    let request = rig.restore_request(id(2), id(1), &["a", "b"], &[shard]);
    let staging = tokio::spawn({
        let (rig, request) = (rig.clone(), request.clone());
        async move { rig.restore(request).await }
    });
    while rig.status().await.checkpoint_id.is_empty() {
        tokio::task::yield_now().await;
    }
    refused(rig.keep(id(2)).await, Reason::InvalidPhase);
    let mut short = request.clone();
    short.timeout = Some(Duration::from_millis(5).to_wire());
    refused(rig.restore(short).await, Reason::DeadlinePassed);
    rig.abandon(id(2)).await.unwrap();
    refused(staging.await.unwrap(), Reason::StaleCheckpoint);
    latch.open();
    assert_eq!(rig.join(true).await.unwrap().phase(), pb::Phase::Idle);
    assert_eq!(rig.status().await.counts["sessions"], 0);
}

#[tokio::test]
async fn a_damaged_share_is_refused_by_file_and_the_run_can_be_tried_again() {
    let source = Rig::holding(&["a"]).await;
    let shard = source.checkpoint(id(1), &["a"]).await;
    let records = fs::read_dir(source.share(id(1)))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|ext| ext == "belay"))
        .unwrap();
    let good = fs::read(&records).unwrap();
    let mut altered = good.clone();
    altered[good.len() / 2] ^= 1;
    let rig = source.beside(0);
    let request = rig.restore_request(id(2), id(1), &["a"], std::slice::from_ref(&shard));
    for bad in [&altered[..], &good[..good.len() - 1], &[]] {
        fs::write(&records, bad).unwrap();
        let refusal = refused(rig.restore(request.clone()).await, Reason::InvalidCheckpoint);
        let name = records.file_name().unwrap().to_str().unwrap();
        assert!(refusal.message.contains(name), "{refusal}");
        assert_eq!(rig.status().await.phase(), pb::Phase::Joining);
    }
    fs::remove_file(&records).unwrap();
    refused(rig.restore(request.clone()).await, Reason::InvalidCheckpoint);
    fs::write(&records, &good).unwrap();
    let mut foreign = request.clone();
    foreign.shards[0].digest = vec![1; 32].into();
    refused(rig.restore(foreign).await, Reason::InvalidCheckpoint);
    assert_eq!(rig.restore(request).await.unwrap().staged, 1);
}

#[tokio::test]
async fn a_planned_episode_without_a_record_or_with_two_is_refused() {
    let source = Rig::holding(&["a"]).await;
    let shard = source.checkpoint(id(1), &["a"]).await;
    let rig = source.beside(0);
    let request = rig.restore_request(id(2), id(1), &["a", "b"], std::slice::from_ref(&shard));
    let refusal = refused(rig.restore(request).await, Reason::InvalidCheckpoint);
    assert_eq!(refusal.get("rollout_id"), Some("b"));
    let request = rig.restore_request(id(3), id(1), &["a"], &[shard.clone(), shard]);
    let refused = refused(rig.restore(request).await, Reason::InvalidCheckpoint);
    assert_eq!(refused.get("rollout_id"), Some("a"));
}

#[tokio::test]
async fn a_rollout_that_is_marked_beyond_its_plan_is_not_staged() {
    let source = Rig::holding(&["a", "b"]).await;
    let shard = source.checkpoint(id(1), &["a", "b"]).await;
    let rig = source.beside(0);
    let mut request = rig.restore_request(id(2), id(1), &["a", "b"], &[shard]);
    request.marks = Some(pb::MarkSet {
        version: 4,
        marks: vec![crate::rig::mark("a", 1)],
    });
    assert_eq!(rig.restore(request).await.unwrap().staged, 1);
    assert_eq!(rig.keep(id(2)).await.unwrap().activated, 1);
    assert_eq!(rig.owner.get(&second("a")), None);
}
