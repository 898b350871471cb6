//! Rows that others recorded: where all that a verifier needs is in the row, it must give the recorded reward, and tools
//! must answer as they did there. Skipped, with a note, where the files are not.

use std::path::PathBuf;

use serde_json::Value;

use super::{Counter, Synonyms, Weather};
use crate::environment::{Environment, ToolCall, ToolOutcome};

fn rows(environment: &str, file: &str) -> Vec<Value> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/gym");
    let root = std::env::var_os("BELAY_GYM_ROWS").unwrap_or_else(|| beside.into());
    let path = PathBuf::from(root).join(environment).join(file);
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
