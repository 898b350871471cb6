//! `workplace`: a session with tables of its own goes on after everything was killed.

use belay_core::ids::Kind;
use belay_fake_backend::ctl::Hold;
use belay_mesh::config::ServerConfig;
use belay_proto::episode::Expect;
use serde_json::{Value, json};

use crate::world::{BOUND, World};

/// Two changes in the first reply, one in the second.
fn task() -> String {
    let delete = |id: &str| json!({"email_id": id});
    let update = json!({"task_id": "00000002", "field": "list_name", "new_value": "Completed"});
    let script = [
        json!({"calls": [
            {"call": "email_delete_email", "args": delete("00000005")},
            {"call": "email_delete_email", "args": delete("00000002")},
        ]}),
        json!({"call": "project_management_update_task", "args": update}),
        json!({"say": "Done."}),
    ];
    let lines: Vec<String> = script.iter().map(Value::to_string).collect();
    let truth = |name: &str, arguments: &Value| json!({"name": name, "arguments": arguments.to_string()});
    let tool =
        |name| json!({"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}});
    let tools = ["email_delete_email", "project_management_update_task"].map(tool);
    json!({
        "responses_create_params": {
            "input": [{"role": "user", "content": format!("script:{}", lines.join("\n"))}],
            "tools": tools,
        },
        "ground_truth": [
            truth("email_delete_email", &delete("00000005")),
            truth("email_delete_email", &delete("00000002")),
            truth("project_management_update_task", &update),
        ],
    })
    .to_string()
}

/// Seen red: with `faults.restore_seeds_anew`, the deleted emails are there again and the reward is 0.0.
#[tokio::test(flavor = "multi_thread")]
async fn its_tables_are_as_they_were() {
    let mut world = World::start_with(|config| {
        config.servers.push(ServerConfig {
            name: "workplace".into(),
            ..ServerConfig::new(Kind::Resources)
        });
    })
    .await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let first = world.run_task("workplace", "r", 0, Expect::Fresh, task());
    world.ctl.wait_held(1, BOUND).await.unwrap();
    assert_eq!(world.effects("r").await, [(0, (0, 1)), (0, (0, 2))]);
    let (_, published, _) = world.checkpoint().await;
    assert_eq!(published.episodes, 1);
    world.crash().await;
    first.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    world.restore().await;
    world.ctl.release().await.unwrap();

    let run = world.run_task("workplace", "r", 1, Expect::Restored, task());
    let result = run.await.unwrap().unwrap();
    assert_eq!(
        (result.reward, result.model_calls, result.tool_calls),
        (1.0, 3, 3)
    );
    assert_eq!(
        world.effects("r").await,
        [(0, (0, 1)), (0, (0, 2)), (1, (1, 1))],
        "each once"
    );
    world.acknowledge_and_see_nothing_left("r", 1).await;
}
