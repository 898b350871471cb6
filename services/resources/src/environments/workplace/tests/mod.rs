//! Every tool: a result, a row that is not there, an argument that is missing. Here the environment as a whole.

mod analytics;
mod calendar;
mod customers;
mod email;
mod project;

use serde_json::{Value, json};

use super::*;

fn call(workplace: &Workplace, session: &mut Session, name: &str, arguments: Value) -> Result<Value, Value> {
    let read = |output: Bytes| -> Value { serde_json::from_slice(&output).unwrap() };
    match workplace.apply(session, name, arguments.to_string().as_bytes()) {
        ToolOutcome::Changed { output, state } => {
            assert_ne!(*session, state, "{name}");
            *session = state;
            Ok(read(output)["output"].take())
        }
        ToolOutcome::Same { output } => Ok(read(output)["output"].take()),
        ToolOutcome::Failed { output } => {
            let mut output = read(output);
            let key = if output.get("error").is_some() {
                "error"
            } else {
                "output"
            };
            Err(output[key].take())
        }
    }
}

/// A desk: an environment with a session of it.
struct Desk(Workplace, Session);

impl Desk {
    fn new() -> Self {
        let workplace = Workplace::new(None).unwrap();
        let session = workplace.seed(br#"{"ground_truth": []}"#).unwrap();
        Self(workplace, session)
    }

    #[track_caller]
    fn says(&mut self, name: &str, arguments: Value, expected: Value) {
        let said = call(&self.0, &mut self.1, name, arguments);
        assert_eq!(said, Ok(expected), "{name}");
    }

    #[track_caller]
    fn refuses(&mut self, name: &str, arguments: Value, expected: &str) {
        let said = call(&self.0, &mut self.1, name, arguments);
        assert_eq!(said, Err(expected.into()), "{name}");
    }

    #[track_caller]
    fn finds(&mut self, name: &str, arguments: Value) -> Value {
        call(&self.0, &mut self.1, name, arguments).unwrap()
    }
}

fn ids(found: &Value, rows: &str, id: &str) -> Vec<String> {
    let rows = if rows.is_empty() { found } else { &found[rows] };
    let rows = rows.as_array().unwrap();
    rows.iter()
        .map(|row| row[id].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn there_are_27_tools_in_the_order_of_the_rows() {
    let names = Desk::new().0.names;
    assert_eq!(names.len(), 27);
    assert_eq!(names[0], "company_directory_find_email_address");
    assert_eq!(names[26], "customer_relationship_manager_delete_customer");
}

#[test]
fn the_directory_is_searched() {
    let mut desk = Desk::new();
    let find = "company_directory_find_email_address";
    desk.says(
        find,
        json!({"name": "CLEO"}),
        json!(["cleo.dunmore@fernhill.example"]),
    );
    desk.says(find, json!({"name": "nobody"}), json!([]));
    desk.refuses(find, json!({}), "Name not provided.");
}

#[test]
fn arguments_that_do_not_read_get_a_message_for_every_tool() {
    let desk = Desk::new();
    for name in &desk.0.names {
        for arguments in [
            "no json",
            "[]",
            "7",
            "{\"x\": 1}",
            "{\"x\"",
            "\u{0}",
            "{\"page\": \"1\"}",
            "{\"page\": 1.5}",
        ] {
            let outcome = desk.0.apply(&desk.1, name, arguments.as_bytes());
            let ToolOutcome::Failed { output } = outcome else {
                panic!("{name} {arguments}: {outcome:?}")
            };
            let output: Value = serde_json::from_slice(&output).unwrap();
            let error = output["error"].as_str().unwrap();
            assert!(
                error.starts_with(&format!("the arguments of {name} do not read")),
                "{error}"
            );
        }
        let number = json!({"name": 7, "query": 7, "email_id": 7}).to_string();
        let outcome = desk.0.apply(&desk.1, name, number.as_bytes());
        assert!(matches!(outcome, ToolOutcome::Failed { .. }), "{name}");
    }
    let unknown = desk.0.apply(&desk.1, "email_burn", b"{}");
    assert!(matches!(unknown, ToolOutcome::Failed { .. }));
}

#[tokio::test]
async fn the_reward_is_one_exactly_if_the_tables_are_as_the_ground_truth_leaves_them() {
    let mut desk = Desk::new();
    let arguments = json!({"email_id": "00000008", "body": "Thanks"});
    let task = json!({"ground_truth": [
        {"name": "email_burn", "arguments": "{}"},
        {"name": "email_delete_email", "arguments": "{\"email_id\": \"7\"}"},
        {"name": "email_reply_email", "arguments": arguments.to_string()},
    ]})
    .to_string();
    let verdict = desk.0.verify(&desk.1, task.as_bytes(), b"{}").await.unwrap();
    assert_eq!(
        (verdict.reward, &verdict.details[..]),
        (0.0, &br#"{"different":["emails.csv"]}"#[..])
    );
    desk.finds(
        "email_reply_email",
        json!({"email_id": "00000008", "body": "THANKS"}),
    );
    let exported = desk.0.export(&desk.1);
    let restored = desk.0.import(b"", &exported).unwrap();
    assert_eq!(restored, desk.1);
    let verdict = desk.0.verify(&restored, task.as_bytes(), b"{}").await.unwrap();
    assert_eq!(
        (verdict.reward, &verdict.details[..]),
        (1.0, &br#"{"different":[]}"#[..])
    );
    desk.finds("email_delete_email", json!({"email_id": "00000001"}));
    let verdict = desk.0.verify(&desk.1, task.as_bytes(), b"{}").await.unwrap();
    assert_eq!(verdict.reward, 0.0);
}

#[test]
fn a_task_without_its_ground_truth_is_refused_by_name() {
    let workplace = Desk::new().0;
    for task in ["{}", r#"{"ground_truth": [{"name": "a"}]}"#, "no json"] {
        let refused = workplace.seed(task.as_bytes()).unwrap_err();
        assert!(refused.message.contains("ground_truth"), "{refused}");
    }
}
