//! The OpenAI-compatible API.
#![allow(missing_docs)]

mod support;

use belay_fake_backend::ctl::{Fault, FaultKind, Hold, RecordState};
use serde_json::{Value, json};
use support::{BOUND, Backend, chat, long_chat};

fn with(mut body: Value, fields: Value) -> Value {
    let fields = fields.as_object().expect("fields").clone();
    body.as_object_mut().expect("a body").extend(fields);
    body
}

fn ids(of: &Value) -> Vec<u64> {
    let ids = of.as_array().expect("ids").iter();
    ids.map(|id| id.as_u64().expect("an id")).collect()
}

fn texts(events: &[Value], pointer: &str) -> String {
    events
        .iter()
        .filter_map(|e| e.pointer(pointer)?.as_str())
        .collect()
}

fn streamed_ids(events: &[Value]) -> Vec<u64> {
    events
        .iter()
        .filter_map(|e| e.pointer("/choices/0/token_ids"))
        .flat_map(ids)
        .collect()
}

fn streamed_logprobs(events: &[Value]) -> Vec<f64> {
    let entries = events
        .iter()
        .filter_map(|e| e.pointer("/choices/0/logprobs/content/0/logprob"));
    entries.filter_map(Value::as_f64).collect()
}

#[tokio::test]
async fn a_stream_is_the_same_reply_in_pieces() {
    let backend = Backend::start().await;
    let body = with(
        long_chat(),
        json!({ "logprobs": true, "return_token_ids": true, "model": "belay-fake" }),
    );
    let (status, whole) = backend.post("/v1/chat/completions", &body).await;
    assert_eq!(status, 200, "{whole}");
    let streaming = with(
        body,
        json!({ "stream": true, "stream_options": { "include_usage": true } }),
    );
    let (events, done) = backend.stream("/v1/chat/completions", &streaming).await;
    assert!(done);
    let choice = &whole["choices"][0];
    assert_eq!(
        texts(&events, "/choices/0/delta/content"),
        choice["message"]["content"]
    );
    assert_eq!(
        texts(&events, "/choices/0/delta/reasoning_content"),
        choice["message"]["reasoning_content"]
    );
    let call = events
        .iter()
        .find_map(|e| e.pointer("/choices/0/delta/tool_calls/0"))
        .expect("a call");
    assert_eq!(call["function"], choice["message"]["tool_calls"][0]["function"]);
    assert_eq!(call["id"], choice["message"]["tool_calls"][0]["id"]);
    assert_eq!(streamed_ids(&events), ids(&choice["token_ids"]));
    assert_eq!(events[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    let logprobs = choice["logprobs"]["content"].as_array().expect("logprobs");
    assert_eq!(logprobs.len(), ids(&choice["token_ids"]).len());
    let whole_logprobs: Vec<f64> = logprobs.iter().filter_map(|e| e["logprob"].as_f64()).collect();
    assert_eq!(streamed_logprobs(&events), whole_logprobs);
    assert_eq!(texts(&events, "/choices/0/finish_reason"), "tool_calls");
    assert_eq!(events.last().map(|last| &last["usage"]), Some(&whole["usage"]));
    backend.stop().await;
}

#[tokio::test]
async fn a_reply_cut_anywhere_is_continued_by_its_ids() {
    let backend = Backend::start().await;
    let body = with(long_chat(), json!({ "return_token_ids": true, "logprobs": true }));
    let (_, whole) = backend.post("/v1/chat/completions", &body).await;
    let (prompt, reply) = (
        ids(&whole["prompt_token_ids"]),
        ids(&whole["choices"][0]["token_ids"]),
    );
    let (_, text) = backend.post("/detokenize", &json!({ "tokens": reply })).await;
    let text = text["prompt"].as_str().expect("text").to_owned();
    let logprobs = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("logprobs");
    for cut in 0..=reply.len() {
        let begun = [&prompt[..], &reply[..cut]].concat();
        let rest = json!({ "prompt": begun, "max_tokens": 10_000, "return_token_ids": true, "logprobs": 0 });
        let (status, continued) = backend.post("/v1/completions", &rest).await;
        assert_eq!(status, 200, "{continued}");
        let choice = &continued["choices"][0];
        assert_eq!(ids(&choice["token_ids"]), reply[cut..], "cut at {cut}");
        let rest_logprobs = choice["logprobs"]["token_logprobs"].as_array().expect("logprobs");
        assert!(
            rest_logprobs
                .iter()
                .eq(logprobs[cut..].iter().map(|entry| &entry["logprob"]))
        );
        let rest_text = choice["text"].as_str().expect("text");
        assert!(text.ends_with(rest_text), "{rest_text:?}");
        assert_eq!(choice["finish_reason"], "stop");
        let (events, done) = backend
            .stream("/v1/completions", &with(rest, json!({ "stream": true })))
            .await;
        assert!(done);
        assert_eq!(streamed_ids(&events), reply[cut..]);
        assert_eq!(texts(&events, "/choices/0/text"), rest_text);
    }
    backend.stop().await;
}

#[tokio::test]
async fn the_budget_ends_a_reply() {
    let backend = Backend::start().await;
    let body = with(
        long_chat(),
        json!({ "max_completion_tokens": 5, "return_token_ids": true }),
    );
    let (_, reply) = backend.post("/v1/chat/completions", &body).await;
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
    assert_eq!(ids(&reply["choices"][0]["token_ids"]).len(), 5);
    assert_eq!(reply["usage"]["completion_tokens"], 5);
    let prompt = ids(&reply["prompt_token_ids"]);
    let (_, reply) = backend
        .post("/v1/completions", &json!({ "prompt": prompt }))
        .await;
    assert_eq!(reply["usage"]["completion_tokens"], 16, "OpenAI's default");
    backend.stop().await;
}

#[tokio::test]
async fn a_caller_that_goes_away_stops_its_call() {
    let backend = Backend::start().await;
    backend.ctl.hold(Hold::AfterTokensPerCall(3)).await.expect("hold");
    let url = format!("{}/v1/chat/completions", backend.ctl.base());
    for (held, body) in [
        (1, long_chat()),
        (1, with(long_chat(), json!({ "stream": true }))),
    ] {
        let request = backend.http.post(&url).json(&body);
        let caller = tokio::spawn(async move {
            let response = request.send().await;
            // A stream has its head at once: hold on to it, and wait for the rest.
            response.expect("a head").bytes().await
        });
        backend.ctl.wait_held(held, BOUND).await.expect("held");
        caller.abort();
        let calls = || async { backend.ctl.calls().await.expect("calls") };
        let stopped = async {
            while calls()
                .await
                .iter()
                .any(|call| call.state == RecordState::Received)
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(BOUND, stopped).await.expect("it stops");
    }
    let counts = backend.ctl.counts().await.expect("counts");
    assert_eq!((counts.cancelled, counts.held, counts.sampled_tokens), (2, 0, 6));
    backend.stop().await;
}

#[tokio::test]
async fn bad_input_is_told_in_openais_form() {
    let backend = Backend::start().await;
    for (path, body, status, param) in [
        ("/v1/chat/completions", json!({}), 400, Some("body")),
        (
            "/v1/chat/completions",
            json!({ "messages": [] }),
            400,
            Some("messages"),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "robot", "content": "" }] }),
            400,
            Some("messages[0].role"),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            400,
            Some("messages[0].content"),
        ),
        (
            "/v1/chat/completions",
            with(chat("x"), json!({ "max_tokens": 0 })),
            400,
            Some("max_tokens"),
        ),
        (
            "/v1/chat/completions",
            with(chat("x"), json!({ "n": 2 })),
            400,
            Some("n"),
        ),
        (
            "/v1/chat/completions",
            with(chat("x"), json!({ "tools": [{}] })),
            400,
            Some("tools"),
        ),
        (
            "/v1/chat/completions",
            with(chat("x"), json!({ "model": "gpt" })),
            404,
            Some("model"),
        ),
        ("/v1/completions", json!({ "prompt": [] }), 400, Some("prompt")),
        ("/v1/completions", json!({ "prompt": [0] }), 400, Some("prompt")),
        ("/v1/nothing", json!({}), 404, None),
        ("/v1/models", json!({}), 405, None),
        ("/_ctl/hold", json!({ "after": 1 }), 400, Some("body")),
    ] {
        let (got, answer) = backend.post(path, &body).await;
        assert_eq!(got, status, "{path} {body}: {answer}");
        assert_eq!(
            answer["error"]["param"].as_str(),
            param,
            "{path} {body}: {answer}"
        );
        assert!(answer["error"]["message"].is_string() && answer["error"]["type"].is_string());
    }
    assert_eq!(backend.ctl.counts().await.expect("counts").received, 0);
    backend.stop().await;
}

#[tokio::test]
async fn faults_come_by_order() {
    let backend = Backend::start().await;
    let body = with(long_chat(), json!({ "stream": true, "return_token_ids": true }));
    let order = |kind| vec![Fault { kind, times: 1 }];
    backend
        .ctl
        .faults(order(FaultKind::HttpError { status: 503 }))
        .await
        .expect("ordered");
    let (status, answer) = backend.post("/v1/chat/completions", &body).await;
    assert_eq!((status, &answer["error"]["type"]), (503, &json!("server_error")));
    backend
        .ctl
        .faults(order(FaultKind::StreamCut { after_tokens: 4 }))
        .await
        .expect("ordered");
    let (events, done) = backend.stream("/v1/chat/completions", &body).await;
    assert_eq!((streamed_ids(&events).len(), done), (4, false));
    assert_eq!(texts(&events, "/choices/0/finish_reason"), "", "no end is told");
    backend.ctl.faults(order(FaultKind::Hang)).await.expect("ordered");
    let hello = chat("hello");
    let mut hanging = Box::pin(backend.post("/v1/chat/completions", &hello));
    let unanswered = tokio::time::timeout(std::time::Duration::from_millis(100), &mut hanging).await;
    assert!(unanswered.is_err(), "it hangs");
    backend.ctl.faults(Vec::new()).await.expect("ended");
    assert_eq!(hanging.await.0, 200);
    backend.stop().await;
}
