//! A task file: one JSON object a line. What is wrong with a row is said by line and field, and stops no other row.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use belay_core::{ids::RolloutId, refusal::Refusal};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

/// One row that can be run.
#[derive(Clone, Debug)]
pub struct Row {
    /// Where it stands in the file, from 1.
    pub line: usize,
    /// Its own `rollout_id`; else [`named`](TaskFile::named) makes one.
    own_id: Option<RolloutId>,
    /// The resources server that seeds and verifies it.
    pub environment: String,
    /// The row as it stands in the file.
    pub row: Bytes,
}

/// A row under its rollout id.
#[derive(Clone, Debug)]
pub struct Task {
    /// Where it stands in the file, from 1.
    pub line: usize,
    /// Its own, or made of the file's name, the line and the run.
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
    pub rows: Vec<Row>,
    /// The file's name, as the head of a rollout id.
    stem: String,
    /// The others.
    pub bad: Vec<BadRow>,
}

/// The fields that Belay itself looks at; all others are the environment's own.
#[derive(Deserialize)]
struct Fields<'a> {
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
    let mut file = TaskFile {
        stem: stem.into(),
        ..TaskFile::default()
    };
    let mut seen = BTreeSet::new();
    for (number, row) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = number + 1;
        if row.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match read_row(row, line, environment, known) {
            Ok(Row { own_id: Some(id), .. }) if !seen.insert(id.clone()) => file.bad.push(BadRow {
                line,
                problem: format!("rollout_id: {id:?} stands on an earlier line too; each row needs its own"),
            }),
            Ok(row) => file.rows.push(row),
            Err(problem) => file.bad.push(BadRow { line, problem }),
        }
    }
    file
}

impl TaskFile {
    /// The rows as tasks of a run, each so many times (`id.1`, `id.2` and so on where it is more than once). Rows without an id
    /// of their own get one that holds in this run alone: the same file can be run again in the same mesh, and two files can bear
    /// the same name.
    pub fn named(self, run: &str, repeat: u32) -> Result<Vec<Task>, Refusal> {
        let task = |round: u32, row: &Row| {
            let id = match &row.own_id {
                Some(id) => id.to_string(),
                None => format!("{}-{}-{run}", self.stem, row.line),
            };
            let rollout = if repeat > 1 {
                RolloutId::new(&format!("{id}.{round}"))
            } else {
                RolloutId::new(&id)
            };
            Ok(Task {
                line: row.line,
                rollout: rollout?,
                environment: row.environment.clone(),
                row: row.row.clone(),
            })
        };
        (1..=repeat)
            .flat_map(|round| self.rows.iter().map(move |row| (round, row)))
            .map(|(n, row)| task(n, row))
            .collect()
    }
}

fn read_row(row: &[u8], line: usize, environment: Option<&str>, known: &[String]) -> Result<Row, String> {
    let read: Fields =
        serde_json::from_slice(row).map_err(|error| format!("is not a JSON object: {error}"))?;
    let params = read
        .responses_create_params
        .ok_or("responses_create_params: is missing; it is what an OpenAI Responses call takes, with `input` and `tools`")?;
    if !params.get().starts_with('{') {
        return Err("responses_create_params: is not an object".into());
    }
    let own_id = match read.rollout_id {
        None => None,
        Some(serde_json::Value::String(id)) => Some(RolloutId::new(&id).map_err(|refusal| refusal.message)?),
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
        return Err(format!(
            "environment: {environment:?} is none of this mesh's: {}",
            known.join(", ")
        ));
    }
    Ok(Row {
        line,
        own_id,
        environment,
        row: Bytes::copy_from_slice(row.trim_ascii()),
    })
}

/// The file's name without its ending, made legal as the head of a rollout id.
fn stem(path: &Path) -> String {
    let name = PathBuf::from(path)
        .file_stem()
        .map(|s| s.to_string_lossy().into_owned())
        .unwrap_or_default();
    let legal: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
                c
            } else {
                '-'
            }
        })
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
        let tasks = file.named("r", 1).unwrap();
        let seen: Vec<_> = tasks
            .iter()
            .map(|t| (t.line, t.rollout.as_str().to_owned(), t.environment.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (1, "f-1-r".to_owned(), "counter"),
                (3, "mine".to_owned(), "weather")
            ]
        );
        assert!(tasks[0].row.ends_with(br#""x": 1e400}"#));
        assert!(tasks[1].row.starts_with(br#"{"rollout_id""#));
    }

    #[test]
    fn rows_are_repeated_round_by_round_under_ids_of_their_own() {
        let text = br#"{"responses_create_params": {}, "rollout_id": "a"}
{"responses_create_params": {}}"#;
        let tasks = parse(text, "f", Some("counter"), &known()).named("r", 2).unwrap();
        let ids: Vec<_> = tasks.iter().map(|task| task.rollout.as_str()).collect();
        assert_eq!(ids, ["a.1", "f-2-r.1", "a.2", "f-2-r.2"]);
    }

    #[test]
    fn a_bad_row_is_named_and_stops_no_other() {
        let rows = [
            (r#"{"responses_create_params": {}"#, "is not a JSON object"),
            ("[]", "is not a JSON object"),
            ("{}", "responses_create_params: is missing"),
            (
                r#"{"responses_create_params": []}"#,
                "responses_create_params: is not an object",
            ),
            (
                r#"{"responses_create_params": {}, "rollout_id": "a/b"}"#,
                "is not a rollout id",
            ),
            (
                r#"{"responses_create_params": {}, "rollout_id": 7}"#,
                "rollout_id: 7 is not a string",
            ),
            (
                r#"{"responses_create_params": {}, "environment": "chess"}"#,
                "none of this mesh's: counter, weather",
            ),
            (r#"{"responses_create_params": {}, "rollout_id": "twice"}"#, ""),
            (
                r#"{"responses_create_params": {}, "rollout_id": "twice"}"#,
                "stands on an earlier line too",
            ),
        ];
        let text = rows.map(|(row, _)| row).join("\n");
        let file = parse(text.as_bytes(), "f", Some("counter"), &known());
        assert_eq!(file.rows.len(), 1);
        let expected = rows
            .iter()
            .enumerate()
            .filter(|(_, (_, problem))| !problem.is_empty());
        for (bad, (number, (_, problem))) in file.bad.iter().zip(expected) {
            assert_eq!(bad.line, number + 1);
            assert!(bad.problem.contains(problem), "{bad:?} should say {problem:?}");
        }
        assert_eq!(file.bad.len(), rows.len() - 1);
        let none = parse(br#"{"responses_create_params": {}}"#, "f", None, &known());
        assert!(
            none.bad[0].problem.contains("neither the row nor --environment"),
            "{none:?}"
        );
    }

    #[test]
    fn any_file_name_makes_a_legal_id() {
        for (name, expected) in [
            ("example.jsonl", "example"),
            ("-_ä b.jsonl", "b"),
            ("a b.c.jsonl", "a-b.c"),
            ("ä", "task"),
        ] {
            assert_eq!(stem(Path::new(name)), expected, "{name}");
        }
    }
}
