//! The customers' tools.

use serde_json::json;

use super::{Desk, ids};

#[test]
fn customers_are_searched() {
    let mut desk = Desk::new();
    let search = "customer_relationship_manager_search_customers";
    let found = desk.finds(search, json!({"customer_name": "OTO"}));
    assert_eq!(
        found,
        json!({
            "customers": [{"customer_id": "00000006", "assigned_to_email": "ben.castell@fernhill.example",
                           "customer_name": "Oto Vane", "customer_email": "oto.vane@brightloom.example",
                           "customer_phone": null, "last_contact_date": "2023-11-06 23:59:00",
                           "product_interest": "Services", "status": "Lead", "follow_up_by": "2023-12-09 23:59:00",
                           "notes": "2023-11-06: Had a call. "}],
            "pagination": {"total_customers": 1, "page": 1, "page_size": 5, "total_pages": 1}
        })
    );
    for (arguments, expected) in [
        (
            json!({"status": "proposal", "assigned_to_email": "ben"}),
            vec!["00000003"],
        ),
        (
            json!({"last_contact_date_min": "2023-11-26", "last_contact_date_max": "2023-11-28"}),
            vec!["00000000"],
        ),
        (json!({"follow_up_by_max": "2023-12-10"}), vec!["00000006"]),
        (
            json!({"follow_up_by_min": "2023-12-20", "customer_email": "MILO", "product_interest": "consult"}),
            vec!["00000004"],
        ),
    ] {
        let found = desk.finds(search, arguments);
        assert_eq!(ids(&found, "customers", "customer_id"), expected);
    }
    desk.says(
        search,
        json!({"customer_name": "zebra"}),
        json!("No customers found."),
    );
    let nothing = "No search parameters provided. Please provide at least one parameter.";
    desk.refuses(search, json!({"page": 1}), nothing);
}

#[test]
fn customers_are_added_updated_and_deleted() {
    let mut desk = Desk::new();
    let (add, update, delete) = (
        "customer_relationship_manager_add_customer",
        "customer_relationship_manager_update_customer",
        "customer_relationship_manager_delete_customer",
    );
    let new = json!({"customer_name": "Zoe Ash", "assigned_to_email": "Dara.Elsing@fernhill.example", "status": "Lead",
                     "customer_phone": null});
    desk.says(add, new, json!("00000012"));
    let zoe = desk.1.customers.find("00000012").unwrap();
    assert_eq!(zoe.get("assigned_to_email"), Some("dara.elsing@fernhill.example"));
    assert_eq!((zoe.get("notes"), zoe.get("customer_email")), (Some(""), None));
    desk.refuses(
        add,
        json!({"customer_name": "Zoe Ash", "status": "Lead"}),
        "Please provide all required fields: customer_name, assigned_to_email, status.",
    );

    let set =
        |id: &str, field: &str, value: &str| json!({"customer_id": id, "field": field, "new_value": value});
    let updated = json!("Customer updated successfully.");
    desk.says(update, set("00000012", "status", "Won"), updated.clone());
    desk.says(
        update,
        set("00000012", "customer_email", "Zoe@Ash.example"),
        updated,
    );
    let zoe = desk.1.customers.find("00000012").unwrap();
    assert_eq!(zoe.get("customer_email"), Some("zoe@ash.example"));
    desk.refuses(update, set("12", "status", "Won"), "Customer not found.");
    desk.refuses(
        update,
        set("00000012", "status", "won"),
        "Status not valid. Please choose from: 'Qualified', 'Won', 'Lost', 'Lead', 'Proposal'",
    );
    desk.refuses(
        update,
        set("00000012", "product_interest", "Tea"),
        "Product interest not valid. Please choose from: 'Software', 'Hardware', 'Services', 'Consulting', 'Training'",
    );
    desk.refuses(
        update,
        set("00000012", "customer_id", "7"),
        "Field not valid. Please choose from: 'customer_name', 'assigned_to_email', 'customer_email', 'customer_phone', \
         'last_contact_date', 'product_interest', 'status', 'notes', 'follow_up_by'",
    );
    let missing = "Customer ID, field, or new value not provided.";
    desk.refuses(
        update,
        json!({"customer_id": "00000012", "field": "status"}),
        missing,
    );

    desk.says(
        delete,
        json!({"customer_id": "00000012"}),
        json!("Customer deleted successfully."),
    );
    desk.refuses(delete, json!({"customer_id": "00000012"}), "Customer not found.");
    desk.refuses(delete, json!({}), "Customer ID not provided.");
}
