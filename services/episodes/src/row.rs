//! What a task row must have: everything else in it is the environment's own.

use belay_core::agent::Params;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::EpisodeError;

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    responses_create_params: Option<&'a RawValue>,
}

/// The row's `responses_create_params`, as they are. INVALID_REQUEST names the field that is not as it must be.
pub(crate) fn params(task: &Bytes) -> Result<Bytes, EpisodeError> {
    let wrong = |field, what: String| EpisodeError::Field { field, what };
    if !belay_core::agent::items::is_object(task) {
        return Err(wrong(
            "task",
            "is not a JSON object; send the task row as it is".into(),
        ));
    }
    let row: Row<'_> =
        serde_json::from_slice(task).map_err(|error| wrong("task", format!("does not read: {error}")))?;
    let params = row.responses_create_params.ok_or_else(|| {
        wrong(
            "task.responses_create_params",
            "is missing; it holds the OpenAI Responses request of the task".into(),
        )
    })?;
    let params = task.slice_ref(params.get().as_bytes());
    Params::new(params.clone())?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use belay_core::refusal::Refusal;

    use super::*;

    fn field(task: &'static str) -> String {
        let refusal: Refusal = params(&Bytes::from_static(task.as_bytes()))
            .expect_err(task)
            .into();
        refusal.get("field").expect("a field").to_owned()
    }

    #[test]
    fn a_row_is_an_object_with_params_and_anything_beside() {
        let row =
            r#"{"expected":1e400,"responses_create_params": { "input": [ ] },"n":12345678901234567890}"#;
        assert_eq!(
            params(&Bytes::from_static(row.as_bytes())).expect("legal"),
            r#"{ "input": [ ] }"#
        );
        for bad in ["", "[]", "{", "7", r#"{"a":1} x"#] {
            assert_eq!(field(bad), "task", "{bad}");
        }
        assert_eq!(field(r#"{"a":1}"#), "task.responses_create_params");
        assert_eq!(
            field(r#"{"responses_create_params":[]}"#),
            "responses_create_params"
        );
        assert_eq!(
            field(r#"{"responses_create_params":{"input":1}}"#),
            "responses_create_params.input"
        );
    }
}
