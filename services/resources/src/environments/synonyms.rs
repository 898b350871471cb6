//! `synonyms`: look values up, then hand in the list of those that matter.

use std::collections::BTreeSet;

use belay_core::parts::{CheckpointMode, VerifyMode};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::json;
use crate::environment::{Environment, TaskError, ToolCall, ToolOutcome, Verdict};

/// Two tools, no state; the reward is 1.0 if the last list that was handed in is `expected_synonym_values`, else 0.0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Synonyms;

#[derive(Deserialize)]
struct Task {
    expected_synonym_values: Vec<i64>,
    minefield_label_value: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetValue {
    synonym: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Extract {
    synonym_values: Vec<i64>,
}

/// What the verifier saw.
#[derive(Serialize)]
struct Details {
    parsed_synonym_values: Vec<i64>,
    accuracy: bool,
    set_overlap: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_term_minefield_hit: Option<bool>,
    order_instruction_following_failure: bool,
}

fn task(raw: &[u8]) -> Result<Task, TaskError> {
    json::task(raw, "`expected_synonym_values`, a list of integers,")
}

/// The sum of the characters' code points.
fn value(synonym: &str) -> u64 {
    synonym.chars().map(|c| u64::from(u32::from(c))).sum()
}

/// The list of the last `extract_synonym_values` call; none, or one that does not read, is an empty list.
fn handed_in(response: &[u8]) -> Result<Vec<i64>, TaskError> {
    let calls = json::function_calls(response)?;
    let last = calls.iter().rfind(|call| call.name == "extract_synonym_values");
    Ok(last
        .and_then(|call| serde_json::from_str(&call.arguments).ok())
        .map_or_else(Vec::new, |Extract { synonym_values }| synonym_values))
}

fn judge(task: &Task, actual: Vec<i64>) -> (f64, Details) {
    let expected = &task.expected_synonym_values;
    let accuracy = actual == *expected;
    let wanted: BTreeSet<_> = expected.iter().collect();
    let found = actual
        .iter()
        .collect::<BTreeSet<_>>()
        .intersection(&wanted)
        .count();
    let set_overlap = match wanted.len() {
        0 => f64::from(u8::from(actual.is_empty())),
        wanted => found as f64 / wanted as f64,
    };
    let details = Details {
        accuracy,
        set_overlap,
        original_term_minefield_hit: task.minefield_label_value.map(|mine| actual.contains(&mine)),
        order_instruction_following_failure: !accuracy && found == wanted.len() && !wanted.is_empty(),
        parsed_synonym_values: actual,
    };
    (if accuracy { 1.0 } else { 0.0 }, details)
}

impl Synonyms {
    fn apply(call: ToolCall<'_>) -> Result<ToolOutcome<()>, ToolOutcome<()>> {
        match call.name {
            "get_synonym_value" => {
                let GetValue { synonym } =
                    json::arguments(call.name, call.arguments, r#"{"synonym": "Warm"}"#)?;
                Ok(ToolOutcome::Same {
                    output: format!("{{\"synonym_value\": {}}}", value(&synonym)).into(),
                })
            }
            "extract_synonym_values" => {
                let example = r#"{"synonym_values": [711, 407]}"#;
                let Extract { .. } = json::arguments(call.name, call.arguments, example)?;
                Ok(ToolOutcome::Same {
                    output: Bytes::from_static(br#"{"success": true}"#),
                })
            }
            other => Ok(ToolOutcome::unknown_tool(other, Self.tools())),
        }
    }
}

impl Environment for Synonyms {
    type State = ();

    fn name(&self) -> &str {
        "synonyms"
    }

    fn mode(&self) -> CheckpointMode {
        CheckpointMode::Stateless
    }

    fn verify_mode(&self) -> VerifyMode {
        VerifyMode::Replay
    }

    fn tools(&self) -> &[&'static str] {
        &["get_synonym_value", "extract_synonym_values"]
    }

    fn seed(&self, raw: &[u8]) -> Result<(), TaskError> {
        task(raw).map(|_| ())
    }

    async fn call<'a>(&'a self, _state: &'a (), call: ToolCall<'a>) -> ToolOutcome<()> {
        Self::apply(call).unwrap_or_else(|failed| failed)
    }

    async fn verify<'a>(
        &'a self,
        _state: &'a (),
        raw: &'a [u8],
        response: &'a [u8],
    ) -> Result<Verdict, TaskError> {
        let (reward, details) = judge(&task(raw)?, handed_in(response)?);
        let details = serde_json::to_vec(&details).map_err(|error| TaskError {
            field: "response",
            message: error.to_string(),
        })?;
        Ok(Verdict {
            reward,
            details: details.into(),
        })
    }

    fn export(&self, _state: &()) -> Bytes {
        Bytes::new()
    }

    fn export_size(&self, _state: &()) -> u64 {
        0
    }

    fn import(&self, raw: &[u8], _exported: &[u8]) -> Result<(), String> {
        self.seed(raw).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(name: &str, arguments: &str) -> ToolOutcome<()> {
        let call = ToolCall {
            name,
            arguments: arguments.as_bytes(),
            key: "r/0/1/00",
            digest: &[0; 32],
        };
        Synonyms::apply(call).unwrap_or_else(|failed| failed)
    }

    #[test]
    fn values_are_sums_of_code_points() {
        for (synonym, sum) in [
            ("Blazing", 711),
            ("Warm", 407),
            ("Hot", 299),
            ("", 0),
            ("é🔥", 0xe9 + 0x1f525),
        ] {
            assert_eq!(value(synonym), sum, "{synonym}");
        }
        let output = Bytes::from_static(br#"{"synonym_value": 711}"#);
        assert_eq!(
            call("get_synonym_value", r#"{"synonym": "Blazing"}"#),
            ToolOutcome::Same { output }
        );
    }

    #[test]
    fn wrong_calls_get_a_message() {
        for (name, arguments) in [
            ("get_synonym_value", "{}"),
            ("get_synonym_value", r#"{"synonym": 1}"#),
            ("extract_synonym_values", r#"{"synonym_values": ["a"]}"#),
            ("extract_synonym_values", r#"{"synonym_values": 1}"#),
            ("other", "{}"),
        ] {
            let outcome = call(name, arguments);
            assert!(
                matches!(outcome, ToolOutcome::Failed { .. }),
                "{name} {arguments}"
            );
        }
    }

    async fn verdict(task: serde_json::Value, calls: &[(&str, &str)]) -> (f64, serde_json::Value) {
        let output: Vec<_> = calls
            .iter()
            .map(|(name, arguments)| json!({"type": "function_call", "name": name, "arguments": arguments}))
            .collect();
        let response = json!({ "output": output }).to_string();
        let verdict = Synonyms
            .verify(&(), task.to_string().as_bytes(), response.as_bytes())
            .await
            .unwrap();
        (verdict.reward, serde_json::from_slice(&verdict.details).unwrap())
    }

    #[tokio::test]
    async fn the_last_list_counts_and_its_order_matters() {
        let task = json!({"expected_synonym_values": [711, 407], "minefield_label_value": 299});
        let extract = "extract_synonym_values";
        let right = r#"{"synonym_values": [711, 407]}"#;
        let swapped = r#"{"synonym_values": [407, 711]}"#;

        let (reward, details) = verdict(task.clone(), &[(extract, swapped), (extract, right)]).await;
        assert_eq!(reward, 1.0);
        assert_eq!(
            details,
            json!({"parsed_synonym_values": [711, 407], "accuracy": true, "set_overlap": 1.0,
                   "original_term_minefield_hit": false, "order_instruction_following_failure": false})
        );

        let (reward, details) = verdict(task.clone(), &[(extract, right), (extract, swapped)]).await;
        assert_eq!(reward, 0.0);
        assert_eq!(details["order_instruction_following_failure"], true);
        assert_eq!(details["set_overlap"], 1.0);

        let mine = r#"{"synonym_values": [299, 407]}"#;
        let (reward, details) = verdict(task.clone(), &[(extract, mine)]).await;
        assert_eq!(reward, 0.0);
        assert_eq!(details["original_term_minefield_hit"], true);
        assert_eq!(details["set_overlap"], 0.5);
        assert_eq!(details["order_instruction_following_failure"], false);

        for calls in [&[][..], &[("get_synonym_value", right)], &[(extract, "no json")]] {
            let (reward, details) = verdict(task.clone(), calls).await;
            assert_eq!((reward, &details["parsed_synonym_values"]), (0.0, &json!([])));
        }
    }

    #[tokio::test]
    async fn without_a_minefield_there_is_no_such_detail() {
        let task = json!({"expected_synonym_values": []});
        let (reward, details) = verdict(task, &[]).await;
        assert_eq!(reward, 1.0);
        assert_eq!(details.get("original_term_minefield_hit"), None);
    }
}
