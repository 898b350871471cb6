//! The staging worker: keys, joins, cuts and what is left of them.
#![allow(missing_docs)]

mod support;

use belay_mesh::status::from_status;
use belay_proto::worker::{
    CancelRequest, CheckCoordinatesRequest, CutRequest, CutResponse, FreeRollout, FreeRowsRequest,
    ReleaseRequest, SpanState, TokenSpan, cut_answer::Outcome,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use support::{BOUND, Backend, chat, key, long_chat, request};
use tonic::{Code, Status};

use belay_fake_backend::ctl::{Fault, FaultKind, Hold, RecordState};

fn reason(status: &Status) -> String {
    from_status(status)
        .unwrap_or_else(|| panic!("a refusal: {status:?}"))
        .reason
        .to_string()
}

async fn cut(
    backend: &Backend,
    id: &str,
    calls: Vec<belay_proto::worker::CallKey>,
) -> Result<CutResponse, Status> {
    let request = CutRequest {
        checkpoint_id: id.into(),
        client: "policy-model/default/0@life".into(),
        calls,
    };
    Ok(backend.worker.clone().cut(request).await?.into_inner())
}

fn staged(response: &CutResponse, at: usize) -> TokenSpan {
    match &response.answers[at].outcome {
        Some(Outcome::Staged(span)) => span.clone(),
        other => panic!("a prefix, not {other:?}"),
    }
}

async fn check(backend: &Backend, spans: Vec<TokenSpan>) -> Vec<SpanState> {
    let request = CheckCoordinatesRequest { spans };
    let answer = backend
        .worker
        .clone()
        .check_coordinates(request)
        .await
        .expect("states")
        .into_inner();
    answer.states().collect()
}

#[tokio::test]
async fn the_same_conversation_gets_the_same_tokens_in_any_process() {
    let (one, other) = (Backend::start().await, Backend::start().await);
    let first = one
        .generate(request(key("a", 0, 1, 0), &long_chat()))
        .await
        .expect("a reply");
    let second = other
        .generate(request(key("b", 3, 2, 7), &long_chat()))
        .await
        .expect("a reply");
    assert_eq!(first.message, second.message);
    let (first, second) = (first.tokens.expect("a span"), second.tokens.expect("a span"));
    assert_eq!(first.digest, second.digest);
    assert_ne!(first.coordinate, second.coordinate, "each store has an identity");
    let (a, b) = (
        one.tokens(&first).await.expect("a row"),
        other.tokens(&second).await.expect("a row"),
    );
    assert_eq!((a.token_ids, a.logprobs), (b.token_ids, b.logprobs));
    assert_eq!(
        other
            .tokens(&first)
            .await
            .expect_err("another store's row")
            .code(),
        Code::NotFound
    );
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_call_in_flight_is_joined_and_a_finished_one_replies_again() {
    let backend = Backend::start().await;
    backend.ctl.hold(Hold::AfterTokensPerCall(2)).await.expect("held");
    let first = backend.spawn_generate(request(key("r", 0, 1, 0), &chat("hello")));
    backend.ctl.wait_held(1, BOUND).await.expect("it is held");
    let second = backend.spawn_generate(request(key("r", 0, 1, 0), &chat("hello")));
    // The caller's going away does not stop the call.
    first.abort();
    let other = backend
        .generate(request(key("r", 0, 1, 0), &chat("another")))
        .await;
    assert_eq!(reason(&other.expect_err("another request")), "OPERATION_MISMATCH");
    backend.ctl.release().await.expect("released");
    let joined = second.await.expect("no panic").expect("a reply");
    let again = backend
        .generate(request(key("r", 0, 1, 0), &chat("hello")))
        .await
        .expect("a reply");
    assert_eq!(again, joined);
    let calls = backend.ctl.calls().await.expect("calls");
    assert_eq!(calls.len(), 1, "sampled once");
    assert_eq!(
        (calls[0].joined, calls[0].replayed, calls[0].state),
        (1, 1, RecordState::Returned)
    );
    backend.stop().await;
}

#[tokio::test]
async fn a_cut_and_continued_reply_equals_an_undisturbed_one() {
    let seed: u64 =
        std::env::var("BELAY_SEED").map_or_else(|_| rand::random(), |s| s.parse().expect("a number"));
    println!("BELAY_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let backend = Backend::start().await;
    let whole = backend
        .generate(request(key("whole", 0, 1, 0), &long_chat()))
        .await
        .expect("a reply");
    let whole_span = whole.tokens.clone().expect("a span");
    let length = u64::from(whole_span.tokens);
    let expected = backend.tokens(&whole_span).await.expect("a row");
    let mut places = vec![0, 1, length - 1, length];
    places.extend((0..12).map(|_| random.random_range(0..=length)));
    for (round, place) in places.into_iter().enumerate() {
        let rollout = format!("r{round}");
        backend
            .ctl
            .hold(Hold::AfterTokensPerCall(place))
            .await
            .expect("hold");
        let dying = backend.spawn_generate(request(key(&rollout, 0, 1, 0), &long_chat()));
        backend.ctl.wait_held(1, BOUND).await.expect("held");
        let id = format!("00000001-{round:08}");
        let receipt = cut(&backend, &id, vec![key(&rollout, 0, 1, 0)])
            .await
            .expect("a receipt");
        let prefix = staged(&receipt, 0);
        assert_eq!(u64::from(prefix.tokens), place);
        // The generation was not stopped by the cut.
        backend.ctl.release().await.expect("released");
        let undisturbed = dying.await.expect("no panic").expect("a reply");
        assert_eq!(undisturbed.tokens.expect("a span").digest, whole_span.digest);
        let mut restored = request(key(&rollout, 1, 2, 0), &long_chat());
        restored.prefix = Some(prefix.clone());
        let continued = backend.generate(restored).await.expect("a reply");
        assert_eq!(
            (continued.message.clone(), u64::from(continued.prefix_tokens)),
            (whole.message.clone(), place)
        );
        assert_eq!(continued.finish_reason, whole.finish_reason);
        let span = continued.tokens.expect("a span");
        let read = backend.tokens(&span).await.expect("a row");
        assert_eq!(
            (&read.token_ids, &read.logprobs),
            (&expected.token_ids, &expected.logprobs),
            "cut at {place}"
        );
        assert_eq!(
            read.weights.iter().map(|w| u64::from(w.tokens)).sum::<u64>(),
            length
        );
        let log = backend.ctl.calls_of(&rollout).await.expect("calls");
        assert_eq!(
            (log[1].prefix_tokens as u64, log[1].sampled_tokens as u64),
            (place, length - place)
        );
    }
    backend.stop().await;
}

#[tokio::test]
async fn a_continuation_has_the_rest_of_the_budget() {
    let backend = Backend::start().await;
    let mut body = long_chat();
    body["max_tokens"] = 9.into();
    backend.ctl.hold(Hold::AfterTokensPerCall(4)).await.expect("hold");
    let first = backend.spawn_generate(request(key("r", 0, 1, 0), &body));
    backend.ctl.wait_held(1, BOUND).await.expect("held");
    let receipt = cut(&backend, "00000001-00000001", vec![key("r", 0, 1, 0)])
        .await
        .expect("a receipt");
    backend.ctl.release().await.expect("released");
    let first = first.await.expect("no panic").expect("a reply");
    let mut restored = request(key("r", 1, 2, 0), &body);
    restored.prefix = Some(staged(&receipt, 0));
    let second = backend.generate(restored).await.expect("a reply");
    let spans = [first, second].map(|reply| {
        assert_eq!(reply.finish_reason(), belay_proto::episode::FinishReason::Length);
        reply.tokens.expect("a span")
    });
    assert_eq!((spans[0].tokens, &spans[0].digest), (9, &spans[1].digest));
    backend.stop().await;
}

#[tokio::test]
async fn a_prefix_of_another_prompt_or_that_is_gone_is_refused() {
    let backend = Backend::start().await;
    let other = backend
        .generate(request(key("r", 0, 1, 0), &chat("hello")))
        .await
        .expect("a reply");
    let mut wrong = request(key("s", 0, 1, 0), &chat("another prompt"));
    wrong.prefix = other.tokens.clone();
    assert_eq!(
        reason(&backend.generate(wrong.clone()).await.expect_err("wrong")),
        "INVALID_REQUEST"
    );
    if let Some(coordinate) = wrong.prefix.as_mut().and_then(|span| span.coordinate.as_mut()) {
        coordinate.row = "999".into();
    }
    assert_eq!(
        backend.generate(wrong).await.expect_err("gone").code(),
        Code::NotFound
    );
    assert_eq!(
        backend.ctl.counts().await.expect("counts").received,
        1,
        "nothing was sampled for these"
    );
    backend.stop().await;
}

#[tokio::test]
async fn a_receipt_answers_each_call_and_is_repeated() {
    let backend = Backend::start().await;
    backend
        .generate(request(key("done", 0, 1, 0), &chat("hello")))
        .await
        .expect("a reply");
    backend.ctl.hold(Hold::AfterTokensPerCall(3)).await.expect("hold");
    let held = backend.spawn_generate(request(key("held", 0, 1, 0), &chat("hello there")));
    backend.ctl.wait_held(1, BOUND).await.expect("held");
    let listed = vec![
        key("done", 0, 1, 0),
        key("held", 0, 1, 0),
        key("lost", 0, 1, 0),
        key("held", 0, 2, 0),
    ];
    let receipt = cut(&backend, "00000001-00000001", listed.clone())
        .await
        .expect("a receipt");
    let keys: Vec<_> = receipt
        .answers
        .iter()
        .filter_map(|answer| answer.key.clone())
        .collect();
    assert_eq!(keys, listed);
    assert!(matches!(receipt.answers[0].outcome, Some(Outcome::Finished(_))));
    assert_eq!(staged(&receipt, 1).tokens, 3);
    for unknown in [2, 3] {
        assert!(matches!(
            receipt.answers[unknown].outcome,
            Some(Outcome::Failed(_))
        ));
    }
    backend.ctl.release().await.expect("released");
    held.await.expect("no panic").expect("a reply");
    let again = cut(&backend, "00000001-00000001", listed.clone())
        .await
        .expect("a receipt");
    assert_eq!(again, receipt, "as it was, though the call is over now");
    let other = cut(&backend, "00000001-00000001", listed[..1].to_vec()).await;
    assert_eq!(reason(&other.expect_err("another list")), "CHECKPOINT_CONFLICT");
    let twice = cut(
        &backend,
        "00000001-00000002",
        vec![listed[0].clone(), listed[0].clone()],
    )
    .await;
    assert_eq!(reason(&twice.expect_err("listed twice")), "INVALID_REQUEST");
    backend.stop().await;
}

#[tokio::test]
async fn staged_prefixes_outlive_their_rows_until_the_release_which_fences() {
    let backend = Backend::start().await;
    backend.ctl.hold(Hold::AfterTokensPerCall(3)).await.expect("hold");
    let held = backend.spawn_generate(request(key("r", 0, 1, 0), &chat("hello there")));
    backend.ctl.wait_held(1, BOUND).await.expect("held");
    let receipt = cut(&backend, "00000001-00000001", vec![key("r", 0, 1, 0)])
        .await
        .expect("a receipt");
    let prefix = staged(&receipt, 0);
    let free = FreeRowsRequest {
        rollouts: vec![FreeRollout {
            rollout_id: "r".into(),
            through_attempt: 0,
        }],
    };
    backend.worker.clone().free_rows(free).await.expect("freed");
    let stopped = held.await.expect("no panic").expect_err("its rows were freed");
    assert_eq!(reason(&stopped), "STALE_EXECUTION");
    let mut altered = prefix.clone();
    altered.tokens = 2;
    assert_eq!(
        check(&backend, vec![prefix.clone(), altered]).await,
        [SpanState::Whole, SpanState::Altered]
    );
    let release = ReleaseRequest {
        checkpoint_id: "00000001-00000001".into(),
    };
    let mut worker = backend.worker.clone();
    assert_eq!(
        worker
            .release(release.clone())
            .await
            .expect("released")
            .into_inner()
            .freed,
        1
    );
    assert_eq!(
        worker
            .release(release)
            .await
            .expect("released")
            .into_inner()
            .freed,
        0
    );
    assert_eq!(check(&backend, vec![prefix]).await, [SpanState::Missing]);
    let late = cut(&backend, "00000001-00000001", vec![key("r", 0, 1, 0)]).await;
    assert_eq!(reason(&late.expect_err("released")), "STALE_CHECKPOINT");
    let kept = backend.ctl.state().await.expect("state");
    assert_eq!(
        (kept.rollouts, kept.calls, kept.rows, kept.staged_checkpoints),
        (0, 0, 0, 0)
    );
    backend.stop().await;
}

#[tokio::test]
async fn a_higher_attempt_stops_the_lower_but_its_finished_rows_stay() {
    let backend = Backend::start().await;
    let done = backend
        .generate(request(key("r", 0, 1, 0), &chat("first")))
        .await
        .expect("a reply");
    backend.ctl.hold(Hold::AfterCalls(1)).await.expect("hold");
    let dying = backend.spawn_generate(request(key("r", 0, 1, 1), &chat("second")));
    backend.ctl.wait_held(1, BOUND).await.expect("held");
    backend.ctl.hold(Hold::AfterCalls(100)).await.expect("hold");
    backend
        .generate(request(key("r", 1, 2, 1), &chat("second")))
        .await
        .expect("a reply");
    assert_eq!(
        reason(&dying.await.expect("no panic").expect_err("over")),
        "STALE_ATTEMPT"
    );
    let late = backend.generate(request(key("r", 0, 1, 2), &chat("third"))).await;
    assert_eq!(reason(&late.expect_err("late")), "STALE_ATTEMPT");
    let other = backend.generate(request(key("r", 1, 3, 2), &chat("third"))).await;
    assert_eq!(reason(&other.expect_err("another life")), "STALE_EXECUTION");
    assert_eq!(
        check(&backend, vec![done.tokens.expect("a span")]).await,
        [SpanState::Whole]
    );
    let states: Vec<_> = backend
        .ctl
        .calls()
        .await
        .expect("calls")
        .iter()
        .map(|call| call.state)
        .collect();
    assert_eq!(
        states,
        [
            RecordState::Returned,
            RecordState::Cancelled,
            RecordState::Returned
        ]
    );
    backend.stop().await;
}

#[tokio::test]
async fn a_cancel_stops_a_call_and_keeps_a_late_one_from_starting() {
    let backend = Backend::start().await;
    backend.ctl.hold(Hold::AfterCalls(0)).await.expect("hold");
    let running = backend.spawn_generate(request(key("r", 0, 1, 0), &chat("hello")));
    backend.ctl.wait_held(1, BOUND).await.expect("held");
    let mut worker = backend.worker.clone();
    let mut was_running = Vec::new();
    for cancelled in [key("r", 0, 1, 0), key("r", 0, 1, 0), key("new", 5, 1, 0)] {
        let request = CancelRequest { key: Some(cancelled) };
        was_running.push(
            worker
                .cancel(request)
                .await
                .expect("cancelled")
                .into_inner()
                .was_running,
        );
    }
    assert_eq!(was_running, [true, false, false]);
    running.await.expect("no panic").expect_err("cancelled");
    backend.ctl.release().await.expect("released");
    for late in [key("r", 0, 1, 0), key("new", 5, 1, 0)] {
        assert_eq!(
            reason(
                &backend
                    .generate(request(late, &chat("hello")))
                    .await
                    .expect_err("late")
            ),
            "STALE_EXECUTION"
        );
    }
    // A cancelled key has not spoken for its attempt.
    backend
        .generate(request(key("new", 0, 2, 0), &chat("hello")))
        .await
        .expect("a reply");
    assert_eq!(backend.ctl.counts().await.expect("counts").received, 2);
    backend.stop().await;
}

#[tokio::test]
async fn receipts_go_wrong_by_order() {
    let backend = Backend::start().await;
    backend
        .generate(request(key("r", 0, 1, 0), &chat("hello")))
        .await
        .expect("a reply");
    let listed = || vec![key("r", 0, 1, 0)];
    for (kind, answers) in [
        (FaultKind::CutMissing, 0),
        (FaultKind::CutDouble, 2),
        (FaultKind::CutForeign, 2),
    ] {
        backend
            .ctl
            .faults(vec![Fault { kind, times: 1 }])
            .await
            .expect("ordered");
        let wrong = cut(&backend, "00000001-00000001", listed())
            .await
            .expect("a receipt");
        assert_eq!(wrong.answers.len(), answers, "{kind:?}");
        let right = cut(&backend, "00000001-00000001", listed())
            .await
            .expect("a receipt");
        assert_eq!(right.answers.len(), 1, "once only");
    }
    let late = Fault {
        kind: FaultKind::CutLate,
        times: 1,
    };
    backend.ctl.faults(vec![late]).await.expect("ordered");
    let mut waiting = Box::pin(cut(&backend, "00000001-00000001", listed()));
    let unanswered = tokio::time::timeout(std::time::Duration::from_millis(100), &mut waiting).await;
    assert!(unanswered.is_err(), "late");
    backend.ctl.faults(Vec::new()).await.expect("ended");
    assert_eq!(waiting.await.expect("a receipt").answers.len(), 1);
    backend.stop().await;
}

#[tokio::test]
async fn requests_that_break_a_rule_are_refused_by_field() {
    let backend = Backend::start().await;
    let good = request(key("r", 0, 1, 0), &chat("hello"));
    let mut no_key = good.clone();
    no_key.key = None;
    let mut short_digest = good.clone();
    short_digest.request_digest = vec![1, 2].into();
    let mut no_json = good.clone();
    no_json.chat_request = "{\"messages\":".into();
    let mut bad_name = good.clone();
    bad_name.key = Some(key("../r", 0, 1, 0));
    for (bad, expected) in [
        (no_key, "INVALID_REQUEST"),
        (short_digest, "INVALID_REQUEST"),
        (no_json, "INVALID_REQUEST"),
        (bad_name, "INVALID_ID"),
    ] {
        let status = backend.generate(bad).await.expect_err("refused");
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::InvalidArgument, expected),
            "{status:?}"
        );
    }
    assert_eq!(backend.ctl.counts().await.expect("counts").received, 0);
    backend.stop().await;
}
