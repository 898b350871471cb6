//! The mailbox's emails.

use super::{
    moment::{date, moment},
    session::Session,
    tables::{Column, Row, Rule, Shape},
    tool::{Arguments, Outcome, Reply, Tool, changed, field, page, refused},
};

pub(super) static SHAPE: Shape = Shape {
    file: "emails.csv",
    columns: &[
        Column::new("email_id", Rule::Id),
        Column::new("inbox/outbox", Rule::Text),
        Column::new("sender/recipient", Rule::Text),
        Column::new("subject", Rule::Text),
        Column::new("sent_datetime", Rule::Moment),
        Column::new("body", Rule::Text),
    ],
};

/// The point in time at which all tasks play, and so at which an email is sent.
const NOW: &str = "2023-11-30 23:59:00";

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "email_get_email_information_by_id",
        takes: &["email_id", "field"],
        run: information,
    },
    Tool {
        name: "email_search_emails",
        takes: &["query", "date_min", "date_max", "page", "page_size"],
        run: search,
    },
    Tool {
        name: "email_send_email",
        takes: &["recipient", "subject", "body"],
        run: send,
    },
    Tool {
        name: "email_delete_email",
        takes: &["email_id"],
        run: delete,
    },
    Tool {
        name: "email_forward_email",
        takes: &["email_id", "recipient"],
        run: forward,
    },
    Tool {
        name: "email_reply_email",
        takes: &["email_id", "body"],
        run: reply,
    },
];

fn not_found() -> Outcome {
    refused("Email not found.")
}

fn information(session: &Session, arguments: &Arguments) -> Reply {
    let [id] = arguments.all(["email_id"], "Email ID not provided.")?;
    let [name] = arguments.all(["field"], "Field not provided.")?;
    let email = session.email.find(id).ok_or_else(not_found)?;
    if SHAPE.at(name).is_none() {
        let names: Vec<_> = SHAPE.columns.iter().map(|column| column.name).collect();
        let names = names.join(", ");
        return Err(refused(&format!(
            "Field '{name}' not found. Available fields: {names}"
        )));
    }
    field(email, name)
}

fn search(session: &Session, arguments: &Arguments) -> Reply {
    let bound = |name: &str| {
        let wrong = || refused(&format!("Invalid {name} format. Expected YYYY-MM-DD."));
        let given = arguments.get(name);
        given.map(|text| date(text).ok_or_else(wrong)).transpose()
    };
    let (from, to) = (bound("date_min")?, bound("date_max")?);
    let query = arguments.get("query").unwrap_or_default().to_lowercase();
    let words: Vec<_> = query.split_whitespace().collect();
    let matches = |row: &&Row| {
        let fields = ["subject", "body", "sender/recipient"].map(|name| row.get(name).unwrap_or_default());
        let text = fields.join(" ").to_lowercase();
        words.iter().all(|word| text.contains(word))
    };
    let rows = session.email.rows().iter().map(AsRef::as_ref);
    let mut emails: Vec<(String, &Row)> = rows
        .filter(matches)
        .filter_map(|row| Some((moment(row.get("sent_datetime")?)?, row)))
        .filter(|(sent, _)| from.as_deref().is_none_or(|from| &sent[..10] >= from))
        .filter(|(sent, _)| to.as_deref().is_none_or(|to| &sent[..10] <= to))
        .collect();
    // The latest first.
    emails.sort_by(|(one, _), (other, _)| other.cmp(one));
    let emails: Vec<_> = emails.into_iter().map(|(_, row)| row).collect();
    page("emails", &emails, arguments)
}

fn check_recipient(recipient: &str) -> Result<(), Outcome> {
    if recipient.contains('@') && recipient.contains('.') {
        Ok(())
    } else {
        Err(refused("Invalid recipient email address."))
    }
}

/// With an email more in the outbox.
fn sent(session: &Session, recipient: &str, subject: &str, body: Option<&str>, message: &str) -> Reply {
    check_recipient(recipient)?;
    let (id, recipient) = (session.email.next_id(), recipient.to_lowercase());
    let cells = [
        Some(&*id),
        Some("outbox"),
        Some(&recipient),
        Some(subject),
        Some(NOW),
        body,
    ];
    let row = Row::new(&SHAPE, cells.map(|cell| cell.map(str::to_owned)));
    let session = Session {
        email: session.email.with(row),
        ..session.clone()
    };
    changed(message, session)
}

fn send(session: &Session, arguments: &Arguments) -> Reply {
    let needs = ["recipient", "subject", "body"];
    let [recipient, subject, body] = arguments.all(needs, "Recipient, subject, or body not provided.")?;
    sent(
        session,
        recipient,
        subject,
        Some(body),
        "Email sent successfully.",
    )
}

fn delete(session: &Session, arguments: &Arguments) -> Reply {
    let [id] = arguments.all(["email_id"], "Email ID not provided.")?;
    let session = Session {
        email: session.email.without(id).ok_or_else(not_found)?,
        ..session.clone()
    };
    changed("Email deleted successfully.", session)
}

fn forward(session: &Session, arguments: &Arguments) -> Reply {
    let [id, recipient] = arguments.all(["email_id", "recipient"], "Email ID or recipient not provided.")?;
    check_recipient(recipient)?;
    let email = session.email.find(id).ok_or_else(not_found)?;
    let subject = format!("FW: {}", email.get("subject").unwrap_or_default());
    let body = email.get("body");
    sent(
        session,
        recipient,
        &subject,
        body,
        "Email forwarded successfully.",
    )
}

fn reply(session: &Session, arguments: &Arguments) -> Reply {
    let [id, body] = arguments.all(["email_id", "body"], "Email ID or body not provided.")?;
    let email = session.email.find(id).ok_or_else(not_found)?;
    let subject = format!("RE: {}", email.get("subject").unwrap_or_default());
    // To whom it came from; one of the outbox goes again to whom it went to.
    let other = email.get("sender/recipient").unwrap_or_default();
    sent(
        session,
        other,
        &subject,
        Some(body),
        "Email replied successfully.",
    )
}
