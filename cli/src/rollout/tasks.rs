//! A task file: one JSON object a line. What is wrong with a row is said by line and field, and stops no other row.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use belay_core::ids::RolloutId;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// One row that can be run.
#[derive(Clone, Debug)]
pub struct Task {
    /// Where it stands in the file, from 1.
    pub line: usize,
    /// Its own `rollout_id`, or made of the file's name and the line.
    pub rollout: RolloutId,
    /// The resources server that seeds and verifies it.
    pub environment: String,
    /// The row as it stands in the file.
    pub row: Bytes,
}

/// One row that cannot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRow {
    /// Where it stands in the file, from 1.
    pub line: usize,
    /// Which field, which rule, what to do.
    pub problem: String,
}

/// A task file, read.
#[derive(Default, Debug)]
pub struct TaskFile {
    /// The rows that can be run.
    pub tasks: Vec<Task>,
    /// The others.
    pub bad: Vec<BadRow>,
}

/// The fields that Belay itself looks at; all others are the environment's own.
#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow)]
    responses_create_params: Option<&'a RawValue>,
    rollout_id: Option<serde_json::Value>,
    environment: Option<serde_json::Value>,
}

/// Reads a file. `environment` is for rows that name none; `known` are the environments of the mesh.
pub fn read(path: &Path, environment: Option<&str>, known: &[String]) -> anyhow::Result<TaskFile> {
    let text = fs::read(path).with_context(|| format!("the task file {} cannot be read", path.display()))?;
    Ok(parse(&text, &stem(path), environment, known))
}

fn parse(text: &[u8], stem: &str, environment: Option<&str>, known: &[String]) -> TaskFile {
    let mut file = TaskFile::default();
    let mut seen = BTreeSet::new();
    for (number, row) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = number + 1;
        if row.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match task(row, line, stem, environment, known) {
            Ok(task) if !seen.insert(task.rollout.clone()) => file.bad.push(BadRow {
                line,
                problem: format!("rollout_id: {:?} stands on an earlier line too; each row needs its own", task.rollout),
            }),
            Ok(task) => file.tasks.push(task),
            Err(problem) => file.bad.push(BadRow { line, problem }),
        }
    }
    file
}

fn task(row: &[u8], line: usize, stem: &str, environment: Option<&str>, known: &[String]) -> Result<Task, String> {
    let read: Row = serde_json::from_slice(row).map_err(|error| format!("is not a JSON object: {error}"))?;
    let params = read
        .responses_create_params
        .ok_or("responses_create_params: is missing; it is what an OpenAI Responses call takes, with `input` and `tools`")?;
    if !params.get().starts_with('{') {
        return Err("responses_create_params: is not an object".into());
    }
    let rollout = match read.rollout_id {
        None => RolloutId::new(&format!("{stem}-{line}")),
        Some(serde_json::Value::String(id)) => RolloutId::new(&id),
        Some(other) => return Err(format!("rollout_id: {other} is not a string")),
    };
    let environment = match read.environment {
        Some(serde_json::Value::String(name)) => name,
        Some(other) => return Err(format!("environment: {other} is not a string")),
        None => environment
            .ok_or("environment: neither the row nor --environment names one")?
            .to_owned(),
    };
    if !known.contains(&environment) {
        return Err(format!("environment: {environment:?} is none of this mesh's: {}", known.join(", ")));
    }
    Ok(Task {
        line,
        rollout: rollout.map_err(|refusal| refusal.message)?,
        environment,
        row: Bytes::copy_from_slice(row.trim_ascii()),
    })
}

/// The file's name without its ending, made legal as the head of a rollout id.
fn stem(path: &Path) -> String {
    let name = PathBuf::from(path).file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let legal: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' })
        .skip_while(|c| !c.is_ascii_alphanumeric())
        .take(100)
        .collect();
    if legal.is_empty() { "task".into() } else { legal }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<String> {
        vec!["counter".into(), "weather".into()]
    }

    #[test]
    fn rows_are_read_as_they_stand() {
        let text = br#"{"responses_create_params": {"input": "hi"}, "initial_count": 12345678901234567890123, "x": 1e400}

  {"rollout_id": "mine", "environment": "weather", "responses_create_params": {}}
"#;
        let file = parse(text, "f", Some("counter"), &known());
        assert_eq!(file.bad, []);
        let seen: Vec<_> =
            file.tasks.iter().map(|t| (t.line, t.rollout.as_str().to_owned(), t.environment.as_str())).collect();
        assert_eq!(seen, [(1, "f-1".to_owned(), "counter"), (3, "mine".to_owned(), "weather")]);
        assert!(file.tasks[0].row.ends_with(br#""x": 1e400}"#));
        assert!(file.tasks[1].row.starts_with(br#"{"rollout_id""#));
    }

    #[test]
    fn a_bad_row_is_named_and_stops_no_other() {
        let rows = [
            (r#"{"responses_create_params": {}"#, "is not a JSON object"),
            ("[]", "is not a JSON object"),
            ("{}", "responses_create_params: is missing"),
            (r#"{"responses_create_params": []}"#, "responses_create_params: is not an object"),
            (r#"{"responses_create_params": {}, "rollout_id": "a/b"}"#, "is not a rollout id"),
            (r#"{"responses_create_params": {}, "rollout_id": 7}"#, "rollout_id: 7 is not a string"),
            (r#"{"responses_create_params": {}, "environment": "chess"}"#, "none of this mesh's: counter, weather"),
            (r#"{"responses_create_params": {}, "rollout_id": "twice"}"#, ""),
            (r#"{"responses_create_params": {}, "rollout_id": "twice"}"#, "stands on an earlier line too"),
        ];
        let text = rows.map(|(row, _)| row).join("\n");
        let file = parse(text.as_bytes(), "f", Some("counter"), &known());
        assert_eq!(file.tasks.len(), 1);
        let expected = rows.iter().enumerate().filter(|(_, (_, problem))| !problem.is_empty());
        for (bad, (number, (_, problem))) in file.bad.iter().zip(expected) {
            assert_eq!(bad.line, number + 1);
            assert!(bad.problem.contains(problem), "{bad:?} should say {problem:?}");
        }
        assert_eq!(file.bad.len(), rows.len() - 1);
        let none = parse(br#"{"responses_create_params": {}}"#, "f", None, &known());
        assert!(none.bad[0].problem.contains("neither the row nor --environment"), "{none:?}");
    }

    #[test]
    fn any_file_name_makes_a_legal_id() {
        for (name, expected) in [("example.jsonl", "example"), ("-_ä b.jsonl", "b"), ("a b.c.jsonl", "a-b.c"), ("ä", "task")] {
            assert_eq!(stem(Path::new(name)), expected, "{name}");
        }
    }
}
