//! The calendar's events.

use super::{
    moment::moment,
    session::Session,
    tables::{Column, Row, Rule, Shape},
    tool::{Arguments, Outcome, Reply, Tool, changed, contains, field, page, refused},
};

pub(super) static SHAPE: Shape = Shape {
    file: "calendar_events.csv",
    columns: &[
        Column::new("event_id", Rule::Id),
        Column::new("event_name", Rule::Text),
        Column::new("participant_email", Rule::Text),
        Column::new("event_start", Rule::Moment),
        Column::new("duration", Rule::Number),
    ],
};

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "calendar_get_event_information_by_id",
        takes: &["event_id", "field"],
        run: information,
    },
    Tool {
        name: "calendar_search_events",
        takes: &["query", "time_min", "time_max", "page", "page_size"],
        run: search,
    },
    Tool {
        name: "calendar_create_event",
        takes: &["event_name", "participant_email", "event_start", "duration"],
        run: create,
    },
    Tool {
        name: "calendar_delete_event",
        takes: &["event_id"],
        run: delete,
    },
    Tool {
        name: "calendar_update_event",
        takes: &["event_id", "field", "new_value"],
        run: update,
    },
];

fn check_id(id: &str) -> Result<(), Outcome> {
    if id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_digit()) {
        Ok(())
    } else {
        Err(refused("Invalid event ID format. Expected 8-digit ID."))
    }
}

/// The column of this name, from the `first` one that is allowed.
fn check_field(name: &str, first: usize) -> Result<(), Outcome> {
    let names: Vec<_> = SHAPE.columns[first..].iter().map(|column| column.name).collect();
    if names.contains(&name) {
        return Ok(());
    }
    let names = names.join(", ");
    Err(refused(&format!("Invalid field. Available fields are: {names}")))
}

fn check_start(start: &str) -> Result<(), Outcome> {
    let wrong = || refused("Invalid event_start format. Expected YYYY-MM-DD HH:MM:SS.");
    moment(start).map(|_| ()).ok_or_else(wrong)
}

fn check_duration(minutes: &str) -> Result<(), Outcome> {
    match minutes.trim().parse::<i64>() {
        Ok(1..) => Ok(()),
        Ok(_) => Err(refused("Duration must be a positive number of minutes.")),
        Err(_) => Err(refused("Invalid duration format. Expected a number of minutes.")),
    }
}

fn not_found() -> Outcome {
    refused("Event not found.")
}

fn information(session: &Session, arguments: &Arguments) -> Reply {
    let [id] = arguments.all(["event_id"], "Event ID not provided.")?;
    let [name] = arguments.all(["field"], "Field not provided.")?;
    check_id(id)?;
    check_field(name, 0)?;
    field(session.calendar.find(id).ok_or_else(not_found)?, name)
}

fn search(session: &Session, arguments: &Arguments) -> Reply {
    let bound = |name: &str| {
        let wrong = || refused(&format!("Invalid {name} format. Expected YYYY-MM-DD HH:MM:SS."));
        let given = arguments.get(name);
        given.map(|text| moment(text).ok_or_else(wrong)).transpose()
    };
    let (from, to) = (bound("time_min")?, bound("time_max")?);
    let query = arguments.get("query").unwrap_or_default();
    let rows = session.calendar.rows().iter().map(AsRef::as_ref);
    let mut events: Vec<(String, &Row)> = rows
        .filter(|row| contains(row.get("event_name"), query) || contains(row.get("participant_email"), query))
        .filter_map(|row| Some((moment(row.get("event_start")?)?, row)))
        .filter(|(start, _)| from.as_ref().is_none_or(|from| start >= from))
        .filter(|(start, _)| to.as_ref().is_none_or(|to| start <= to))
        .collect();
    // The latest first.
    events.sort_by(|(one, _), (other, _)| other.cmp(one));
    let events: Vec<_> = events.into_iter().map(|(_, row)| row).collect();
    page("events", &events, arguments)
}

fn create(session: &Session, arguments: &Arguments) -> Reply {
    let [name] = arguments.all(["event_name"], "Event name not provided.")?;
    let [participant] = arguments.all(["participant_email"], "Participant email not provided.")?;
    let [start] = arguments.all(["event_start"], "Event start not provided.")?;
    let [duration] = arguments.all(["duration"], "Event duration not provided.")?;
    check_start(start)?;
    check_duration(duration)?;
    let id = session.calendar.next_id();
    let participant = participant.to_lowercase();
    let cells = [&id, name, &participant, start, duration].map(|cell| Some(cell.to_owned()));
    let session = Session {
        calendar: session.calendar.with(Row::new(&SHAPE, cells)),
        ..session.clone()
    };
    changed(&id, session)
}

fn delete(session: &Session, arguments: &Arguments) -> Reply {
    let [id] = arguments.all(["event_id"], "Event ID not provided.")?;
    check_id(id)?;
    let session = Session {
        calendar: session.calendar.without(id).ok_or_else(not_found)?,
        ..session.clone()
    };
    changed("Event deleted successfully.", session)
}

fn update(session: &Session, arguments: &Arguments) -> Reply {
    let needs = ["event_id", "field", "new_value"];
    let [id, name, value] = arguments.all(needs, "Event ID, field, or new value not provided.")?;
    check_id(id)?;
    check_field(name, 1)?;
    let value = match name {
        "event_start" => check_start(value).map(|()| value.to_owned())?,
        "duration" => check_duration(value).map(|()| value.to_owned())?,
        "participant_email" => value.to_lowercase(),
        _ => value.to_owned(),
    };
    let session = Session {
        calendar: session.calendar.setting(id, name, value).ok_or_else(not_found)?,
        ..session.clone()
    };
    changed("Event updated successfully.", session)
}
