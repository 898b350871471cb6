//! `counter`: a number for each session.

use belay_core::parts::{CheckpointMode, VerifyMode};
use bytes::Bytes;
use serde::Deserialize;

use super::json;
use crate::environment::{Environment, TaskError, ToolCall, ToolOutcome, Verdict};

/// A number, seeded from the task's `initial_count`; the reward is 1.0 if it ends as `expected_count`, else 0.0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counter;

#[derive(Deserialize)]
struct Task {
    initial_count: i64,
    expected_count: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Increment {
    count: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

fn task(raw: &[u8]) -> Result<Task, TaskError> {
    json::task(raw, "the integers `initial_count` and `expected_count`")
}

impl Counter {
    fn apply(state: i64, call: ToolCall<'_>) -> Result<ToolOutcome<i64>, ToolOutcome<i64>> {
        match call.name {
            "increment_counter" => {
                let Increment { count } = json::arguments(call.name, call.arguments, r#"{"count": 1}"#)?;
                let state = state.checked_add(count).ok_or_else(|| {
                    ToolOutcome::failed(format!("{state} + {count} is beyond what the counter can hold"))
                })?;
                Ok(ToolOutcome::Changed {
                    output: Bytes::from_static(br#"{"success": true}"#),
                    state,
                })
            }
            "get_counter_value" => {
                let Nothing {} = json::arguments(call.name, call.arguments, "{}")?;
                Ok(ToolOutcome::Same {
                    output: format!("{{\"count\": {state}}}").into(),
                })
            }
            other => Ok(ToolOutcome::unknown_tool(other, Self.tools())),
        }
    }
}

impl Environment for Counter {
    type State = i64;

    fn name(&self) -> &str {
        "counter"
    }

    fn mode(&self) -> CheckpointMode {
        CheckpointMode::Exported
    }

    fn verify_mode(&self) -> VerifyMode {
        VerifyMode::Replay
    }

    fn tools(&self) -> &[&'static str] {
        &["increment_counter", "get_counter_value"]
    }

    fn seed(&self, raw: &[u8]) -> Result<i64, TaskError> {
        task(raw).map(|task| task.initial_count)
    }

    async fn call<'a>(&'a self, state: &'a i64, call: ToolCall<'a>) -> ToolOutcome<i64> {
        Self::apply(*state, call).unwrap_or_else(|failed| failed)
    }

    async fn verify<'a>(
        &'a self,
        state: &'a i64,
        raw: &'a [u8],
        _response: &'a [u8],
    ) -> Result<Verdict, TaskError> {
        let expected = task(raw)?.expected_count;
        Ok(Verdict {
            reward: if *state == expected { 1.0 } else { 0.0 },
            details: format!("{{\"count\": {state}, \"expected_count\": {expected}}}").into(),
        })
    }

    fn export(&self, state: &i64) -> Bytes {
        state.to_string().into()
    }

    fn export_size(&self, _state: &i64) -> u64 {
        20
    }

    fn import(&self, _task: &[u8], exported: &[u8]) -> Result<i64, String> {
        std::str::from_utf8(exported)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| format!("the counter's state is {exported:?}, not a decimal number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(state: i64, name: &str, arguments: &str) -> ToolOutcome<i64> {
        let call = ToolCall {
            name,
            arguments: arguments.as_bytes(),
            key: "r/0/1/00",
            digest: &[0; 32],
        };
        Counter::apply(state, call).unwrap_or_else(|failed| failed)
    }

    fn message(outcome: ToolOutcome<i64>) -> String {
        match outcome {
            ToolOutcome::Failed { output } => {
                let value: serde_json::Value = serde_json::from_slice(&output).unwrap();
                value["error"].as_str().unwrap().to_owned()
            }
            other => panic!("not a failure: {other:?}"),
        }
    }

    #[test]
    fn it_counts() {
        let outcome = call(3, "increment_counter", r#"{"count": -5}"#);
        let ToolOutcome::Changed { output, state } = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((state, &output[..]), (-2, &br#"{"success": true}"#[..]));
        let same = ToolOutcome::Same {
            output: Bytes::from_static(br#"{"count": -2}"#),
        };
        assert_eq!(call(state, "get_counter_value", "{}"), same);
        assert_eq!(call(state, "get_counter_value", ""), same);
    }

    #[test]
    fn wrong_calls_get_a_message_that_the_model_can_read() {
        for arguments in [
            "",
            "{}",
            "[]",
            "no json",
            r#"{"count": "1"}"#,
            r#"{"count": 1.5}"#,
            r#"{"count": 1, "by": 2}"#,
            r#"{"count": 99999999999999999999}"#,
            "{\"count\": 1",
            "\u{0}",
        ] {
            let message = message(call(3, "increment_counter", arguments));
            assert!(
                message.ends_with(r#"write for example {"count": 1}"#),
                "{arguments}: {message}"
            );
        }
        assert!(message(call(i64::MAX, "increment_counter", r#"{"count": 1}"#)).contains("beyond"));
        assert!(message(call(0, "reset", "{}")).contains("increment_counter, get_counter_value"));
        assert!(message(call(0, "get_counter_value", r#"{"x": 1}"#)).contains('x'));
    }

    #[tokio::test]
    async fn the_reward_is_one_exactly_at_the_expected_count() {
        let task = br#"{"responses_create_params": {}, "initial_count": 3, "expected_count": 6, "n": 1e400}"#;
        assert_eq!(Counter.seed(task), Ok(3));
        for (state, reward) in [(6, 1.0), (5, 0.0), (7, 0.0)] {
            let verdict = Counter.verify(&state, task, b"{}").await.unwrap();
            assert_eq!(verdict.reward, reward);
        }
    }

    #[test]
    fn a_task_without_its_fields_is_refused_by_name() {
        let refused = Counter.seed(br#"{"initial_count": 3}"#).unwrap_err();
        assert!(refused.message.contains("expected_count"), "{refused}");
        let refused = Counter
            .seed(br#"{"initial_count": "3", "expected_count": 3}"#)
            .unwrap_err();
        assert!(refused.message.contains("initial_count"), "{refused}");
    }

    #[test]
    fn a_number_reads_back_as_exported() {
        for n in [0, 1, -1, i64::MAX, i64::MIN] {
            assert_eq!(Counter.import(b"", &Counter.export(&n)), Ok(n));
        }
        Counter.import(b"", b"").unwrap_err();
        Counter.import(b"", b"1x").unwrap_err();
    }
}
