//! Work on several threads against checkpoint after checkpoint: the owner itself checks at each capture that nothing is at work.
//!
//! `BELAY_SEED=<seed>` replays the choices of a run, though not how its threads interleave.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use belay_core::refusal::Reason;
use belay_mesh::status::from_status;
use belay_participant::{Gate, ParticipantOptions};
use belay_proto::checkpoint as pb;

use crate::{
    counters::Counters,
    rig::{Rig, SOON, episode, id},
};

fn random(seed: &AtomicU64) -> u64 {
    let mut z = seed.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

async fn work(
    gate: Gate,
    owner: Arc<Counters>,
    name: String,
    stop: Arc<AtomicBool>,
    seed: Arc<AtomicU64>,
) -> u64 {
    let episode = episode(&name);
    let mut steps = 0;
    while !stop.load(Ordering::SeqCst) {
        let permit = match gate.enter(&episode, "tool").await {
            Ok(permit) => permit,
            // The door of the rig is small.
            Err(refusal) if refusal.reason == Reason::AdmissionFull => {
                gate.opened().await;
                continue;
            }
            Err(refusal) => panic!("{refusal}"),
        };
        owner.at_work.fetch_add(1, Ordering::SeqCst);
        for _ in 0..random(&seed) % 4 {
            tokio::task::yield_now().await;
        }
        owner.set(&episode, steps);
        owner.at_work.fetch_sub(1, Ordering::SeqCst);
        drop(permit);
        steps += 1;
        tokio::task::yield_now().await;
    }
    steps
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_capture_ever_sees_work_in_progress() {
    let first = std::env::var("BELAY_SEED").map_or_else(
        |_| std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
        |seed| seed.parse().unwrap(),
    );
    eprintln!("replay with BELAY_SEED={first}");
    let seed = Arc::new(AtomicU64::new(first));
    let dir = Arc::new(tempfile::TempDir::new().unwrap());
    let rig = Rig::with(dir, 0, |_: &mut ParticipantOptions| {}).opened().await;
    let stop = Arc::new(AtomicBool::new(false));
    let names: Vec<String> = (0..8).map(|n| format!("e{n}")).collect();
    let workers: Vec<_> = names
        .iter()
        .map(|name| {
            let (gate, owner) = (rig.gate.clone(), rig.owner.clone());
            tokio::spawn(work(gate, owner, name.clone(), stop.clone(), seed.clone()))
        })
        .collect();
    let scope: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut kept = 0;
    for sequence in 1..=60 {
        let id = id(sequence);
        rig.prepare(id).await.unwrap();
        match random(&seed) % 3 {
            0 => {
                rig.abandon(id).await.unwrap();
            }
            _ => {
                rig.commit(id, &scope).await.unwrap();
                let before: Vec<_> = names.iter().map(|name| rig.owner.get(&episode(name))).collect();
                tokio::task::yield_now().await;
                let after: Vec<_> = names.iter().map(|name| rig.owner.get(&episode(name))).collect();
                assert_eq!(before, after, "nothing moves from capture to resume");
                rig.keep(id).await.unwrap();
                rig.wait_durable(id).await.unwrap();
                let outcome = match random(&seed) % 2 {
                    0 => pb::Outcome::Published,
                    _ => pb::Outcome::Discarded,
                };
                rig.settle(id, outcome).await.unwrap();
                kept += 1;
            }
        }
    }
    stop.store(true, Ordering::SeqCst);
    let mut steps = 0;
    for worker in workers {
        steps += worker.await.unwrap();
    }
    assert!(kept > 10 && steps > 60, "{kept} captures, {steps} steps");
    let status = rig.status().await;
    assert_eq!((status.blocker_count, status.at_door), (0, 0));
    assert!(from_status(&rig.keep(id(61)).await.unwrap_err()).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_is_left_waiting_when_the_door_opens_or_the_last_one_parks() {
    let rig = Rig::holding(&["a"]).await;
    for sequence in 1..=400 {
        let id = id(sequence);
        // The last one parks while the Prepare comes to wait for it: a wake-up that is lost would end in PREPARING.
        let busy = rig.gate.enter(&episode("a"), "tool").await.unwrap();
        let park = tokio::spawn(async move { drop(busy) });
        let prepared = rig.prepare(id).await.unwrap();
        assert_eq!(prepared.phase(), pb::Phase::Prepared);
        park.await.unwrap();

        // Calls come to the door while it opens.
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let gate = rig.gate.clone();
                tokio::spawn(async move { gate.enter(&episode("a"), "tool").await.map(drop) })
            })
            .collect();
        rig.abandon(id).await.unwrap();
        for call in calls {
            let entered = tokio::time::timeout(SOON, call).await;
            entered.expect("let in").unwrap().unwrap();
        }
    }
}
