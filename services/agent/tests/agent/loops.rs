//! SeedSession, Invoke, CloseSession, Retire, Forget.

use belay_core::refusal::Reason;
use belay_proto::episode as pb;
use serde_json::Value;
use tempfile::TempDir;

use super::{Fakes, Server, done, seed};

pub(crate) const TWO_CALLS: &str = concat!(
    r#"{"type":"function_call","call_id":"c1","name":"add","arguments":"{\"n\": 1e400}"},"#,
    r#"{"type":"function_call","call_id":"c2","name":"get","arguments":"{}"}"#
);

fn dir() -> TempDir {
    TempDir::new().expect("a directory")
}

#[tokio::test]
async fn the_loop_runs_to_its_answer_and_replies_again_without_a_call() {
    let root = dir();
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::open(&root, &fakes).await;
    let seeded = server.seed(seed(0, 1)).await.expect("seeded");
    assert_eq!(
        server.seed(seed(0, 1)).await,
        Ok(seeded.clone()),
        "the same seed, the same reply"
    );
    assert_eq!(seeded.policy_model.expect("placed").name, "default");

    let reply = done("invoke", server.invoke(0, 1)).await.expect("it answers");
    let calls = [
        "Generate (0, 0)",
        "CallTool (0, 1)",
        "CallTool (0, 2)",
        "Generate (1, 0)",
    ];
    assert_eq!(fakes.calls(), calls);
    assert_eq!(fakes.arguments()[0], r#"{"n": 1e400}"#, "as the model wrote them");
    assert_eq!(
        fakes.request(0),
        r#"{"input": [{"role":"user","content":"go"}], "temperature":1e400 }"#
    );
    let response: Value = serde_json::from_slice(&reply.response).expect("JSON");
    assert_eq!(response["status"], "completed");
    assert_eq!(response["output"].as_array().expect("items").len(), 5);
    assert_eq!(response["output"][2]["output"], r#"{"tool": "add"}"#);
    assert_eq!((reply.model_calls, reply.tool_calls), (2, 2));
    assert_eq!(reply.usage.expect("usage").input_tokens, 20);
    let cursor = reply.cursor.clone().expect("a cursor");
    assert_eq!((cursor.revision, cursor.chain_hash[0]), (2, 2));

    assert_eq!(done("again", server.invoke(0, 1)).await, Ok(reply));
    assert_eq!(fakes.calls(), calls, "nothing is called twice");
    let mismatch = done("other input", server.activate(0, 1, 0, "[]"))
        .await
        .expect_err("refused");
    assert_eq!(mismatch.reason, Reason::OperationMismatch);
    let early = done("out of order", server.activate(0, 1, 2, ""))
        .await
        .expect_err("refused");
    assert_eq!(early.reason, Reason::InvalidRequest);
    let next = done(
        "the next activation",
        server.activate(0, 1, 1, r#"[{"role":"user","content":"more"}]"#),
    );
    assert_eq!(next.await.expect("it answers").model_calls, 3);
    assert_eq!(fakes.calls().last().expect("a call"), "Generate (2, 0)");
}

#[tokio::test]
async fn a_second_invoke_joins_and_a_caller_may_go_away() {
    let root = dir();
    let fakes = Fakes::start(&[]).await;
    let server = Server::open(&root, &fakes).await;
    server.seed(seed(0, 1)).await.expect("seeded");
    fakes.hold("Generate");
    let first = server.invoke(0, 1);
    fakes.until_called("Generate").await;
    let second = server.invoke(0, 1);
    first.abort();
    server
        .control
        .until("the loop runs on", |s| s.counts["loops"] == 1)
        .await;
    fakes.release("Generate");
    done("the second", second).await.expect("it answers");
    assert_eq!(fakes.calls(), ["Generate (0, 0)"]);
}

#[tokio::test]
async fn calls_of_other_lives_are_refused_by_name() {
    let root = dir();
    let fakes = Fakes::start(&[]).await;
    let server = Server::open(&root, &fakes).await;
    let unknown = done("invoke", server.invoke(0, 1)).await.expect_err("not seeded");
    assert_eq!(unknown.reason, Reason::EpisodeUnknown);
    assert_eq!(unknown.get("instance"), Some("agent/default/0"));
    assert_eq!(unknown.get("rollout_id"), Some("r"));
    server.seed(seed(0, 1)).await.expect("seeded");
    let stale = done("invoke", server.invoke(0, 2))
        .await
        .expect_err("another life");
    assert_eq!(stale.reason, Reason::StaleExecution);
    let live = server.seed(seed(1, 3)).await.expect_err("two attempts");
    assert_eq!(live.reason, Reason::AttemptLive);
    for broken in [
        pb::SeedSessionRequest {
            params: "[]".into(),
            ..seed(2, 9)
        },
        pb::SeedSessionRequest {
            resources: None,
            ..seed(2, 9)
        },
        pb::SeedSessionRequest {
            r#ref: None,
            ..seed(2, 9)
        },
        pb::SeedSessionRequest {
            resources_mode: 0,
            ..seed(2, 9)
        },
    ] {
        let refusal = server.seed(broken).await.expect_err("broken");
        assert_eq!(refusal.reason, Reason::InvalidRequest);
        assert!(refusal.get("field").is_some());
    }
}

#[tokio::test]
async fn a_refusal_ends_the_loop_and_leaves_the_session_where_it_was() {
    let root = dir();
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::open(&root, &fakes).await;
    server.seed(seed(0, 1)).await.expect("seeded");
    fakes.refuse("CallTool", Reason::OperationPast);
    let refusal = done("invoke", server.invoke(0, 1)).await.expect_err("refused");
    assert_eq!(refusal.reason, Reason::OperationPast);
    assert_eq!(
        refusal.get("instance"),
        Some("resources/counter/0"),
        "the server that refused"
    );
    assert_eq!(refusal.get("rollout_id"), Some("r"));
    let counts = server.control.status().await.counts;
    assert_eq!((counts["sessions"], counts["loops"]), (1, 0));
}

#[tokio::test]
async fn a_closed_session_stops_its_loop_and_is_gone() {
    let root = dir();
    let fakes = Fakes::start(&[]).await;
    let server = Server::open(&root, &fakes).await;
    server.seed(seed(0, 1)).await.expect("seeded");
    fakes.hold("Generate");
    let running = server.invoke(0, 1);
    fakes.until_called("Generate").await;
    assert_eq!(
        server.close(0, 2).await.expect_err("another life").reason,
        Reason::StaleExecution
    );
    server.close(0, 1).await.expect("closed");
    server.close(0, 1).await.expect("closed again");
    server.close(5, 9).await.expect("one that never was");
    let stopped = done("the Invoke that waited", running).await.expect_err("closed");
    assert_eq!(stopped.reason, Reason::EpisodeUnknown);
    assert_eq!(
        server.seed(seed(0, 1)).await.expect_err("a late seed").reason,
        Reason::EpisodeUnknown
    );
    assert_eq!(server.control.status().await.counts["sessions"], 0);
    server.control.forget("r").await.expect("it is over");
}

#[tokio::test]
async fn a_retired_attempt_is_stopped_and_refused() {
    let root = dir();
    let fakes = Fakes::start(&[TWO_CALLS]).await;
    let server = Server::open(&root, &fakes).await;
    server.seed(seed(0, 1)).await.expect("seeded");
    fakes.hold("CallTool");
    let running = server.invoke(0, 1);
    fakes.until_called("CallTool").await;
    assert_eq!(server.control.retire("r", 0).await.unfinished, vec![]);
    let stale = done("the Invoke that waited", running)
        .await
        .expect_err("retired");
    assert_eq!(stale.reason, Reason::StaleAttempt);
    assert_eq!(
        server.seed(seed(0, 1)).await.expect_err("retired").reason,
        Reason::StaleAttempt
    );
    server.close(0, 1).await.expect("it is gone already");
    assert_eq!(server.control.status().await.counts.values().sum::<u64>(), 0);
    server.seed(seed(1, 2)).await.expect("the next attempt");
    fakes.release("CallTool");
    done("the next attempt", server.invoke(1, 2))
        .await
        .expect("it answers");
}
