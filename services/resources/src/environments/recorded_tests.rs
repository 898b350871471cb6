//! Rows that others recorded: where all that a verifier needs is in the row, it must give the recorded reward, and tools
//! must answer as they did there. Skipped, with a note, where the files are not.

use std::path::PathBuf;

use serde_json::Value;

use super::{Counter, Synonyms, Weather, Workplace};
use crate::environment::{Environment, ToolCall, ToolOutcome};

fn root() -> PathBuf {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/gym");
    std::env::var_os("BELAY_GYM_ROWS").map_or_else(|| beside.into(), PathBuf::from)
}

fn rows(environment: &str, file: &str) -> Vec<Value> {
    let path = root().join(environment).join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        Err(error) => {
            println!(
                "skipped: {} cannot be read ({error}); BELAY_GYM_ROWS names the folder",
                path.display()
            );
            Vec::new()
        }
    }
}

fn items<'a>(row: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let output = row["response"]["output"].as_array().unwrap();
    output.iter().filter(move |item| item["type"] == kind)
}

/// Makes the recorded calls in order; the outputs must be the recorded ones, byte for byte.
async fn replay<E: Environment>(environment: &E, mut state: E::State, row: &Value) -> E::State {
    for call in items(row, "function_call") {
        let recorded = items(row, "function_call_output")
            .find(|output| output["call_id"] == call["call_id"])
            .unwrap();
        let made = environment
            .call(
                &state,
                ToolCall {
                    name: call["name"].as_str().unwrap(),
                    arguments: call["arguments"].as_str().unwrap().as_bytes(),
                    key: "r/0/1/00",
                    digest: &[0; 32],
                },
            )
            .await;
        let output = match made {
            ToolOutcome::Changed { output, state: next } => {
                state = next;
                output
            }
            ToolOutcome::Same { output } | ToolOutcome::Failed { output } => output,
        };
        let output = std::str::from_utf8(&output).unwrap();
        assert_eq!(recorded["output"].as_str().unwrap(), output);
    }
    state
}

async fn reward<E: Environment>(
    environment: &E,
    state: &E::State,
    task: &Value,
    row: &Value,
) -> (f64, Value) {
    let (task, response) = (task.to_string(), row["response"].to_string());
    let verdict = environment
        .verify(state, task.as_bytes(), response.as_bytes())
        .await
        .unwrap();
    (verdict.reward, serde_json::from_slice(&verdict.details).unwrap())
}

/// The text of a row's last input item.
fn prompt(row: &Value) -> &Value {
    let input = row["responses_create_params"]["input"].as_array().unwrap();
    &input.last().unwrap()["content"]
}

#[tokio::test]
async fn counter_gives_the_recorded_outputs_and_rewards() {
    let tasks = rows("counter", "example.jsonl");
    for row in rows("counter", "example_rollouts.jsonl") {
        // The recorded rows lack the environment's fields; the example with the same prompt has them.
        let Some(task) = tasks.iter().find(|task| prompt(task) == prompt(&row)) else {
            continue;
        };
        let state = Counter.seed(task.to_string().as_bytes()).unwrap();
        let state = replay(&Counter, state, &row).await;
        assert_eq!(
            reward(&Counter, &state, task, &row).await.0,
            row["reward"].as_f64().unwrap()
        );
    }
}

#[tokio::test]
async fn weather_gives_the_recorded_outputs_and_rewards() {
    for row in rows("weather", "example_rollouts.jsonl") {
        replay(&Weather, (), &row).await;
        assert_eq!(
            reward(&Weather, &(), &row, &row).await.0,
            row["reward"].as_f64().unwrap()
        );
    }
}

#[tokio::test]
async fn synonyms_gives_the_recorded_outputs_rewards_and_details() {
    let task = rows("synonyms", "example.jsonl").into_iter().next();
    for row in rows("synonyms", "example_rollouts.jsonl") {
        // All rows of the file share one expectation, which the recorded ones lack.
        let Some(task) = task.as_ref() else { continue };
        replay(&Synonyms, (), &row).await;
        let (reward, details) = reward(&Synonyms, &(), task, &row).await;
        assert_eq!(reward, row["reward"].as_f64().unwrap());
        for (name, value) in details.as_object().unwrap() {
            assert_eq!(&row[name], value, "{name}");
        }
    }
}

/// With the public tables; nothing where they are not.
fn workplace() -> Option<Workplace> {
    let tables = root().join("workplace/csv");
    if !tables.is_dir() {
        println!(
            "skipped: {} is no directory; BELAY_GYM_ROWS names the folder above",
            tables.display()
        );
        return None;
    }
    Some(Workplace::new(Some(&tables)).unwrap())
}

/// The session after these calls of a ground truth.
async fn applied<'a>(
    workplace: &Workplace,
    task: &Value,
    calls: impl Iterator<Item = &'a Value>,
) -> <Workplace as Environment>::State {
    let mut session = workplace.seed(task.to_string().as_bytes()).unwrap();
    for call in calls {
        let call = ToolCall {
            name: call["name"].as_str().unwrap(),
            arguments: call["arguments"].as_str().unwrap().as_bytes(),
            key: "r/0/1/00",
            digest: &[0; 32],
        };
        match workplace.call(&session, call).await {
            ToolOutcome::Changed { state, .. } => session = state,
            other => panic!("a call of a ground truth changes something: {other:?}"),
        }
    }
    session
}

#[tokio::test]
async fn workplace_gives_the_recorded_outputs() {
    let Some(workplace) = workplace() else { return };
    for row in rows("workplace", "example_rollouts.jsonl") {
        // The recorded rows lack the ground truth; their own calls stand for it.
        let calls: Vec<_> = items(&row, "function_call").cloned().collect();
        let task = serde_json::json!({ "ground_truth": calls });
        let session = workplace.seed(task.to_string().as_bytes()).unwrap();
        let session = replay(&workplace, session, &row).await;
        assert_eq!(reward(&workplace, &session, &task, &row).await.0, 1.0);
    }
}

#[tokio::test]
async fn workplace_rewards_all_calls_of_the_ground_truth_and_no_fewer() {
    let Some(workplace) = workplace() else { return };
    for task in rows("workplace", "example.jsonl") {
        let calls = task["ground_truth"].as_array().unwrap();
        let row = serde_json::json!({ "response": {} });
        let session = applied(&workplace, &task, calls.iter()).await;
        assert_eq!(reward(&workplace, &session, &task, &row).await.0, 1.0);
        let restored = workplace.import(b"", &workplace.export(&session)).unwrap();
        assert_eq!(restored, session);
        for left_out in 0..calls.len() {
            let fewer = calls.iter().enumerate().filter(|(at, _)| *at != left_out);
            let session = applied(&workplace, &task, fewer.map(|(_, call)| call)).await;
            assert_eq!(reward(&workplace, &session, &task, &row).await.0, 0.0);
        }
    }
}

#[test]
fn a_session_of_the_public_workplace_is_some_hundred_kilobytes() {
    let Some(workplace) = workplace() else { return };
    let session = workplace.seed(br#"{"ground_truth": []}"#).unwrap();
    let (size, exported) = (
        workplace.export_size(&session),
        workplace.export(&session).len() as u64,
    );
    assert!((200_000..600_000).contains(&exported), "{exported}");
    assert!(exported.abs_diff(size) < 200, "{size} for {exported}");
}

/// The rows name the tools and their arguments: so must the environment.
#[tokio::test]
async fn workplace_has_the_tools_of_the_rows() {
    let Some(workplace) = workplace() else { return };
    let session = workplace.seed(br#"{"ground_truth": []}"#).unwrap();
    for row in rows("workplace", "example.jsonl") {
        let tools = row["responses_create_params"]["tools"].as_array().unwrap();
        let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, workplace.tools());
        for tool in tools {
            let properties = tool["parameters"]["properties"].as_object().unwrap();
            let arguments: serde_json::Map<_, _> = properties
                .iter()
                .map(|(name, kind)| {
                    (
                        name.clone(),
                        if kind["type"] == "integer" {
                            1.into()
                        } else {
                            "x".into()
                        },
                    )
                })
                .collect();
            let call = ToolCall {
                name: tool["name"].as_str().unwrap(),
                arguments: &serde_json::to_vec(&arguments).unwrap(),
                key: "r/0/1/00",
                digest: &[0; 32],
            };
            if let ToolOutcome::Failed { output } = workplace.call(&session, call).await {
                let output: Value = serde_json::from_slice(&output).unwrap();
                assert_eq!(output.get("error"), None, "{output}");
            }
        }
    }
}
