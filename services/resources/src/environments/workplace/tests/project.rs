//! The tasks' tools.

use serde_json::json;

use super::{Desk, ids};

#[test]
fn tasks_are_read_and_searched() {
    let mut desk = Desk::new();
    let get = "project_management_get_task_information_by_id";
    let id = "00000004";
    desk.says(
        get,
        json!({"task_id": id, "field": "board"}),
        json!({"board": "Front end"}),
    );
    desk.refuses(get, json!({"task_id": "4", "field": "board"}), "Task not found.");
    desk.refuses(get, json!({"field": "board"}), "Task ID not provided.");
    desk.refuses(get, json!({"task_id": id}), "Field not provided.");
    desk.refuses(get, json!({"task_id": id, "field": "size"}), "Field not found.");

    let search = "project_management_search_tasks";
    let gus = json!({"assigned_to_email": "GUS.hartwell@fernhill.example", "list_name": "backlog"});
    assert_eq!(
        ids(&desk.finds(search, gus), "", "task_id"),
        ["00000010", "00000006"]
    );
    desk.says(search, json!({"task_name": "zebra"}), json!([]));
    desk.refuses(search, json!({}), "No search parameters provided.");
    let part = json!({"assigned_to_email": "gus"});
    desk.refuses(search, part, "Invalid email format for assigned_to_email.");
}

#[test]
fn tasks_are_created_updated_and_deleted() {
    let mut desk = Desk::new();
    let (create, update, delete) = (
        "project_management_create_task",
        "project_management_update_task",
        "project_management_delete_task",
    );
    let task = |who: &str, list: &str, board: &str| json!({"task_name": "Oil the gate", "assigned_to_email": who, "list_name": list, "due_date": "2023-12-20", "board": board});
    let gus = "Gus.Hartwell@fernhill.example";
    desk.says(create, task(gus, "Backlog", "Design"), json!("00000012"));
    let lists = "List not valid. Please choose from: 'Backlog', 'In Progress', 'In Review', 'Completed'.";
    let boards = "Board not valid. Please choose from: 'Back end', 'Front end', 'Design'.";
    let team = "Assignee email not valid. Please choose from the list of team members.";
    desk.refuses(create, task(gus, "backlog", "Design"), lists);
    desk.refuses(create, task(gus, "Backlog", "design"), boards);
    desk.refuses(create, task("x@y.zz", "Backlog", "Design"), team);
    desk.refuses(create, task(gus, "", "Design"), "Missing task details.");

    let set = |id: &str, field: &str, value: &str| json!({"task_id": id, "field": field, "new_value": value});
    desk.says(
        update,
        set("00000012", "list_name", "Completed"),
        json!("Task updated successfully."),
    );
    desk.says(
        update,
        set("00000012", "assigned_to_email", "BEN.castell@fernhill.example"),
        json!("Task updated successfully."),
    );
    assert_eq!(
        desk.1.project.find("00000012").unwrap().get("assigned_to_email"),
        Some("ben.castell@fernhill.example")
    );
    desk.refuses(update, set("12", "list_name", "Completed"), "Task not found.");
    desk.refuses(update, set("00000012", "list_name", "Done"), lists);
    desk.refuses(update, set("00000012", "board", "Done"), boards);
    desk.refuses(update, set("00000012", "assigned_to_email", "gus"), team);
    desk.refuses(update, set("00000012", "task_id", "7"), "Field not valid.");
    desk.refuses(
        update,
        set("00000012", "", "7"),
        "Task ID, field, or new value not provided.",
    );

    desk.says(
        delete,
        json!({"task_id": "00000012"}),
        json!("Task deleted successfully."),
    );
    desk.refuses(delete, json!({"task_id": "00000012"}), "Task not found.");
    desk.refuses(delete, json!({}), "Task ID not provided.");
}
