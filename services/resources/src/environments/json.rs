//! Reading what models and task files wrote: what does not read becomes a message that says what would.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::environment::{TaskError, ToolOutcome};

/// A tool's arguments. Nothing at all reads as an empty object, as some models write it for a tool without arguments.
pub(super) fn arguments<'a, T: Deserialize<'a>, S>(
    tool: &str,
    raw: &'a [u8],
    example: &str,
) -> Result<T, ToolOutcome<S>> {
    let raw = if raw.trim_ascii().is_empty() { b"{}" } else { raw };
    serde_json::from_slice(raw).map_err(|error| {
        ToolOutcome::failed(format!(
            "the arguments of {tool} do not read: {error}; write for example {example}"
        ))
    })
}

/// The environment's own fields of a task row.
pub(super) fn task<'a, T: Deserialize<'a>>(raw: &'a [u8], needs: &str) -> Result<T, TaskError> {
    serde_json::from_slice(raw).map_err(|error| TaskError {
        field: "task",
        message: format!("{error}; the environment needs {needs} beside responses_create_params"),
    })
}

/// A function call among a response's output items.
#[derive(Deserialize)]
pub(super) struct FunctionCall {
    #[serde(rename = "type")]
    kind: String,
    /// The tool.
    pub(super) name: String,
    /// JSON, if the model was right.
    pub(super) arguments: String,
}

/// The function calls of a response, in order. Items of other kinds are passed over.
pub(super) fn function_calls(response: &[u8]) -> Result<Vec<FunctionCall>, TaskError> {
    #[derive(Deserialize)]
    struct Response<'a> {
        #[serde(borrow)]
        output: Vec<&'a RawValue>,
    }
    let response: Response<'_> = serde_json::from_slice(response).map_err(|error| TaskError {
        field: "response",
        message: format!("{error}; expected a Responses object with a list `output`"),
    })?;
    Ok(response
        .output
        .iter()
        .filter_map(|item| serde_json::from_str::<FunctionCall>(item.get()).ok())
        .filter(|call| call.kind == "function_call")
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_function_calls_are_listed_and_in_order() {
        let response = br#"{"output": [
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "name": "a", "arguments": "{\"n\":1}", "call_id": "1"},
            {"type": "function_call_output", "call_id": "1", "output": "{}"},
            {"type": "custom", "name": "b", "arguments": ""},
            {"type": "function_call", "name": "b", "arguments": "no json"},
            7, null, "text"
        ], "usage": {"weird": 1e400}}"#;
        let calls = function_calls(response).unwrap();
        let names: Vec<_> = calls
            .iter()
            .map(|call| (call.name.as_str(), call.arguments.as_str()))
            .collect();
        assert_eq!(names, [("a", "{\"n\":1}"), ("b", "no json")]);
    }

    #[test]
    fn a_response_without_output_is_refused() {
        let refused = function_calls(b"{}").err().unwrap();
        assert_eq!(refused.field, "response");
    }
}
