//! Published task rows, where they are at hand: the rules must earn the full reward on each, by the API alone.
//!
//! The directory is `BELAY_GYM_DIR`, or `shared/data/gym` beside the repository.
#![allow(missing_docs)]

mod support;

use std::path::PathBuf;

use serde_json::{Value, json};
use support::Backend;

fn rows(environment: &str) -> Vec<Value> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/gym");
    let directory = std::env::var_os("BELAY_GYM_DIR").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    let path = directory.join(environment).join("example.jsonl");
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("no rows at {}: passed over", path.display());
        return Vec::new();
    };
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect()
}

/// Plays the loop of an agent; `tool` answers each call. The calls made, and the last message.
async fn play(
    backend: &Backend,
    row: &Value,
    mut tool: impl FnMut(&str, &Value) -> Value,
) -> (Vec<(String, Value)>, String) {
    let params = &row["responses_create_params"];
    let mut messages = params["input"].as_array().expect("input").clone();
    let tools: Vec<Value> = params["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .map(|tool| json!({ "type": "function", "function": { "name": tool["name"], "parameters": tool["parameters"] } }))
        .collect();
    let mut made = Vec::new();
    for _ in 0..20 {
        let body = json!({ "messages": messages, "tools": tools });
        let (status, reply) = backend.post("/v1/chat/completions", &body).await;
        assert_eq!(status, 200, "{reply}");
        let message = reply["choices"][0]["message"].clone();
        messages.push(message.clone());
        let Some(calls) = message["tool_calls"].as_array() else {
            return (made, message["content"].as_str().expect("text").to_owned());
        };
        assert_eq!(calls.len(), 1, "one call a turn");
        let name = calls[0]["function"]["name"].as_str().expect("a name").to_owned();
        let arguments = calls[0]["function"]["arguments"].as_str().expect("arguments");
        let arguments: Value = serde_json::from_str(arguments).expect("JSON");
        let output = tool(&name, &arguments).to_string();
        messages.push(json!({ "role": "tool", "tool_call_id": calls[0]["id"], "content": output }));
        made.push((name, arguments));
    }
    panic!("the loop does not end: {made:?}");
}

#[tokio::test]
async fn counter() {
    let backend = Backend::start().await;
    for row in rows("counter") {
        let mut count = row["initial_count"].as_i64().expect("a number");
        let (calls, said) = play(&backend, &row, |name, arguments| match name {
            "increment_counter" => {
                count += arguments["count"].as_i64().expect("a number");
                json!({ "success": true })
            }
            _ => json!({ "count": count }),
        })
        .await;
        assert_eq!(
            (calls.len(), count),
            (3, row["expected_count"].as_i64().expect("a number"))
        );
        assert_eq!(said, format!("The count is {count}."));
    }
    backend.stop().await;
}

#[tokio::test]
async fn weather() {
    let backend = Backend::start().await;
    for row in rows("weather") {
        let (calls, said) = play(&backend, &row, |_, _| json!({ "weather": "cold" })).await;
        // No row names another city than "sf", which is also where a user is who names none.
        let expected = ("get_weather".to_owned(), json!({ "city": "San Francisco" }));
        assert_eq!(calls, [expected]);
        assert_eq!(said, r#"The weather in San Francisco: {"weather":"cold"}"#);
    }
    backend.stop().await;
}

#[tokio::test]
async fn synonyms() {
    let backend = Backend::start().await;
    for row in rows("synonyms") {
        let (calls, _) = play(&backend, &row, |name, arguments| match name {
            "get_synonym_value" => {
                let synonym = arguments["synonym"].as_str().expect("a synonym");
                let value: u32 = synonym.chars().map(u32::from).sum();
                json!({ "synonym_value": value })
            }
            _ => json!({ "success": true }),
        })
        .await;
        let (last, arguments) = calls.last().expect("a call");
        assert_eq!(
            (last.as_str(), &arguments["synonym_values"]),
            ("extract_synonym_values", &row["expected_synonym_values"])
        );
    }
    backend.stop().await;
}
