//! What the clock does: leases lapse, soft limits strike, open time stands still. The clock is the test's.

use std::time::Duration;

use belay_core::refusal::Reason;
use belay_mesh::wire::ToWire;
use belay_proto::checkpoint as pb;
use tokio::time::{advance, sleep};

use crate::rig::{Rig, episode, id, refused};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_reopens_and_late_calls_are_stale() {
    let rig = Rig::holding(&["a"]).await;
    rig.prepare(id(1)).await.unwrap();
    rig.commit(id(1), &["a"]).await.unwrap();
    rig.wait_durable(id(1)).await.unwrap();
    let waiting = tokio::spawn({
        let gate = rig.gate.clone();
        async move { gate.enter(&episode("b"), "seed").await.map(drop) }
    });
    sleep(s(59)).await;
    assert!(!rig.gate.is_open());
    sleep(s(2)).await;
    assert!(rig.gate.is_open(), "nobody called, and it is open");
    waiting.await.unwrap().unwrap();
    for late in [
        rig.keep(id(1)).await.map(drop),
        rig.commit(id(1), &["a"]).await.map(drop),
        rig.prepare(id(1)).await.map(drop),
        rig.renew(id(1)).await.map(drop),
        rig.wait_durable(id(1)).await.map(drop),
    ] {
        let refusal = refused(late, Reason::StaleCheckpoint);
        assert!(refusal.message.contains("lapsed"), "{refusal}");
    }
    rig.abandon(id(1)).await.unwrap();
    rig.prepare(id(2)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn renewing_keeps_it_closed_and_a_waiting_prepare_does_not() {
    let rig = Rig::holding(&["a"]).await;
    let busy = rig.gate.enter(&episode("a"), "tool").await.unwrap();
    let waiting = tokio::spawn({
        let rig = rig.clone();
        let request = pb::PrepareRequest {
            timeout: Some(s(600).to_wire()),
            grace: Some(s(8).to_wire()),
            ..rig.prepare_request(id(1))
        };
        async move { rig.prepare_with(request).await }
    });
    for _ in 0..10 {
        sleep(s(4)).await;
        rig.renew(id(1)).await.unwrap();
    }
    assert!(!waiting.is_finished());
    refused(waiting.await.unwrap(), Reason::StaleCheckpoint);
    assert!(rig.gate.is_open());
    drop(busy);
}

#[tokio::test(start_paused = true)]
async fn a_prepare_that_is_not_ready_names_the_blockers_and_stays_closed() {
    let rig = Rig::holding(&["a"]).await;
    let mut busy = rig.gate.enter(&episode("a"), "tool").await.unwrap();
    sleep(s(3)).await;
    busy.step("verify");
    let request = pb::PrepareRequest {
        timeout: Some(s(5).to_wire()),
        ..rig.prepare_request(id(1))
    };
    let reply = rig.prepare_with(request.clone()).await.unwrap();
    assert_eq!((reply.phase(), reply.blocker_count), (pb::Phase::Preparing, 1));
    let blocker = &rig.status().await.blockers[0];
    assert_eq!(
        (blocker.step.as_str(), blocker.age.unwrap().seconds),
        ("verify", 5)
    );
    assert_eq!(blocker.episode, Some(episode("a").to_wire()));
    assert!(!rig.gate.is_open());
    let park = async {
        sleep(s(1)).await;
        drop(busy);
    };
    let (reply, ()) = tokio::join!(rig.prepare_with(request), park);
    let reply = reply.unwrap();
    assert_eq!(reply.phase(), pb::Phase::Prepared);
    assert_eq!(reply.took.unwrap().seconds, 6);
}

#[tokio::test(start_paused = true)]
async fn the_soft_limit_leaves_out_what_still_runs() {
    let rig = Rig::holding(&["a", "slow"]).await;
    let busy = rig.gate.enter(&episode("slow"), "tool sleep").await.unwrap();
    let request = pb::PrepareRequest {
        soft_limit: Some(s(2).to_wire()),
        ..rig.prepare_request(id(1))
    };
    let reply = rig.prepare_with(request).await.unwrap();
    assert_eq!(reply.phase(), pb::Phase::Prepared);
    assert_eq!(reply.restarts.len(), 1);
    assert_eq!(reply.restarts[0].episode, Some(episode("slow").to_wire()));
    assert_eq!(reply.took.unwrap().seconds, 2);
    refused(rig.commit(id(1), &["a", "slow"]).await, Reason::RestartInScope);
    assert_eq!(rig.commit(id(1), &["a"]).await.unwrap().parts.len(), 1);
    assert_eq!(rig.status().await.restarts.len(), 1, "fixed until it is over");
    drop(busy);
}

#[tokio::test(start_paused = true)]
async fn open_time_stands_still_while_the_mesh_is_closed() {
    let rig = Rig::joining();
    advance(s(100)).await;
    assert_eq!(rig.gate.open_time(), s(0), "joining");
    rig.join(true).await.unwrap();
    let alarm = tokio::spawn({
        let gate = rig.gate.clone();
        async move {
            gate.open_time_reaches(s(20)).await;
            tokio::time::Instant::now()
        }
    });
    sleep(s(5)).await;
    rig.prepare(id(1)).await.unwrap();
    let closed = tokio::time::Instant::now();
    sleep(s(50)).await;
    assert_eq!(rig.gate.open_time().as_secs(), 5);
    assert!(!alarm.is_finished());
    rig.abandon(id(1)).await.unwrap();
    let rang = alarm.await.unwrap();
    assert_eq!((rang - closed).as_secs(), 65);
}
