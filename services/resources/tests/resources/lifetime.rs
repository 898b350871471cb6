//! Time to live: sessions that nobody calls end by name; those that are used, closed over or restored do not end too early or
//! too late. What ends later than something else is compared with that.

use belay_core::{parts::VerifyMode, refusal::Reason};
use belay_proto::checkpoint::Decision;
use belay_resources::environments::Counter;

use super::*;
use crate::{
    control::{RESTORE, RUN},
    held::Held,
};

/// Long: a loaded machine stands still for less than what lies between two ends.
const TTL: Duration = Duration::from_secs(2);
/// Longer than a sixteenth of the time to live: whatever is over is gone after one.
const TICK: Duration = Duration::from_millis(250);

async fn server<E: Environment>(root: &TempDir, environment: E, ttl: Duration) -> Server {
    let server = Server::start(root, environment, |config| config.session_ttl = Some(ttl)).await;
    server.control.join(true).await;
    server
}

/// Waits until so many sessions are held.
async fn until_held(server: &Server, sessions: u64) {
    let what = format!("{sessions} sessions");
    let held = |status: &belay_proto::checkpoint::StatusResponse| status.counts["sessions"] == sessions;
    server.control.until(&what, held).await;
}

/// A server whose sessions live for a tick: one that has ended says that so much time has passed.
struct Clock {
    server: Server,
    ticks: u128,
    _root: TempDir,
}

impl Clock {
    async fn start() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        Self {
            server: server(&root, Counter, TICK).await,
            ticks: 0,
            _root: root,
        }
    }

    async fn pass(&mut self, time: Duration) {
        let end = self.ticks + time.as_nanos().div_ceil(TICK.as_nanos());
        while self.ticks < end {
            self.ticks += 1;
            let tick = life(&format!("tick-{}", self.ticks), 0, self.ticks);
            self.server.seed(&tick).await.expect("a reply");
            until_held(&self.server, 0).await;
        }
    }
}

#[track_caller]
fn told<T: Debug>(outcome: Result<T, Refusal>) {
    let refusal = refused(outcome, Reason::EpisodeUnknown);
    assert!(refusal.message.contains("its time to live"), "{refusal}");
}

#[tokio::test]
async fn a_session_that_nobody_calls_ends_and_later_calls_are_told_so() {
    let root = tempfile::tempdir().unwrap();
    let server = server(&root, Counter, TICK).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    until_held(&server, 0).await;
    told(server.add(&me, (0, 1), 2).await);
    told(server.verify(&me, "{}").await);
    told(server.seed(&me).await);
    server.close(&me).await.unwrap();
    told(server.add(&me, (0, 1), 2).await);
    server.control.forget(&me).await.unwrap();
    server.seed(&me).await.unwrap();
}

#[tokio::test]
async fn each_use_gives_a_session_its_time_anew() {
    let root = tempfile::tempdir().unwrap();
    let mut clock = Clock::start().await;
    let server = Server::start(&root, Counter, |config| {
        config.session_ttl = Some(TTL);
        config.verify = Some(VerifyMode::Wait);
    })
    .await;
    server.control.join(true).await;
    let [unused, seeded, called, repeated, verified] =
        ["unused", "seeded", "called", "repeated", "verified"].map(|id| life(id, 0, 1));
    for me in [&unused, &seeded, &called, &repeated, &verified] {
        server.seed(me).await.unwrap();
        server.add(me, (0, 1), 2).await.unwrap();
    }
    server.verify(&verified, "{}").await.unwrap();
    clock.pass(TTL / 2).await;
    server.seed(&seeded).await.unwrap();
    server.add(&called, (0, 2), 2).await.unwrap();
    assert!(server.add(&repeated, (0, 1), 2).await.unwrap().kept);
    server.verify(&verified, "{}").await.unwrap();
    until_held(&server, 4).await;
    for me in [&seeded, &called, &repeated, &verified] {
        server.count(me, (1, 1)).await;
    }
    told(server.add(&unused, (0, 2), 2).await);
}

#[tokio::test]
async fn a_session_in_use_does_not_end_and_has_its_whole_time_after_it() {
    does_not_end_in_use(VerifyMode::Wait).await;
}

#[tokio::test]
async fn a_session_in_a_verify_that_is_replayed_does_not_end_either() {
    does_not_end_in_use(VerifyMode::Replay).await;
}

async fn does_not_end_in_use(mode: VerifyMode) {
    let root = tempfile::tempdir().expect("a directory");
    let mut clock = Clock::start().await;
    let held = Held::new();
    let server = Server::start(&root, held.clone(), |config| {
        config.session_ttl = Some(TTL);
        config.verify = Some(mode);
    })
    .await;
    server.control.join(true).await;
    let [called, verified, idle] = ["called", "verified", "idle"].map(|id| life(id, 0, 1));
    server.seed(&called).await.expect("a reply");
    server.seed(&verified).await.expect("a reply");
    let call = server.begin_add(&called, (0, 1), 2);
    let request = pb::VerifyRequest {
        r#ref: verified.wire(),
        response: "{}".into(),
    };
    let client = server.client.clone();
    let verify = tokio::spawn(async move { answer(client.clone().verify(request)).await });
    held.until("both run", |seen| seen.calls == 1 && seen.verifies == 1)
        .await;
    server.seed(&idle).await.expect("a reply");
    until_held(&server, 2).await;
    told(server.add(&idle, (0, 1), 2).await);
    held.release();
    assert_eq!(done("the call", call).await.expect("a reply").revision, 1);
    assert_eq!(done("the verify", verify).await.expect("a reply").reward, 0.0);
    clock.pass(TICK).await;
    assert_eq!(server.count(&called, (1, 1)).await, r#"{"count": 5}"#);
    assert_eq!(server.count(&verified, (0, 1)).await, r#"{"count": 3}"#);
    until_held(&server, 0).await;
}

/// Time stands still while the mesh is closed.
#[tokio::test]
async fn a_session_that_is_closed_over_has_the_time_that_it_had() {
    let root = tempfile::tempdir().unwrap();
    let mut clock = Clock::start().await;
    let server = server(&root, Counter, TTL).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    server.control.prepared().await;
    server.control.commit(&[&me]).await;
    clock.pass(TTL + TICK).await;
    server.control.resume(RUN, Decision::Keep).await;
    clock.pass(TICK).await;
    assert_eq!(server.count(&me, (0, 1)).await, r#"{"count": 3}"#);
}

/// And it stands still between a crash and a restore: what was left is in the record.
#[tokio::test]
async fn a_restored_session_has_the_time_that_it_had_left_and_not_more() {
    let root = tempfile::tempdir().unwrap();
    let mut clock = Clock::start().await;
    let (idle, used) = (life("idle", 0, 1), life("used", 0, 1));
    let (next_idle, next_used) = (life("idle", 1, 2), life("used", 1, 2));
    let shard = {
        let server = server(&root, Counter, TTL).await;
        server.seed(&idle).await.unwrap();
        server.seed(&used).await.unwrap();
        clock.pass(TTL / 2).await;
        server.add(&used, (0, 1), 2).await.unwrap();
        server.control.prepared().await;
        assert_eq!(server.control.commit(&[&idle, &used]).await.parts.len(), 2);
        server.control.resume(RUN, Decision::Keep).await;
        server.control.durable().await
    };
    clock.pass(TTL).await;
    let server = Server::start(&root, Counter, |config| config.session_ttl = Some(TTL)).await;
    let plan = [(&idle, &next_idle), (&used, &next_used)];
    server.control.restore_all(shard, &plan).await.unwrap();
    server.control.resume(RESTORE, Decision::Keep).await;
    assert_eq!(server.counts().await.0, 2, "no time has passed for them");
    until_held(&server, 1).await;
    assert_eq!(server.count(&next_used, (1, 1)).await, r#"{"count": 5}"#);
    told(server.add(&next_idle, (0, 1), 2).await);
}
