//! The company's directory: email addresses, which nothing changes.

use super::{
    session::Session,
    tool::{Arguments, Reply, Tool, contains, found},
};

/// One address a line.
pub(super) const FILE: &str = "email_addresses.csv";

pub(super) const TOOLS: &[Tool] = &[Tool {
    name: "company_directory_find_email_address",
    takes: &["name"],
    run: find,
}];

fn find(session: &Session, arguments: &Arguments) -> Reply {
    let [name] = arguments.all(["name"], "Name not provided.")?;
    let addresses = session.directory.iter();
    found(
        &addresses
            .filter(|address| contains(Some(address), name))
            .collect::<Vec<_>>(),
    )
}
