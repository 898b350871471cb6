//! The calendar's tools.

use serde_json::json;

use super::{Desk, ids};

#[test]
fn events_are_read_and_searched() {
    let mut desk = Desk::new();
    let get = "calendar_get_event_information_by_id";
    let id = "00000003";
    desk.says(
        get,
        json!({"event_id": id, "field": "duration"}),
        json!({"duration": "60"}),
    );
    desk.refuses(
        get,
        json!({"event_id": "00000099", "field": "duration"}),
        "Event not found.",
    );
    desk.refuses(get, json!({"field": "duration"}), "Event ID not provided.");
    desk.refuses(get, json!({"event_id": id}), "Field not provided.");
    let short = json!({"event_id": "3", "field": "duration"});
    desk.refuses(get, short, "Invalid event ID format. Expected 8-digit ID.");
    desk.refuses(
        get,
        json!({"event_id": id, "field": "room"}),
        "Invalid field. Available fields are: event_id, event_name, participant_email, event_start, duration",
    );

    let search = "calendar_search_events";
    let found = desk.finds(search, json!({"query": "ADA"}));
    assert_eq!(ids(&found, "events", "event_id"), ["00000006", "00000002", id]);
    let day = json!({"time_min": "2023-11-28 10:00:00", "time_max": "2023-11-28 15:00"});
    let found = desk.finds(search, day);
    assert_eq!(ids(&found, "events", "event_id"), ["00000009", "00000001"]);
    assert_eq!(found["pagination"]["total_events"], 2);
    desk.says(search, json!({"query": "zebra"}), json!("No events found."));
    let wrong = "Invalid time_max format. Expected YYYY-MM-DD HH:MM:SS.";
    desk.refuses(search, json!({"time_max": "noon"}), wrong);
}

#[test]
fn events_are_created_updated_and_deleted() {
    let mut desk = Desk::new();
    let (create, update, delete) = (
        "calendar_create_event",
        "calendar_update_event",
        "calendar_delete_event",
    );
    let event = |name: &str, who: &str, start: &str, duration: &str| json!({"event_name": name, "participant_email": who, "event_start": start, "duration": duration});
    let start = "2023-12-07 10:00:00";
    desk.says(
        create,
        event("Tea", "Ben@fernhill.example", start, "30"),
        json!("00000012"),
    );
    let tea = desk.finds("calendar_search_events", json!({"query": "tea"}));
    let row = event("Tea", "ben@fernhill.example", start, "30");
    assert_eq!(tea["events"][0]["participant_email"], row["participant_email"]);
    for (arguments, message) in [
        (event("", "b@c.d", start, "30"), "Event name not provided."),
        (event("Tea", "", start, "30"), "Participant email not provided."),
        (event("Tea", "b@c.d", "", "30"), "Event start not provided."),
        (event("Tea", "b@c.d", start, ""), "Event duration not provided."),
        (
            event("Tea", "b@c.d", "soon", "30"),
            "Invalid event_start format. Expected YYYY-MM-DD HH:MM:SS.",
        ),
        (
            event("Tea", "b@c.d", start, "long"),
            "Invalid duration format. Expected a number of minutes.",
        ),
        (
            event("Tea", "b@c.d", start, "0"),
            "Duration must be a positive number of minutes.",
        ),
    ] {
        desk.refuses(create, arguments, message);
    }

    let set =
        |id: &str, field: &str, value: &str| json!({"event_id": id, "field": field, "new_value": value});
    desk.says(
        update,
        set("00000012", "duration", "45"),
        json!("Event updated successfully."),
    );
    desk.refuses(update, set("00000099", "duration", "45"), "Event not found.");
    let missing = "Event ID, field, or new value not provided.";
    desk.refuses(update, set("00000012", "duration", ""), missing);
    let fields = "Invalid field. Available fields are: event_name, participant_email, event_start, duration";
    desk.refuses(update, set("00000012", "event_id", "7"), fields);
    let wrong = "Invalid event_start format. Expected YYYY-MM-DD HH:MM:SS.";
    desk.refuses(update, set("00000012", "event_start", "7"), wrong);

    desk.says(
        delete,
        json!({"event_id": "00000012"}),
        json!("Event deleted successfully."),
    );
    desk.refuses(delete, json!({"event_id": "00000012"}), "Event not found.");
    desk.refuses(delete, json!({}), "Event ID not provided.");
    assert_eq!(desk.1, Desk::new().1);
}
