//! The emails' tools.

use serde_json::json;

use super::{Desk, ids};

#[test]
fn emails_are_read_and_searched() {
    let mut desk = Desk::new();
    let get = "email_get_email_information_by_id";
    let id = "00000008";
    desk.says(
        get,
        json!({"email_id": id, "field": "subject"}),
        json!({"subject": "Greenhouse review"}),
    );
    desk.refuses(
        get,
        json!({"email_id": "99", "field": "subject"}),
        "Email not found.",
    );
    desk.refuses(get, json!({"field": "subject"}), "Email ID not provided.");
    desk.refuses(get, json!({"email_id": id}), "Field not provided.");
    desk.refuses(
        get,
        json!({"email_id": id, "field": "to"}),
        "Field 'to' not found. Available fields: email_id, inbox/outbox, sender/recipient, subject, sent_datetime, body",
    );

    let search = "email_search_emails";
    let found = desk.finds(search, json!({"query": "review GREENHOUSE"}));
    assert_eq!(ids(&found, "emails", "email_id"), ["00000003", id]);
    assert_eq!(
        found["pagination"],
        json!({"total_emails": 2, "page": 1, "page_size": 5, "total_pages": 1})
    );
    let days = json!({"date_min": "2023-11-21", "date_max": "2023-11-22"});
    assert_eq!(
        ids(&desk.finds(search, days), "emails", "email_id"),
        ["00000000", id]
    );
    let last = desk.finds(search, json!({"page": 9, "page_size": 5}));
    assert_eq!(ids(&last, "emails", "email_id").len(), 2);
    assert_eq!(last["pagination"]["page"], 3);
    desk.says(search, json!({"query": "zebra"}), json!("No emails found."));
    desk.refuses(search, json!({"page_size": 0}), "page_size must be at least 1.");
    desk.refuses(
        search,
        json!({"date_min": "yesterday"}),
        "Invalid date_min format. Expected YYYY-MM-DD.",
    );
}

#[test]
fn emails_are_sent_forwarded_replied_to_and_deleted() {
    let mut desk = Desk::new();
    let (send, forward, reply, delete) = (
        "email_send_email",
        "email_forward_email",
        "email_reply_email",
        "email_delete_email",
    );
    let to = "Gus.Hartwell@fernhill.example";
    let letter = json!({"recipient": to, "subject": "Hello", "body": "There"});
    desk.says(send, letter, json!("Email sent successfully."));
    let sent = desk.finds("email_search_emails", json!({"query": "hello there"}));
    assert_eq!(
        sent["emails"],
        json!([{"email_id": "00000012", "inbox/outbox": "outbox", "sender/recipient": "gus.hartwell@fernhill.example",
                "subject": "Hello", "sent_datetime": "2023-11-30 23:59:00", "body": "There"}])
    );
    let missing = "Recipient, subject, or body not provided.";
    desk.refuses(send, json!({"recipient": to, "subject": "Hello"}), missing);
    desk.refuses(
        send,
        json!({"recipient": to, "subject": "Hello", "body": ""}),
        missing,
    );
    let nobody = json!({"recipient": "gus", "subject": "a", "body": "b"});
    desk.refuses(send, nobody, "Invalid recipient email address.");

    let one = json!({"email_id": "00000005", "recipient": to});
    desk.says(forward, one, json!("Email forwarded successfully."));
    let none = json!({"email_id": "5", "recipient": to});
    desk.refuses(forward, none, "Email not found.");
    let missing = "Email ID or recipient not provided.";
    desk.refuses(forward, json!({"email_id": "00000005"}), missing);
    let nobody = json!({"email_id": "00000005", "recipient": "gus"});
    desk.refuses(forward, nobody, "Invalid recipient email address.");

    let answer = json!({"email_id": "00000005", "body": "Yes"});
    desk.says(reply, answer, json!("Email replied successfully."));
    desk.refuses(reply, json!({"email_id": "5", "body": "Yes"}), "Email not found.");
    desk.refuses(
        reply,
        json!({"email_id": "00000005"}),
        "Email ID or body not provided.",
    );
    let subjects: Vec<_> = desk.1.email.rows()[12..]
        .iter()
        .map(|row| (row.get("subject").unwrap(), row.get("sender/recipient").unwrap()))
        .collect();
    let gus = "gus.hartwell@fernhill.example";
    assert_eq!(
        subjects,
        [
            ("Hello", gus),
            ("FW: Harvest planning moved", gus),
            ("RE: Harvest planning moved", "ada.brook@fernhill.example")
        ]
    );

    desk.says(
        delete,
        json!({"email_id": "00000005"}),
        json!("Email deleted successfully."),
    );
    desk.refuses(delete, json!({"email_id": "00000005"}), "Email not found.");
    desk.refuses(delete, json!({}), "Email ID not provided.");
}
