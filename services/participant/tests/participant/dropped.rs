//! A handler that is dropped at any of its awaits loses nothing: the retry gets the reply.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::atomic::Ordering,
    task::Poll,
};

use belay_core::refusal::Reason;
use belay_proto::checkpoint as pb;

use crate::rig::{Rig, SOON, episode, id, refused, until};

/// Polls a call so many times, each time after it was woken, and drops it then; its result if it came to one.
async fn polled<T>(times: usize, call: impl Future<Output = T>) -> Option<T> {
    if times == 0 {
        return None;
    }
    let mut call = pin!(call);
    let mut left = times;
    let polled = poll_fn(|context| {
        left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    tokio::time::timeout(SOON, polled).await.expect("it is woken")
}

/// Drops a call at its first await, its second, and so on, each time on a new participant, until it ends by itself.
async fn at_every_await<F: Future<Output = bool>>(least: usize, mut case: impl FnMut(usize) -> F) {
    for times in 0..100 {
        if case(times).await {
            assert!(
                times > least,
                "it ended after {times} polls: there was nothing to drop"
            );
            return;
        }
    }
    panic!("the call never ended");
}

#[tokio::test]
async fn prepare() {
    at_every_await(1, |times| async move {
        let rig = Rig::holding(&["a"]).await;
        let busy = rig.gate.enter(&episode("a"), "tool").await.unwrap();
        let park = async {
            // The call is waiting by now, or was dropped.
            tokio::task::yield_now().await;
            drop(busy);
        };
        let (reply, ()) = tokio::join!(polled(times, rig.prepare(id(1))), park);
        let retry = rig.prepare(id(1)).await.unwrap();
        assert_eq!(retry.phase(), pb::Phase::Prepared, "dropped after {times} polls");
        if let Some(reply) = &reply {
            assert_eq!(reply.as_ref().unwrap(), &retry);
        }
        assert_eq!(rig.commit(id(1), &["a"]).await.unwrap().parts.len(), 1);
        reply.is_some()
    })
    .await;
}

#[tokio::test]
async fn a_prepare_that_nobody_waits_for_is_committed_all_the_same() {
    let rig = Rig::holding(&["a"]).await;
    let busy = rig.gate.enter(&episode("a"), "tool").await.unwrap();
    assert!(polled(1, rig.prepare(id(1))).await.is_none());
    // What the owner finds while it is being waited for counts, also where no Prepare has replied.
    *rig.owner.restarts.lock().unwrap() = vec![crate::rig::restart("late")];
    drop(busy);
    refused(rig.commit(id(1), &["a", "late"]).await, Reason::RestartInScope);
    assert_eq!(rig.commit(id(1), &["a"]).await.unwrap().parts.len(), 1);
}

#[tokio::test]
async fn commit_and_await() {
    at_every_await(0, |times| async move {
        let rig = Rig::holding(&["a"]).await;
        rig.prepare(id(1)).await.unwrap();
        let reply = polled(times, rig.commit(id(1), &["a"])).await;
        let retry = rig.commit(id(1), &["a"]).await.unwrap();
        if let Some(reply) = &reply {
            assert_eq!(reply.as_ref().unwrap(), &retry);
        }
        assert_eq!(rig.owner.captures.load(Ordering::SeqCst), 1);
        assert_eq!(rig.wait_durable(id(1)).await.unwrap().records, 1);
        reply.is_some()
    })
    .await;
    at_every_await(1, |times| async move {
        let rig = Rig::holding(&["a"]).await;
        let latch = rig.owner.slow_down();
        rig.prepare(id(1)).await.unwrap();
        rig.commit(id(1), &["a"]).await.unwrap();
        let write = async {
            tokio::task::yield_now().await;
            latch.open();
        };
        let (reply, ()) = tokio::join!(polled(times, rig.wait_durable(id(1))), write);
        let retry = rig.wait_durable(id(1)).await.unwrap();
        assert_eq!(retry.records, 1);
        if let Some(reply) = &reply {
            assert_eq!(reply.as_ref().unwrap(), &retry);
        }
        reply.is_some()
    })
    .await;
}

#[tokio::test]
async fn abandon_and_discard_while_the_writer_is_slow() {
    for discard in [false, true] {
        at_every_await(1, |times| async move {
            let rig = Rig::holding(&["a", "b"]).await;
            let latch = rig.owner.slow_down();
            rig.prepare(id(1)).await.unwrap();
            rig.commit(id(1), &["a", "b"]).await.unwrap();
            if discard {
                rig.keep(id(1)).await.unwrap();
            }
            let call = async || match discard {
                true => rig.settle(id(1), pb::Outcome::Discarded).await.map(drop),
                false => rig.abandon(id(1)).await.map(drop),
            };
            let stop = async {
                tokio::task::yield_now().await;
                latch.open();
            };
            let (reply, ()) = tokio::join!(polled(times, call()), stop);
            call().await.unwrap();
            assert!(rig.gate.is_open());
            assert!(!rig.has_manifest(id(1)), "dropped after {times} polls");
            reply.is_some()
        })
        .await;
    }
}

#[tokio::test]
async fn restore() {
    let source = Rig::holding(&["a", "b"]).await;
    let shard = source.checkpoint(id(1), &["a", "b"]).await;
    at_every_await(1, |times| {
        let rig = source.beside(0);
        let request = rig.restore_request(id(2), id(1), &["a", "b"], std::slice::from_ref(&shard));
        async move {
            let latch = rig.owner.slow_down();
            let read = async {
                tokio::task::yield_now().await;
                latch.open();
            };
            let (reply, ()) = tokio::join!(polled(times, rig.restore(request.clone())), read);
            let retry = rig.restore(request).await.unwrap();
            assert_eq!(retry.staged, 2, "dropped after {times} polls");
            if let Some(reply) = &reply {
                assert_eq!(reply.as_ref().unwrap(), &retry);
            }
            assert_eq!(rig.keep(id(2)).await.unwrap().activated, 2);
            reply.is_some()
        }
    })
    .await;
}

#[tokio::test]
async fn retire() {
    at_every_await(1, |times| async move {
        let rig = Rig::holding(&["a"]).await;
        let slow = std::sync::Arc::new(tokio::sync::Notify::new());
        *rig.owner.slow_retire.lock().unwrap() = Some(slow.clone());
        let stop = async {
            tokio::task::yield_now().await;
            slow.notify_one();
        };
        let (reply, ()) = tokio::join!(polled(times, rig.retire(1, &["a"], SOON)), stop);
        if times > 0 {
            // The task that the dropped call began ends by itself.
            until("retired", || !rig.owner.retired.lock().unwrap().is_empty()).await;
        }
        *rig.owner.slow_retire.lock().unwrap() = None;
        slow.notify_waiters();
        assert_eq!(rig.retire(1, &["a"], SOON).await.unwrap().unfinished, []);
        assert_eq!(rig.owner.get(&episode("a")), None);
        reply.is_some()
    })
    .await;
}

#[tokio::test]
async fn an_abandon_answers_whoever_waits_for_that_id() {
    let rig = Rig::holding(&["a"]).await;
    let busy = rig.gate.enter(&episode("a"), "tool").await.unwrap();
    let give_up = async {
        tokio::task::yield_now().await;
        rig.abandon(id(1)).await.unwrap();
    };
    let (reply, ()) = tokio::join!(rig.prepare(id(1)), give_up);
    refused(reply, Reason::StaleCheckpoint);
    drop(busy);
    assert!(rig.gate.is_open());
}
