//! The demo's tasks: most of them need the session's state for their reward, so a lost or repeated effect shows.

use bytes::Bytes;
use serde_json::json;

/// The environment and the row of task `n`.
pub fn task(n: u32) -> (&'static str, Bytes) {
    match n % 8 {
        6 => ("weather", weather(n)),
        7 => ("synonyms", synonyms()),
        _ => ("counter", counter(n)),
    }
}

fn tool(name: &str, parameter: Option<(&str, &str)>) -> serde_json::Value {
    let properties = match parameter {
        Some((name, kind)) => json!({name: {"type": kind}}),
        None => json!({}),
    };
    json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": properties}})
}

fn counter(n: u32) -> Bytes {
    let (initial, a, b) = (n % 7, n % 5 + 1, n % 11 + 1);
    let row = json!({
        "responses_create_params": {
            "input": [{"role": "user", "content": format!("add {a} then add {b} then get the count")}],
            "tools": [tool("increment_counter", Some(("count", "integer"))), tool("get_counter_value", None)],
        },
        "initial_count": initial,
        "expected_count": initial + a + b,
    });
    row.to_string().into()
}

fn weather(n: u32) -> Bytes {
    let city = ["Lisbon", "Nairobi", "Osaka", "Quito"][(n as usize / 8) % 4];
    let row = json!({
        "responses_create_params": {
            "input": [{"role": "user", "content": format!("what is it like in {city}?")}],
            "tools": [tool("get_weather", Some(("city", "string")))],
        },
    });
    row.to_string().into()
}

fn synonyms() -> Bytes {
    let list = "The term 'Cold' has a synonym 'Icy'.\nThe term 'Big' has a synonym 'Huge'.\nThe term 'Cold' has a synonym 'Chilly'.";
    let value = |word: &str| word.chars().map(u32::from).sum::<u32>();
    let extract = json!({
        "type": "function", "name": "extract_synonym_values",
        "parameters": {"type": "object", "properties": {"synonym_values": {"type": "array", "items": {"type": "integer"}}}},
    });
    let row = json!({
        "responses_create_params": {
            "input": [
                {"role": "system", "content": format!("Get and extract the values of every synonym.\n\n# Available synonyms\n{list}")},
                {"role": "user", "content": "Why is it so cold at night?"},
            ],
            "tools": [tool("get_synonym_value", Some(("synonym", "string"))), extract],
        },
        "expected_synonym_values": [value("Icy"), value("Chilly")],
    });
    row.to_string().into()
}
