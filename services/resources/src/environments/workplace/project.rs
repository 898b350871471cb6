//! The project management's tasks.

use super::{
    session::Session,
    tables::{Column, Row, Rule, Shape},
    tool::{Arguments, Outcome, Reply, Tool, changed, contains, field, found, one_of, refused},
};

pub(super) static SHAPE: Shape = Shape {
    file: "project_tasks.csv",
    columns: &[
        Column::new("task_id", Rule::Id),
        Column::new("task_name", Rule::Text),
        Column::new("assigned_to_email", Rule::Text),
        Column::new("list_name", Rule::Text),
        Column::new("due_date", Rule::Text),
        Column::new("board", Rule::Text),
    ],
};

const FIELDS: [&str; 5] = ["task_name", "assigned_to_email", "list_name", "due_date", "board"];

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "project_management_get_task_information_by_id",
        takes: &["task_id", "field"],
        run: information,
    },
    Tool {
        name: "project_management_search_tasks",
        takes: &FIELDS,
        run: search,
    },
    Tool {
        name: "project_management_create_task",
        takes: &FIELDS,
        run: create,
    },
    Tool {
        name: "project_management_delete_task",
        takes: &["task_id"],
        run: delete,
    },
    Tool {
        name: "project_management_update_task",
        takes: &["task_id", "field", "new_value"],
        run: update,
    },
];

fn not_found() -> Outcome {
    refused("Task not found.")
}

/// That a field may get this value.
fn check(session: &Session, field: &str, value: &str) -> Result<(), Outcome> {
    match field {
        "list_name" => {
            let lists = ["Backlog", "In Progress", "In Review", "Completed"];
            one_of("List", value, &lists, ".")
        }
        "board" => one_of("Board", value, &["Back end", "Front end", "Design"], "."),
        "assigned_to_email" => {
            let mut assignees = session.project.rows().iter().filter_map(|row| row.get(field));
            if assignees.any(|assignee| assignee.to_lowercase() == value.to_lowercase()) {
                return Ok(());
            }
            Err(refused(
                "Assignee email not valid. Please choose from the list of team members.",
            ))
        }
        _ => Ok(()),
    }
}

fn information(session: &Session, arguments: &Arguments) -> Reply {
    let [id] = arguments.all(["task_id"], "Task ID not provided.")?;
    let [name] = arguments.all(["field"], "Field not provided.")?;
    let task = session.project.find(id).ok_or_else(not_found)?;
    if SHAPE.at(name).is_none() {
        return Err(refused("Field not found."));
    }
    field(task, name)
}

/// A name, a host with a dot, and at least two letters after the last one.
fn is_address(text: &str) -> bool {
    let allowed = |text: &str, marks: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || marks.contains(c))
    };
    text.split_once('@').is_some_and(|(name, host)| {
        host.rsplit_once('.').is_some_and(|(host, end)| {
            let letters = end.len() >= 2 && end.chars().all(|c| c.is_ascii_alphabetic());
            allowed(name, "._%+-") && allowed(host, ".-") && letters
        })
    })
}

fn search(session: &Session, arguments: &Arguments) -> Reply {
    if FIELDS.iter().all(|name| arguments.get(name).is_none()) {
        return Err(refused("No search parameters provided."));
    }
    let assignee = arguments.get("assigned_to_email");
    if assignee.is_some_and(|assignee| !is_address(assignee)) {
        return Err(refused("Invalid email format for assigned_to_email."));
    }
    let fits = |row: &&Row| {
        FIELDS.iter().all(|name| match (*name, arguments.get(name)) {
            (_, None) => true,
            // An address is asked for as a whole.
            ("assigned_to_email", Some(whole)) => row
                .get(name)
                .is_some_and(|cell| cell.to_lowercase() == whole.to_lowercase()),
            (name, Some(part)) => contains(row.get(name), part),
        })
    };
    let rows = session.project.rows().iter().map(AsRef::as_ref);
    found(&rows.filter(fits).collect::<Vec<_>>())
}

fn create(session: &Session, arguments: &Arguments) -> Reply {
    let [name, assignee, list, due, board] = arguments.all(FIELDS, "Missing task details.")?;
    check(session, "assigned_to_email", assignee)?;
    check(session, "list_name", list)?;
    check(session, "board", board)?;
    let (id, assignee) = (session.project.next_id(), assignee.to_lowercase());
    let cells = [&id, name, &assignee, list, due, board].map(|cell| Some(cell.to_owned()));
    let session = Session {
        project: session.project.with(Row::new(&SHAPE, cells)),
        ..session.clone()
    };
    changed(&id, session)
}

fn delete(session: &Session, arguments: &Arguments) -> Reply {
    let [id] = arguments.all(["task_id"], "Task ID not provided.")?;
    let session = Session {
        project: session.project.without(id).ok_or_else(not_found)?,
        ..session.clone()
    };
    changed("Task deleted successfully.", session)
}

fn update(session: &Session, arguments: &Arguments) -> Reply {
    let needs = ["task_id", "field", "new_value"];
    let [id, name, value] = arguments.all(needs, "Task ID, field, or new value not provided.")?;
    check(session, name, value)?;
    session.project.find(id).ok_or_else(not_found)?;
    if !FIELDS.contains(&name) {
        return Err(refused("Field not valid."));
    }
    let value = if name == "assigned_to_email" {
        value.to_lowercase()
    } else {
        value.to_owned()
    };
    let session = Session {
        project: session.project.setting(id, name, value).ok_or_else(not_found)?,
        ..session.clone()
    };
    changed("Task updated successfully.", session)
}
