use belay_core::{
    ids::{Episode, Operation, RolloutId},
    ledger::FinishReason,
};

use super::*;

fn chat(request: &str) -> String {
    text(&to_chat(request.as_bytes(), None).expect("converts").to_bytes())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("JSON is UTF-8")
}

fn refused(request: &str) -> String {
    to_chat(request.as_bytes(), None).expect_err("is refused").field
}

#[test]
fn a_string_and_a_short_message_become_user_messages() {
    assert_eq!(
        chat(r#"{"input":"hi"}"#),
        r#"{"messages":[{"role":"user","content":"hi"}]}"#
    );
    assert_eq!(
        chat(
            r#"{"instructions":"be brief","input":[{"content":"hi","role":"user"},{"role":"developer","content":"x"}]}"#
        ),
        r#"{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"},{"role":"system","content":"x"}]}"#
    );
}

#[test]
fn a_whole_turn_with_tools_becomes_one_assistant_message_and_tool_messages() {
    let request = r#"{"input":[
        {"role":"user","content":[{"type":"input_text","text":"go"}]},
        {"type":"reasoning","id":"rs","summary":[]},
        {"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":"ok","annotations":[]}]},
        {"type":"function_call","id":"fc","call_id":"c1","name":"f","arguments":"{\"a\":1}"},
        {"type":"function_call","id":"fd","call_id":"c2","name":"g","arguments":"{"},
        {"type":"function_call_output","call_id":"c1","output":"one"},
        {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
        {"type":"function_call","call_id":"c3","name":"f","arguments":"{}"}
    ]}"#;
    assert_eq!(
        chat(request),
        concat!(
            r#"{"messages":[{"role":"user","content":"go"},"#,
            r#"{"role":"assistant","content":"ok","tool_calls":["#,
            r#"{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},"#,
            r#"{"id":"c2","type":"function","function":{"name":"g","arguments":"{"}}]},"#,
            r#"{"role":"tool","tool_call_id":"c1","content":"one"},"#,
            r#"{"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c3","type":"function","function":{"name":"f","arguments":"{}"}}]}]}"#,
        )
    );
}

#[test]
fn contents_stay_the_bytes_that_arrived() {
    for odd in [r#""\ud800 \u0041\/""#, r#""é ✓""#] {
        let request = format!(r#"{{"input":[{{"role":"user","content":{odd}}}]}}"#);
        assert_eq!(
            chat(&request),
            format!(r#"{{"messages":[{{"role":"user","content":{odd}}}]}}"#)
        );
    }
    let parameters = r#"{"z":1e400,"a":18446744073709551615, "m":[ -0.0 ]}"#;
    let request = format!(
        r#"{{"input":"x","tools":[{{"strict":true,"name":"f","parameters":{parameters},"type":"function","description":""}}]}}"#
    );
    assert_eq!(
        chat(&request),
        format!(
            r#"{{"messages":[{{"role":"user","content":"x"}}],"tools":[{{"type":"function","function":{{"strict":true,"name":"f","parameters":{parameters},"description":""}}}}]}}"#
        )
    );
}

#[test]
fn sampling_parameters_take_their_chat_names() {
    let request = r#"{"model":"m","input":"x","temperature":0.70,"top_p":1,"max_output_tokens":16,"store":false,"metadata":{},
        "text":{"format":{"type":"json_schema","name":"n","schema":{"b":1,"a":2},"strict":true}}}"#;
    let converted = to_chat(request.as_bytes(), None).expect("converts");
    assert_eq!(
        text(&converted.to_bytes()),
        concat!(
            r#"{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":0.70,"top_p":1,"max_tokens":16,"#,
            r#""response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"b":1,"a":2},"strict":true}}}"#
        )
    );
    assert!(converted.constrained);
    let named = to_chat(br#"{"model":"m","input":"x"}"#, Some("engine's")).expect("converts");
    assert!(text(&named.to_bytes()).starts_with(r#"{"model":"engine's""#));
    assert!(!named.constrained);
}

#[test]
fn a_forced_tool_is_constrained_and_a_free_choice_is_not() {
    let with = |choice: &str| {
        let request =
            format!(r#"{{"input":"x","tool_choice":{choice},"tools":[{{"type":"function","name":"f"}}]}}"#);
        let chat = to_chat(request.as_bytes(), None).expect("converts");
        (text(&chat.to_bytes()), chat.constrained)
    };
    assert!(!with("\"auto\"").1 && !with("\"none\"").1 && with("\"required\"").1);
    let (body, constrained) = with(r#"{"type":"function","name":"f"}"#);
    assert!(constrained && body.contains(r#""tool_choice":{"type":"function","function":{"name":"f"}}"#));
}

#[test]
fn what_cannot_be_converted_is_refused_by_place() {
    for (request, field) in [
        ("[]", "request"),
        ("{", "request"),
        (r#"{"input":3}"#, "input"),
        (r#"{"model":"m"}"#, "request.input"),
        (r#"{"input":[{"role":"robot","content":"x"}]}"#, "input[0].role"),
        (r#"{"input":[{"role":"user"}]}"#, "input[0].content"),
        (r#"{"input":[{"role":"user","content":7}]}"#, "input[0].content"),
        (
            r#"{"input":[{"role":"user","content":[{"type":"input_file"}]}]}"#,
            "input[0].content[0].type",
        ),
        (r#"{"input":["x",{"type":"web_search_call"}]}"#, "input[0]"),
        (r#"{"input":[{"type":"web_search_call"}]}"#, "input[0].type"),
        (
            r#"{"input":[{"type":"function_call","name":"f","arguments":""}]}"#,
            "input[0].call_id",
        ),
        (
            r#"{"input":"x","tools":[{"type":"web_search"}]}"#,
            "tools[0].type",
        ),
        (
            r#"{"input":"x","previous_response_id":"r"}"#,
            "previous_response_id",
        ),
    ] {
        assert_eq!(refused(request), field, "{request}");
    }
}

fn response(message: &str, finish: FinishReason) -> String {
    let episode = Episode::new(RolloutId::new("r").expect("legal"), 3);
    let outcome = Outcome {
        finish,
        input_tokens: 5,
        output_tokens: 2,
        model: "m",
    };
    text(&to_response(&episode, Operation::model_call(1), message.as_bytes(), &outcome).expect("converts"))
}

/// Ids are long and of no interest in most tests.
fn without_ids(response: &str) -> String {
    let episode = Episode::new(RolloutId::new("r").expect("legal"), 3);
    let id = response
        .split('"')
        .find_map(|word| word.strip_prefix("resp_"))
        .expect("has an id");
    assert!(
        response.matches(id).count() >= 2,
        "all ids of {episode} share a stem"
    );
    response.replace(id, "…")
}

#[test]
fn an_answer_becomes_a_message_item() {
    assert_eq!(
        without_ids(&response(
            r#"{"role":"assistant","content":"h\ud800i","tool_calls":null}"#,
            FinishReason::Stop
        )),
        concat!(
            r#"{"id":"resp_…","object":"response","status":"completed","model":"m","output":["#,
            r#"{"type":"message","id":"msg_…","role":"assistant","status":"completed","content":[{"type":"output_text","text":"h\ud800i","annotations":[]}]}"#,
            r#"],"usage":{"input_tokens":5,"output_tokens":2,"total_tokens":7}}"#
        )
    );
    let cut_short = response(r#"{"content":""}"#, FinishReason::Length);
    assert!(
        cut_short.contains(r#""status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}"#)
    );
    assert!(cut_short.contains(r#""text":"""#), "an empty answer is an answer");
}

#[test]
fn tool_calls_become_items_with_the_engines_ids_and_raw_arguments() {
    let message = r#"{"content":null,"tool_calls":[
        {"id":"call_a","type":"function","function":{"name":"f","arguments":"{\"z\": 1e400"}},
        {"id":"","type":"function","function":{"name":"g","arguments":{"b":1,"a":2}}}]}"#;
    let converted = without_ids(&response(message, FinishReason::ToolCalls));
    assert!(converted.contains(concat!(
        r#""output":[{"type":"function_call","id":"fc_…","call_id":"call_a","name":"f","arguments":"{\"z\": 1e400","status":"completed"},"#,
        r#"{"type":"function_call","id":"fc_…_1","call_id":"call_…_1","name":"g","arguments":"{\"b\":1,\"a\":2}","status":"completed"}]"#
    )), "{converted}");
}

#[test]
fn a_reply_goes_back_to_the_engine_as_the_message_that_it_was() {
    let reply = response(
        r#"{"content":"on it","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{ }"}}]}"#,
        FinishReason::ToolCalls,
    );
    let output = &reply
        [reply.find("\"output\":").expect("has output") + 9..reply.find(",\"usage\"").expect("has usage")];
    assert_eq!(
        chat(&format!(r#"{{"input":{output}}}"#)),
        r#"{"messages":[{"role":"assistant","content":"on it","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{ }"}}]}]}"#
    );
}

#[test]
fn ids_depend_on_the_operation_alone() {
    let make = |attempt, turn| {
        let episode = Episode::new(RolloutId::new("r").expect("legal"), attempt);
        let outcome = Outcome {
            finish: FinishReason::Stop,
            input_tokens: 0,
            output_tokens: 0,
            model: "m",
        };
        to_response(&episode, Operation::model_call(turn), b"{}", &outcome).expect("converts")
    };
    assert_eq!(make(0, 1), make(4, 1));
    assert_ne!(make(0, 1), make(0, 2));
}
