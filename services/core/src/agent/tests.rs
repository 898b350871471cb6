use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use uuid::Uuid;

use super::*;
use crate::{
    ids::{Episode, ExecutionId, Instance, Operation, RolloutId},
    parts::{CheckpointMode, Mark, Need},
    refusal::Reason,
};

const PARAMS: &str = r#"{ "input": [{"role":"user","content":"go"}], "temperature": 1e400, "tools": [] }"#;

fn instance(text: &str) -> Instance {
    text.parse().expect("an instance")
}

fn episode(attempt: u32) -> Episode {
    Episode::new(RolloutId::new("r").expect("a rollout id"), attempt)
}

fn life(n: u128) -> ExecutionId {
    ExecutionId(Uuid::from_u128(n))
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn terms(max_steps: u32) -> Terms {
    Terms {
        name: "r".into(),
        params: Params::new(bytes(PARAMS)).expect("legal"),
        resources: instance("resources/counter/0"),
        resources_mode: CheckpointMode::Exported,
        revision: 0,
        policy_model: instance("policy-model/default/0"),
        max_steps,
    }
}

fn call(id: &str, name: &str, arguments: &str) -> String {
    format!(
        r#"{{"type":"function_call","call_id":"{id}","name":"{name}","arguments":{}}}"#,
        items::quoted(arguments)
    )
}

fn message(text: &str) -> String {
    format!(r#"{{"type":"message","role":"assistant","content":[{{"type":"output_text","text":"{text}"}}]}}"#)
}

fn reply(output: &[String], chain: u8) -> ModelReply {
    ModelReply {
        response: bytes(&format!(
            r#"{{"id":"x","model":"fake","created_at":5,"output":[{}]}}"#,
            output.join(",")
        )),
        usage: Usage {
            input_tokens: 10,
            output_tokens: 2,
        },
        chain: [chain; 32],
        truncated: false,
    }
}

fn tool(output: &str, revision: u64) -> ToolReply {
    ToolReply {
        output: bytes(output),
        revision,
    }
}

fn running(max_steps: u32) -> Session {
    match Session::new(terms(max_steps))
        .activate(0, &Bytes::new())
        .expect("in order")
    {
        session::Asked::Begins(session) => *session,
        other => panic!("{other:?}"),
    }
}

fn model_call(session: &Session) -> Operation {
    match session.next() {
        Next::CallModel { operation, .. } => operation,
        other => panic!("{other:?}"),
    }
}

fn response(session: &Session) -> Value {
    let completed = session.parts().completed.as_ref().expect("complete");
    assert_eq!(session.next(), Next::Nothing);
    serde_json::from_slice(&completed.response).expect("the response is JSON")
}

#[test]
fn the_loop_calls_the_model_and_its_tools_in_order_until_an_answer() {
    let mut session = running(10);
    assert_eq!(
        session.next(),
        Next::CallModel {
            operation: Operation::FIRST,
            parent: None
        }
    );
    let output = [
        call("c1", "add", r#"{"n": 1}"#),
        message("hm"),
        call("c2", "get", "{}"),
    ];
    session = session
        .model_replied(Operation::FIRST, &reply(&output, 1))
        .expect("next");
    for (position, name, arguments) in [(0, "add", r#"{"n": 1}"#), (1, "get", "{}")] {
        assert_eq!(
            session.next(),
            Next::CallTool {
                operation: Operation::tool_call(0, position),
                name: name.into(),
                arguments: bytes(arguments)
            }
        );
        session = session
            .tool_replied(Operation::tool_call(0, position), &tool(r#"{"ok":"ä"}"#, 1))
            .expect("next");
    }
    assert_eq!(
        session.next(),
        Next::CallModel {
            operation: Operation::model_call(1),
            parent: Some([1; 32])
        }
    );
    let request: Value = serde_json::from_str(
        &String::from_utf8(session.request().to_vec())
            .expect("text")
            .replace("1e400", "1"),
    )
    .expect("JSON");
    let kinds: Vec<&Value> = request["input"]
        .as_array()
        .expect("items")
        .iter()
        .map(|i| &i["type"])
        .collect();
    assert_eq!(
        kinds,
        [
            &Value::Null,
            &"function_call".into(),
            &"message".into(),
            &"function_call".into(),
            &"function_call_output".into(),
            &"function_call_output".into()
        ]
    );
    assert_eq!(request["input"][4]["call_id"], "c1");
    assert_eq!(request["input"][5]["output"], r#"{"ok":"ä"}"#);

    session = session
        .model_replied(Operation::model_call(1), &reply(&[message("done")], 2))
        .expect("next");
    let response = response(&session);
    assert_eq!(response["status"], "completed");
    assert_eq!(response["output"].as_array().expect("items").len(), 6);
    assert_eq!(response["usage"]["total_tokens"], 24);
    assert_eq!(response["model"], "fake");
    assert_eq!(response["id"], "resp_r_0");
    let parts = session.parts();
    assert_eq!((parts.model_calls, parts.tool_calls), (2, 2));
    assert_eq!(parts.cursor.chain, Some([2; 32]));
    assert_eq!(parts.cursor.operation, Some(Operation::model_call(1)));
}

#[test]
fn a_request_keeps_every_byte_but_the_input() {
    let cases = [
        (
            r#"{"b":1, "input" : "say \ud800" ,"a":12345678901234567890}"#,
            r#"{"b":1, "input" : [{"role":"user","content":"say \ud800"},X] ,"a":12345678901234567890}"#,
        ),
        (r#"{"input":[ ]}"#, r#"{"input":[X]}"#),
        (
            r#"{"input":null,"x":{"input":1}}"#,
            r#"{"input":[X],"x":{"input":1}}"#,
        ),
        (r#" {"x":1e400} "#, r#" {"input":[X],"x":1e400} "#),
        (r#"{ }"#, r#"{"input":[X] }"#),
    ];
    for (raw, expected) in cases {
        let params = Params::new(bytes(raw)).expect(raw);
        let request = params.request(&[bytes("X")]);
        assert_eq!(String::from_utf8_lossy(&request), expected);
        assert_eq!(params.raw(), raw);
    }
    for (raw, field) in [
        ("[]", "responses_create_params"),
        ("{", "responses_create_params"),
        (r#"{"input":7}"#, "responses_create_params.input"),
        (r#"{"input":{}}"#, "responses_create_params.input"),
    ] {
        let refusal = Params::new(bytes(raw)).expect_err(raw);
        assert_eq!(refusal.reason, Reason::InvalidRequest);
        assert_eq!(refusal.get("field"), Some(field));
    }
}

#[test]
fn malformed_arguments_go_back_to_the_model_and_keep_their_place() {
    let output = [
        call("c1", "add", "{oops"),
        call("c2", "add", r#"{"n":2}"#),
        call("c3", "add", "[1]"),
        r#"{"type":"function_call","call_id":"c4","name":"add"}"#.to_owned(),
    ];
    let session = running(10)
        .model_replied(Operation::FIRST, &reply(&output, 1))
        .expect("next");
    let Next::CallTool { operation, .. } = session.next() else {
        panic!("{:?}", session.next());
    };
    assert_eq!(
        operation,
        Operation::tool_call(0, 1),
        "the second call keeps its number"
    );
    let session = session.tool_replied(operation, &tool("2", 1)).expect("next");
    assert_eq!(model_call(&session), Operation::model_call(1));
    let items = &session.parts().items;
    assert_eq!(items.len(), 8);
    for (at, id) in [(4, "c1"), (5, "c2"), (6, "c3"), (7, "c4")] {
        let item: Value = serde_json::from_slice(&items[at]).expect("JSON");
        assert_eq!(
            (&item["call_id"], &item["type"]),
            (&id.into(), &"function_call_output".into())
        );
        let error = item["output"].as_str().expect("text").contains("was not called");
        assert_eq!(error, id != "c2", "{item}");
    }
    assert_eq!(session.parts().tool_calls, 1);
}

#[test]
fn a_reply_of_malformed_calls_only_is_answered_by_the_next_model_call() {
    let session = running(2)
        .model_replied(Operation::FIRST, &reply(&[call("c1", "add", "no")], 1))
        .expect("next");
    assert_eq!(model_call(&session), Operation::model_call(1));
    let session = session
        .model_replied(Operation::model_call(1), &reply(&[call("c2", "", "{}")], 2))
        .expect("next");
    let response = response(&session);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"]["reason"], "max_steps");
}

#[test]
fn max_steps_ends_the_loop_after_the_last_tool() {
    let session = running(1)
        .model_replied(Operation::FIRST, &reply(&[call("c1", "add", "{}")], 1))
        .expect("next");
    let session = session
        .tool_replied(Operation::tool_call(0, 0), &tool("1", 1))
        .expect("next");
    assert_eq!(response(&session)["incomplete_details"]["reason"], "max_steps");
    assert_eq!(response(&session)["output"].as_array().expect("items").len(), 2);
}

#[test]
fn an_empty_a_reasoning_only_and_a_truncated_reply_end_the_loop() {
    let thought = r#"{"type":"reasoning","summary":[]}"#.to_owned();
    for output in [vec![], vec![thought]] {
        let session = running(9)
            .model_replied(Operation::FIRST, &reply(&output, 1))
            .expect("next");
        assert_eq!(response(&session)["status"], "completed");
    }
    let truncated = ModelReply {
        truncated: true,
        ..reply(&[message("ha")], 1)
    };
    let session = running(9)
        .model_replied(Operation::FIRST, &truncated)
        .expect("next");
    assert_eq!(
        response(&session)["incomplete_details"]["reason"],
        "max_output_tokens"
    );
}

#[test]
fn a_reply_that_is_no_response_or_out_of_turn_changes_nothing() {
    let session = running(9);
    for broken in ["", "[]", "{}", r#"{"output":{}}"#, r#"{"output":[}"#] {
        let broken = ModelReply {
            response: bytes(broken),
            ..reply(&[], 1)
        };
        let refusal = session
            .model_replied(Operation::FIRST, &broken)
            .expect_err("broken");
        assert_eq!(refusal.reason, Reason::EngineFailed);
    }
    let early = session.model_replied(Operation::model_call(1), &reply(&[], 1));
    assert_eq!(early.expect_err("out of turn").reason, Reason::Internal);
    let tool = session.tool_replied(Operation::tool_call(0, 0), &tool("", 0));
    assert_eq!(tool.expect_err("out of turn").reason, Reason::Internal);
}

#[test]
fn arguments_and_call_ids_come_back_as_the_model_wrote_them() {
    let item = r#"{"type":"function_call","call_id":"\u0061\ud800","name":"t","arguments":"{\"k\":\"\\ud800\", \"n\":1e400}"}"#;
    let call = items::function_call(item.as_bytes()).expect("a call");
    assert_eq!(call.malformed(), None);
    assert_eq!(
        call.arguments.as_deref(),
        Some(br#"{"k":"\ud800", "n":1e400}"#.as_slice())
    );
    let output = items::function_call_output(&call.call_id, b"x");
    assert!(
        output.starts_with(br#"{"type":"function_call_output","call_id":"\u0061\ud800","#),
        "{output:?}"
    );
    let lone = br#"{"type":"function_call","call_id":"c","name":"t","arguments":"{\"k\":\"\ud800\"}"}"#;
    let call = items::function_call(lone).expect("a call");
    assert_eq!(call.malformed(), None, "a lone surrogate is legal JSON");
}

#[test]
fn a_session_goes_on_from_its_record_at_every_boundary() {
    let output = [
        call("c1", "add", "{}"),
        call("c2", "bad", "x"),
        call("c3", "add", "{}"),
    ];
    let first = running(9);
    let second = first
        .model_replied(Operation::FIRST, &reply(&output, 1))
        .expect("next");
    let third = second
        .tool_replied(Operation::tool_call(0, 0), &tool("1", 1))
        .expect("next");
    let fourth = third
        .tool_replied(Operation::tool_call(0, 2), &tool("2", 2))
        .expect("next");
    for session in [first, second, third, fourth] {
        let again = Session::from_parts(session.parts().clone()).expect("it reads");
        assert_eq!(again.next(), session.next());
        assert_eq!(again.request(), session.request());
    }
    let mut broken = running(9).parts().clone();
    broken.running.as_mut().expect("runs").pending = vec![4];
    assert_eq!(
        Session::from_parts(broken).expect_err("broken").reason,
        Reason::InvalidCheckpoint
    );
}

#[test]
fn activations_are_replied_to_again_and_refused_out_of_order() {
    let session = running(9)
        .model_replied(Operation::FIRST, &reply(&[message("one")], 1))
        .expect("next");
    let input = bytes(r#"[{"role":"user","content":"more"}]"#);
    assert!(matches!(
        session.activate(0, &Bytes::new()),
        Ok(session::Asked::Complete(_))
    ));
    let reason = |number, input: &Bytes| session.activate(number, input).expect_err("refused").reason;
    assert_eq!(reason(0, &input), Reason::OperationMismatch);
    assert_eq!(reason(2, &input), Reason::InvalidRequest);
    assert_eq!(reason(1, &bytes("{}")), Reason::InvalidRequest);

    let Ok(session::Asked::Begins(second)) = session.activate(1, &input) else {
        panic!("the next one begins");
    };
    assert_eq!(second.activate(1, &input), Ok(session::Asked::Runs));
    assert_eq!(
        second.activate(0, &input).expect_err("refused").reason,
        Reason::OperationMismatch
    );
    assert_eq!(
        model_call(&second),
        Operation::model_call(1),
        "turns count over all activations"
    );
    let second = second
        .model_replied(Operation::model_call(1), &reply(&[message("two")], 2))
        .expect("next");
    assert_eq!(response(&second)["output"].as_array().expect("items").len(), 1);
    assert_eq!(response(&second)["id"], "resp_r_1");
}

fn seeded() -> (Sessions, Episode) {
    let mut table = Sessions::new(instance("agent/default/0"));
    table.seed(&episode(1), life(1), terms(9)).expect("seeded");
    (table, episode(1))
}

#[test]
fn a_loop_has_one_driver() {
    let (mut table, e) = seeded();
    let input = Bytes::new();
    assert!(matches!(
        table.activate(&e, life(1), 0, &input),
        Ok(Activation::Drive(_))
    ));
    assert_eq!(table.activate(&e, life(1), 0, &input), Ok(Activation::Join));
    table.ended(&e, life(2));
    assert_eq!(
        table.activate(&e, life(1), 0, &input),
        Ok(Activation::Join),
        "another life's end"
    );
    table.ended(&e, life(1));
    assert!(
        matches!(table.activate(&e, life(1), 0, &input), Ok(Activation::Drive(_))),
        "a loop that failed is taken up from its boundary"
    );
    table
        .model_replied(&e, life(1), Operation::FIRST, &reply(&[], 1))
        .expect("next");
    table.ended(&e, life(1));
    assert!(matches!(
        table.activate(&e, life(1), 0, &input),
        Ok(Activation::Replied(..))
    ));
}

#[test]
fn calls_of_other_lives_and_attempts_are_told_apart() {
    let (mut table, e) = seeded();
    let mut reason = |attempt, n| {
        table
            .seed(&episode(attempt), life(n), terms(9))
            .expect_err("refused")
            .reason
    };
    assert_eq!(reason(1, 2), Reason::StaleExecution);
    assert_eq!(reason(0, 3), Reason::StaleAttempt);
    assert_eq!(reason(2, 3), Reason::AttemptLive);
    table.seed(&e, life(1), terms(9)).expect("the same seed again");
    let none = Bytes::new();
    let unknown = table
        .activate(&episode(2), life(1), 0, &none)
        .expect_err("unknown");
    assert_eq!(unknown.reason, Reason::EpisodeUnknown);
    assert_eq!(unknown.get("instance"), Some("agent/default/0"));
    let stale = table.activate(&e, life(2), 0, &none).expect_err("another life");
    assert_eq!(stale.reason, Reason::StaleExecution);

    assert_eq!(table.close(&episode(7), life(1)), Ok(false));
    assert_eq!(
        table.close(&e, life(2)).expect_err("another life").reason,
        Reason::StaleExecution
    );
    assert_eq!(table.close(&e, life(1)), Ok(false));
    assert_eq!(table.close(&e, life(1)), Ok(false), "again");
    let late = table.seed(&e, life(1), terms(9)).expect_err("a late seed");
    assert_eq!(late.reason, Reason::EpisodeUnknown);
    table.forget(&e.rollout);
    assert_eq!(table.counts(), (0, 0));
}

#[test]
fn a_retired_loop_is_stopped_and_freed_when_it_has_ended() {
    let (mut table, e) = seeded();
    let mark = Mark {
        rollout: e.rollout.clone(),
        attempt: 1,
    };
    table.activate(&e, life(1), 0, &Bytes::new()).expect("driven");
    assert_eq!(table.retire(&mark), vec![life(1)]);
    assert!(table.retiring(&mark));
    let late = table
        .model_replied(&e, life(1), Operation::FIRST, &reply(&[], 1))
        .expect_err("late");
    assert_eq!(late.reason, Reason::StaleAttempt);
    assert_eq!(
        table.may_forget(&e.rollout).expect_err("ending").reason,
        Reason::RetireIncomplete
    );
    table.ended(&e, life(1));
    assert!(!table.retiring(&mark));
    assert_eq!(table.counts(), (0, 0));
    let stale = table.seed(&e, life(1), terms(9)).expect_err("below the mark");
    assert_eq!(
        (stale.reason, stale.get("next_attempt")),
        (Reason::StaleAttempt, Some("2"))
    );
    table
        .seed(&episode(2), life(2), terms(9))
        .expect("the next attempt");
    assert_eq!(
        table.may_forget(&e.rollout).expect_err("lives").reason,
        Reason::RolloutLive
    );
}

#[test]
fn a_capture_holds_the_boundary_whatever_comes_after() {
    let (mut table, e) = seeded();
    table.activate(&e, life(1), 0, &Bytes::new()).expect("driven");
    let (summary, before) = table.snapshot(&[e.clone(), episode(5)]).remove(0);
    assert_eq!(summary.needs[1].need, Need::IfBegun, "no model call was made");
    table
        .model_replied(
            &e,
            life(1),
            Operation::FIRST,
            &reply(&[call("c", "add", "{}")], 1),
        )
        .expect("next");
    assert_eq!(before.parts().items.len(), 0);
    let (summary, after) = table.snapshot(std::slice::from_ref(&e)).remove(0);
    assert_eq!(summary.needs[1].need, Need::Whole);
    assert_eq!(summary.cursor.chain, Some([1; 32]));

    let mut restored = Sessions::new(instance("agent/default/1"));
    let session = Session::clone(&after);
    assert_eq!(restored.activate_restored(&episode(2), life(2), session), vec![]);
    let Ok(Activation::Drive(session)) = restored.activate(&episode(2), life(2), 0, &Bytes::new()) else {
        panic!("an Invoke takes the restored loop up");
    };
    assert!(matches!(session.next(), Next::CallTool { .. }));
    let below = restored.seed(&episode(1), life(1), terms(9)).expect_err("below");
    assert_eq!(
        (below.reason, below.get("next_attempt")),
        (Reason::StaleAttempt, Some("2"))
    );
}

#[test]
fn a_session_beside_a_server_that_cannot_save_is_a_restart() {
    let mut table = Sessions::new(instance("agent/default/0"));
    let restart_only = Terms {
        resources_mode: CheckpointMode::RestartOnly,
        ..terms(9)
    };
    table.seed(&episode(0), life(1), restart_only).expect("seeded");
    let restarts = table.restarts();
    assert_eq!(restarts.len(), 1);
    assert_eq!(restarts[0].instance, instance("resources/counter/0"));
    assert_eq!(
        Arc::strong_count(&table.seed(&episode(0), life(1), terms(9)).expect("again")),
        2
    );
}

#[test]
fn an_agent_that_cannot_save_names_itself_and_a_rollout_is_held_until_its_loop_has_ended() {
    let mut table = Sessions::new(instance("agent/default/0")).with_mode(CheckpointMode::RestartOnly);
    table.seed(&episode(0), life(1), terms(9)).expect("seeded");
    assert_eq!(table.restarts()[0].instance, instance("agent/default/0"));
    let rollout = episode(0).rollout;
    assert_eq!(table.holding(&rollout), Some(episode(0)));
    table
        .activate(&episode(0), life(1), 0, &Bytes::new())
        .expect("driven");
    assert_eq!(
        table.retire_below(&episode(1)),
        [life(1)],
        "its loop is to be stopped"
    );
    assert_eq!(table.retire_below(&episode(0)), [], "nothing is below attempt 0");
    assert_eq!(table.holding(&rollout), Some(episode(0)), "its loop runs yet");
    table.ended(&episode(0), life(1));
    assert_eq!(table.holding(&rollout), None);
}
