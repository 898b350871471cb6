//! The policy-model server over gRPC, before an engine with OpenAI-compatible chat completions.

mod support;

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use axum::{
    Router,
    body::Bytes as Body,
    extract::State as Shared,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use belay_core::refusal::Reason;
use belay_policy_model::{EngineConfig, OpenAiConfig, PolicyModelError, serve};
use belay_proto::checkpoint::Decision;
use bytes::Bytes;
use serde_json::{Value, json};
use support::{Life, Server, finished, generate, reason, spawn, until};
use tokio::sync::watch;

const FIRST: &str = "00000001-00000001";
const SECOND: &str = "00000001-00000002";

/// An engine in this process.
#[derive(Clone)]
struct Fake {
    url: String,
    state: Arc<Mutex<State>>,
    hold: watch::Sender<bool>,
    /// Requests whose connection was closed before their reply.
    gone: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    asked: Vec<(HeaderMap, Value)>,
    /// The next statuses, before it answers.
    fail: Vec<StatusCode>,
}

impl Fake {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let fake = Self {
            url: format!("http://{}/v1/", listener.local_addr().expect("bound")),
            state: Arc::default(),
            hold: watch::channel(false).0,
            gone: Arc::default(),
        };
        let routes = Router::new()
            .route("/v1/chat/completions", post(complete))
            .with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        fake
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics under it")
    }

    fn asked(&self) -> usize {
        self.state().asked.len()
    }

    fn config(&self) -> EngineConfig {
        EngineConfig::OpenAi(OpenAiConfig {
            model: Some("small".into()),
            api_key: Some("secret".into()),
            weights: Some("w3".into()),
            ..OpenAiConfig::new(&self.url)
        })
    }
}

async fn complete(Shared(fake): Shared<Fake>, headers: HeaderMap, body: Body) -> (StatusCode, String) {
    let request: Value = serde_json::from_slice(&body).expect("is JSON");
    let (number, fails) = {
        let mut state = fake.state();
        state.asked.push((headers, request.clone()));
        (state.asked.len(), state.fail.pop())
    };
    if let Some(status) = fails {
        return (status, r#"{"error":"as ordered"}"#.into());
    }
    let mut gone = Gone {
        count: fake.gone.clone(),
        answered: false,
    };
    fake.hold
        .subscribe()
        .wait_for(|hold| !hold)
        .await
        .expect("the engine lives");
    gone.answered = true;
    let mut choice = json!({
        "message": { "role": "assistant", "content": format!("reply {number}") },
        "finish_reason": "stop",
    });
    let mut reply = json!({ "model": "small", "usage": { "prompt_tokens": 2, "completion_tokens": 3 } });
    if request["return_token_ids"] == true {
        reply["prompt_token_ids"] = json!([7, 8]);
        choice["token_ids"] = json!([number, 1, 2]);
        choice["logprobs"] =
            json!({ "content": [{ "logprob": -0.5 }, { "logprob": -0.25 }, { "logprob": 0.0 }] });
    }
    reply["choices"] = json!([choice]);
    (StatusCode::OK, reply.to_string())
}

/// Counts a handler that is dropped before its answer.
struct Gone {
    count: Arc<AtomicU64>,
    answered: bool,
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.count.fetch_add(u64::from(!self.answered), Ordering::Relaxed);
    }
}

#[tokio::test]
async fn tokens_are_carried_with_the_ledger_over_a_restore() {
    let dir = tempfile::tempdir().expect("a directory");
    let fake = Fake::start().await;
    let mut server = Server::open(dir.path(), fake.config()).await;
    let life = Life::new("r", 0);
    let first = generate(&server, life.call(0, &Bytes::new())).await;
    let response: Value = serde_json::from_slice(&first.response).expect("is JSON");
    assert_eq!(response["output"][0]["content"][0]["text"], "reply 1");
    assert_eq!(response["usage"]["total_tokens"], 5);
    {
        let state = fake.state();
        let (headers, body) = &state.asked[0];
        assert_eq!(body["model"], "small");
        assert_eq!(
            body["messages"],
            json!([{ "role": "user", "content": "turn 0 of r" }])
        );
        assert_eq!(headers["authorization"], "Bearer secret");
        assert_eq!(
            (&headers["x-belay-rollout"], &headers["x-belay-turn"]),
            (&"r".parse().expect("legal"), &"0".parse().expect("legal"))
        );
    }
    // The second call is in flight at the capture: this engine cuts nothing, so it is generated anew.
    fake.hold.send_replace(true);
    let _in_flight = spawn(&server, life.call(1, &first.chain_hash));
    until("it is asked", || fake.asked() == 2).await;
    let taken = server.checkpoint(FIRST, &[life.episode()]).await;
    assert_eq!(taken.commit.cut_generations, 0);
    server.stop();
    fake.hold.send_replace(false);

    let mut server = Server::start(dir.path(), fake.config()).await;
    let next = Life::new("r", 1);
    assert_eq!(
        server.restore(SECOND, &taken, std::slice::from_ref(&next)).await,
        0
    );
    let second = generate(&server, next.call(1, &first.chain_hash)).await;
    assert!(!second.kept);
    assert_eq!(fake.asked(), 3);
    let rows = server.trajectory(&next).await;
    assert_eq!(rows.len(), 2);
    assert_eq!(
        (&rows[0].prompt_token_ids[..], &rows[0].token_ids[..]),
        (&[7, 8][..], &[1, 1, 2][..])
    );
    assert_eq!(
        (&rows[1].token_ids[..], &rows[1].logprobs[..]),
        (&[3, 1, 2][..], &[-0.5, -0.25, 0.0][..])
    );
    for row in &rows {
        assert!(row.masked_because.is_empty(), "{}", row.masked_because);
        assert_eq!(
            (
                row.weights.len(),
                row.weights[0].tokens,
                &row.weights[0].version[..]
            ),
            (1, 3, "w3")
        );
    }
    assert_eq!(rows[1].parent, rows[0].chain_hash);
}

#[tokio::test]
async fn without_token_ids_rows_are_masked() {
    let dir = tempfile::tempdir().expect("a directory");
    let fake = Fake::start().await;
    let config = EngineConfig::OpenAi(OpenAiConfig {
        token_ids: false,
        ..OpenAiConfig::new(&fake.url)
    });
    let mut server = Server::open(dir.path(), config).await;
    let life = Life::new("r", 0);
    let reply = generate(&server, life.call(0, &Bytes::new())).await;
    assert_eq!(reply.usage.expect("has usage").output_tokens, 3);
    let rows = server.trajectory(&life).await;
    assert_eq!(rows[0].masked_because, "the engine gives no token ids");
    assert!(rows[0].token_ids.is_empty());
}

#[tokio::test]
async fn a_busy_engine_is_asked_again_and_one_that_refuses_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let fake = Fake::start().await;
    let mut server = Server::open(dir.path(), fake.config()).await;
    let life = Life::new("r", 0);
    fake.state().fail = vec![StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS];
    let reply = generate(&server, life.call(0, &Bytes::new())).await;
    assert_eq!(fake.asked(), 3);
    fake.state().fail = vec![StatusCode::BAD_REQUEST];
    let refused = finished(spawn(&server, life.call(1, &reply.chain_hash)))
        .await
        .expect_err("is refused");
    assert_eq!(reason(&refused), Reason::EngineFailed);
    assert!(refused.message().contains("as ordered"), "{}", refused.message());
    assert_eq!(fake.asked(), 4);
    assert_eq!((server.count("rows").await, server.count("calls").await), (1, 0));
    // It is as if the call had not arrived.
    generate(&server, life.call(1, &reply.chain_hash)).await;
    assert_eq!(server.count("rows").await, 2);
}

#[tokio::test]
async fn a_retired_generation_is_stopped_at_the_engine() {
    let dir = tempfile::tempdir().expect("a directory");
    let fake = Fake::start().await;
    let mut server = Server::open(dir.path(), fake.config()).await;
    let life = Life::new("r", 0);
    fake.hold.send_replace(true);
    let in_flight = spawn(&server, life.call(0, &Bytes::new()));
    until("it is asked", || fake.asked() == 1).await;
    // A checkpoint does not stop it.
    server.prepare(FIRST).await;
    server.until("cuts_pending", 0).await;
    server.resume(FIRST, Decision::Abandon).await;
    assert_eq!(fake.gone.load(Ordering::Relaxed), 0);
    server.retire(&life).await.expect("retires");
    finished(in_flight).await.expect_err("is stopped");
    until("its connection is closed", || {
        fake.gone.load(Ordering::Relaxed) == 1
    })
    .await;
}

#[tokio::test]
async fn an_address_that_is_none_is_said_at_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = support::config(
        dir.path(),
        EngineConfig::OpenAi(OpenAiConfig::new("127.0.0.1:8000/v1")),
    );
    let listeners = belay_mesh::server::Listeners::bind("127.0.0.1:0", "127.0.0.1:0")
        .await
        .expect("binds");
    let error = serve(config, listeners, belay_mesh::shutdown::Shutdown::new())
        .await
        .expect_err("no scheme");
    assert!(matches!(error, PolicyModelError::Engine(_)));
    assert!(error.to_string().contains("127.0.0.1:8000/v1"), "{error}");
}
