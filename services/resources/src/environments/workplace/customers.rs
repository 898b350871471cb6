//! The customer relationship manager's customers.

use super::{
    session::Session,
    tables::{Column, Row, Rule, Shape},
    tool::{Arguments, Outcome, Reply, Tool, changed, contains, one_of, page, refused},
};

pub(super) static SHAPE: Shape = Shape {
    file: "customer_relationship_manager_data.csv",
    columns: &[
        Column::new("customer_id", Rule::Id),
        Column::new("assigned_to_email", Rule::Text),
        Column::new("customer_name", Rule::Text),
        Column::new("customer_email", Rule::Text),
        Column::new("customer_phone", Rule::Text),
        Column::new("last_contact_date", Rule::Text),
        Column::new("product_interest", Rule::Text),
        Column::new("status", Rule::Text),
        Column::new("follow_up_by", Rule::Text),
        Column::new("notes", Rule::Text),
    ],
};

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "customer_relationship_manager_search_customers",
        takes: &[
            "customer_name",
            "customer_email",
            "product_interest",
            "status",
            "assigned_to_email",
            "last_contact_date_min",
            "last_contact_date_max",
            "follow_up_by_min",
            "follow_up_by_max",
            "page",
            "page_size",
        ],
        run: search,
    },
    Tool {
        name: "customer_relationship_manager_update_customer",
        takes: &["customer_id", "field", "new_value"],
        run: update,
    },
    Tool {
        name: "customer_relationship_manager_add_customer",
        takes: &[
            "customer_name",
            "assigned_to_email",
            "status",
            "customer_email",
            "customer_phone",
            "last_contact_date",
            "product_interest",
            "notes",
            "follow_up_by",
        ],
        run: add,
    },
    Tool {
        name: "customer_relationship_manager_delete_customer",
        takes: &["customer_id"],
        run: delete,
    },
];

const STATUSES: [&str; 5] = ["Qualified", "Won", "Lost", "Lead", "Proposal"];
const PRODUCTS: [&str; 5] = ["Software", "Hardware", "Services", "Consulting", "Training"];
/// The columns that a call can set.
const FIELDS: [&str; 9] = [
    "customer_name",
    "assigned_to_email",
    "customer_email",
    "customer_phone",
    "last_contact_date",
    "product_interest",
    "status",
    "notes",
    "follow_up_by",
];

fn not_found() -> Outcome {
    refused("Customer not found.")
}

fn is_address(name: &str) -> bool {
    ["customer_email", "assigned_to_email"].contains(&name)
}

fn search(session: &Session, arguments: &Arguments) -> Reply {
    let parts = [
        "customer_name",
        "customer_email",
        "product_interest",
        "status",
        "assigned_to_email",
    ];
    let dates = [
        (
            "last_contact_date",
            "last_contact_date_min",
            "last_contact_date_max",
        ),
        ("follow_up_by", "follow_up_by_min", "follow_up_by_max"),
    ];
    let bounds = dates.iter().flat_map(|(_, min, max)| [*min, *max]);
    if parts
        .into_iter()
        .chain(bounds)
        .all(|name| arguments.get(name).is_none())
    {
        return Err(refused(
            "No search parameters provided. Please provide at least one parameter.",
        ));
    }
    let fits = |row: &&Row| {
        let contained = parts.iter().all(|name| {
            let part = arguments.get(name);
            part.is_none_or(|part| contains(row.get(name), part))
        });
        // Dates compare as texts: a maximum without a time is the beginning of its day.
        let within = dates.iter().all(|(name, min, max)| {
            let (cell, min, max) = (row.get(name), arguments.get(min), arguments.get(max));
            min.is_none_or(|min| cell.is_some_and(|cell| cell >= min))
                && max.is_none_or(|max| cell.is_some_and(|cell| cell <= max))
        });
        contained && within
    };
    let rows = session.customers.rows().iter().map(AsRef::as_ref);
    page("customers", &rows.filter(fits).collect::<Vec<_>>(), arguments)
}

fn update(session: &Session, arguments: &Arguments) -> Reply {
    let needs = ["customer_id", "field", "new_value"];
    let [id, name, value] = arguments.all(needs, "Customer ID, field, or new value not provided.")?;
    match name {
        "status" => one_of("Status", value, &STATUSES, "")?,
        "product_interest" => one_of("Product interest", value, &PRODUCTS, "")?,
        _ => {}
    }
    session.customers.find(id).ok_or_else(not_found)?;
    one_of("Field", name, &FIELDS, "")?;
    let value = if is_address(name) {
        value.to_lowercase()
    } else {
        value.to_owned()
    };
    let session = Session {
        customers: session.customers.setting(id, name, value).ok_or_else(not_found)?,
        ..session.clone()
    };
    changed("Customer updated successfully.", session)
}

fn add(session: &Session, arguments: &Arguments) -> Reply {
    arguments.all(
        ["customer_name", "assigned_to_email", "status"],
        "Please provide all required fields: customer_name, assigned_to_email, status.",
    )?;
    let id = session.customers.next_id();
    let cell = |column: &Column| match (column.name, arguments.get(column.name)) {
        ("customer_id", _) => Some(id.clone()),
        ("notes", notes) => Some(notes.unwrap_or_default().to_owned()),
        (name, Some(address)) if is_address(name) => Some(address.to_lowercase()),
        (_, given) => given.map(str::to_owned),
    };
    let row = Row::new(&SHAPE, SHAPE.columns.iter().map(cell));
    let session = Session {
        customers: session.customers.with(row),
        ..session.clone()
    };
    changed(&id, session)
}

fn delete(session: &Session, arguments: &Arguments) -> Reply {
    let [id] = arguments.all(["customer_id"], "Customer ID not provided.")?;
    let session = Session {
        customers: session.customers.without(id).ok_or_else(not_found)?,
        ..session.clone()
    };
    changed("Customer deleted successfully.", session)
}
