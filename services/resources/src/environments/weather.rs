//! `weather`: one tool, no state, and it is cold everywhere.

use belay_core::parts::{CheckpointMode, VerifyMode};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::json;
use crate::environment::{Environment, TaskError, ToolCall, ToolOutcome, Verdict};

/// `get_weather`; the reward is always 1.0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetWeather<'a> {
    /// Raw, so that a name with a lone surrogate comes back as it was written.
    #[serde(borrow)]
    city: &'a RawValue,
}

impl Weather {
    fn apply(call: ToolCall<'_>) -> Result<ToolOutcome<()>, ToolOutcome<()>> {
        if call.name != "get_weather" {
            return Ok(ToolOutcome::unknown_tool(call.name, Self.tools()));
        }
        let example = r#"{"city": "Paris"}"#;
        let GetWeather { city } = json::arguments(call.name, call.arguments, example)?;
        let city = city.get();
        let inner = city.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let Some(inner) = inner else {
            return Ok(ToolOutcome::failed(format!(
                "the arguments of get_weather do not read: city is {city}, not a string; write for example {example}"
            )));
        };
        Ok(ToolOutcome::Same {
            output: format!(
                "{{\"city\": {city}, \"weather_description\": \"The weather in {inner} is cold.\"}}"
            )
            .into(),
        })
    }
}

impl Environment for Weather {
    type State = ();

    fn name(&self) -> &str {
        "weather"
    }

    fn mode(&self) -> CheckpointMode {
        CheckpointMode::Stateless
    }

    fn verify_mode(&self) -> VerifyMode {
        VerifyMode::Replay
    }

    fn tools(&self) -> &[&'static str] {
        &["get_weather"]
    }

    fn seed(&self, _task: &[u8]) -> Result<(), TaskError> {
        Ok(())
    }

    async fn call<'a>(&'a self, _state: &'a (), call: ToolCall<'a>) -> ToolOutcome<()> {
        Self::apply(call).unwrap_or_else(|failed| failed)
    }

    async fn verify<'a>(
        &'a self,
        _state: &'a (),
        _task: &'a [u8],
        _response: &'a [u8],
    ) -> Result<Verdict, TaskError> {
        Ok(Verdict {
            reward: 1.0,
            details: Bytes::from_static(b"{}"),
        })
    }

    fn export(&self, _state: &()) -> Bytes {
        Bytes::new()
    }

    fn export_size(&self, _state: &()) -> u64 {
        0
    }

    fn import(&self, _task: &[u8], _exported: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> ToolOutcome<()> {
        let call = ToolCall {
            name,
            arguments: arguments.as_bytes(),
            key: "r/0/1/00",
            digest: &[0; 32],
        };
        Weather::apply(call).unwrap_or_else(|failed| failed)
    }

    #[test]
    fn it_is_cold_in_the_city_as_it_was_written() {
        for (city, described) in [
            ("\"San Francisco\"", "San Francisco"),
            (r#""a \"b\" \\ é""#, r#"a \"b\" \\ é"#),
            (r#""\ud800""#, r"\ud800"),
            ("\"\"", ""),
        ] {
            let expected = format!(
                "{{\"city\": {city}, \"weather_description\": \"The weather in {described} is cold.\"}}"
            );
            let outcome = call("get_weather", &format!("{{\"city\": {city}}}"));
            assert_eq!(
                outcome,
                ToolOutcome::Same {
                    output: expected.into()
                }
            );
        }
    }

    #[test]
    fn wrong_calls_get_a_message() {
        for (name, arguments) in [
            ("get_weather", "{}"),
            ("get_weather", r#"{"city": 7}"#),
            ("get_weather", r#"{"city": null}"#),
            ("get_weather", r#"{"city": "a", "day": "b"}"#),
            ("get_weather", "x"),
            ("forecast", r#"{"city": "a"}"#),
        ] {
            let outcome = call(name, arguments);
            assert!(
                matches!(&outcome, ToolOutcome::Failed { output }
                    if output.windows(11).any(|w| w == b"get_weather")),
                "{name} {arguments}: {outcome:?}"
            );
        }
    }
}
