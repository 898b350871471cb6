//! `/_ctl`: holds, waits, weights, effects.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use belay_fake_backend::ctl::{CtlError, Effect, Hold};
use support::{BOUND, Backend, chat, key, long_chat, request};

#[tokio::test]
async fn the_second_call_of_each_rollout_is_held_and_one_release_frees_all() {
    let backend = Backend::start().await;
    backend
        .ctl
        .hold(Hold::AfterCallsPerRollout(1))
        .await
        .expect("hold");
    for rollout in ["a", "b"] {
        backend
            .generate(request(key(rollout, 0, 1, 0), &chat("one")))
            .await
            .expect("goes through");
    }
    let mut waiting: Vec<_> = ["a", "b"]
        .map(|rollout| backend.spawn_generate(request(key(rollout, 0, 1, 1), &chat("two"))))
        .into();
    backend.ctl.wait_held(2, BOUND).await.expect("both held");
    // Another hold keeps those who wait, though it would let them through.
    backend.ctl.hold(Hold::AfterCalls(4)).await.expect("hold");
    waiting.push(backend.spawn_generate(request(key("c", 0, 1, 0), &chat("three"))));
    let counts = backend.ctl.wait_held(3, BOUND).await.expect("three held");
    assert_eq!((counts.received, counts.returned), (5, 2));
    assert_eq!(backend.ctl.release().await.expect("released"), 3);
    for waiting in waiting {
        waiting.await.expect("no panic").expect("a reply");
    }
    let counts = backend.ctl.counts().await.expect("counts");
    assert_eq!((counts.received, counts.returned, counts.held), (5, 5, 0));
    backend
        .generate(request(key("d", 0, 1, 0), &chat("four")))
        .await
        .expect("the hold is gone");
    backend.stop().await;
}

#[tokio::test]
async fn a_wait_says_when_its_bound_was_hit() {
    let backend = Backend::start().await;
    let waited = backend.ctl.wait_held(1, Duration::from_millis(20)).await;
    assert!(matches!(waited, Err(CtlError::NotReached { .. })), "{waited:?}");
    let url = format!("{}/_ctl/held?at_least=1&timeout_ms=10", backend.ctl.base());
    let answer = backend
        .http
        .get(url)
        .send()
        .await
        .expect("an answer")
        .text()
        .await
        .expect("text");
    assert!(answer.contains("\"reached\":false"), "{answer}");
    backend.stop().await;
}

#[tokio::test]
async fn each_token_has_the_weights_that_sampled_it() {
    let backend = Backend::start().await;
    backend.ctl.hold(Hold::AfterTokensPerCall(5)).await.expect("hold");
    let held = backend.spawn_generate(request(key("r", 0, 1, 0), &long_chat()));
    backend.ctl.wait_held(1, BOUND).await.expect("held");
    backend.ctl.weights("fake-2").await.expect("changed");
    backend.ctl.release().await.expect("released");
    let span = held
        .await
        .expect("no panic")
        .expect("a reply")
        .tokens
        .expect("a span");
    let weights: Vec<_> = span
        .weights
        .iter()
        .map(|run| (run.version.as_str(), run.tokens))
        .collect();
    assert_eq!(weights, [("fake-1", 5), ("fake-2", span.tokens - 5)]);
    backend.stop().await;
}

#[tokio::test]
async fn effects_are_counted_once_and_reset_clears_what_is_counted() {
    let backend = Backend::start().await;
    let reply = backend
        .generate(request(key("r", 0, 1, 0), &chat("hello")))
        .await
        .expect("a reply");
    let effect = Effect {
        rollout_id: "r".into(),
        attempt: 0,
        execution: "e".into(),
        turn: 0,
        index: 1,
        tool: "add".into(),
        external: true,
        key: "r/0/1/00".into(),
        instance: "resources/counter/0".into(),
        revision: 1,
    };
    assert!(backend.ctl.add_effect(&effect).await.expect("added"));
    assert!(!backend.ctl.add_effect(&effect).await.expect("known"));
    assert_eq!(backend.ctl.wait_effects(1, BOUND).await.expect("one").effects, 1);
    assert_eq!(backend.ctl.effects().await.expect("effects"), [effect]);
    backend.ctl.reset().await.expect("reset");
    assert_eq!(backend.ctl.counts().await.expect("counts"), Default::default());
    assert!(backend.ctl.effects().await.expect("effects").is_empty());
    assert!(backend.ctl.calls().await.expect("calls").is_empty());
    backend
        .tokens(&reply.tokens.expect("a span"))
        .await
        .expect("rows stay");
    backend.stop().await;
}
