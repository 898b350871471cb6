//! The reward: the session's tables against those after the ground truth's calls.
//!
//! Two tables are equal if they have the same rows in the same order, with the same text in each cell. Case does not matter,
//! except in the columns `status`, `list_name` and `board`. A cell with nothing in it is not an empty text. A call of the
//! ground truth that fails changes nothing, and the others count.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    session::Session,
    tables::{Row, Table},
};

/// The environment's own fields of a task row.
#[derive(Deserialize)]
pub(super) struct Task {
    pub(super) ground_truth: Vec<Call>,
}

/// A call that solves the task, or a part of it.
#[derive(Deserialize)]
pub(super) struct Call {
    pub(super) name: String,
    /// JSON, as a model would write it.
    pub(super) arguments: String,
}

/// What the verifier saw.
#[derive(Serialize)]
pub(super) struct Details {
    /// The files of the tables that are not as they should be, and `plots`.
    pub(super) different: Vec<&'static str>,
}

/// In what two sessions differ.
pub(super) fn compare(one: &Session, other: &Session) -> Details {
    let tables = one.tables().into_iter().zip(other.tables());
    let differ = tables.filter(|(one, other)| !equal(one, other));
    let mut different: Vec<_> = differ.map(|(one, _)| one.shape().file).collect();
    let lower = |plot: &String| plot.to_lowercase();
    if !one.plots.iter().map(lower).eq(other.plots.iter().map(lower)) {
        different.push("plots");
    }
    Details { different }
}

/// The columns in which case matters.
const EXACT: [&str; 3] = ["status", "list_name", "board"];

fn equal(one: &Table, other: &Table) -> bool {
    let same = |(one, other): (&Arc<Row>, &Arc<Row>)| Arc::ptr_eq(one, other) || equal_rows(one, other);
    one.rows().len() == other.rows().len() && one.rows().iter().zip(other.rows()).all(same)
}

fn equal_rows(one: &Row, other: &Row) -> bool {
    one.shape()
        .columns
        .iter()
        .all(|column| match (one.get(column.name), other.get(column.name)) {
            (Some(one), Some(other)) if !EXACT.contains(&column.name) => {
                one.to_lowercase() == other.to_lowercase()
            }
            (one, other) => one == other,
        })
}

#[cfg(test)]
mod tests {
    use super::{super::load::own, *};

    #[test]
    fn case_matters_in_three_columns_only() {
        let session = own().unwrap();
        let with = |id: &str, column: &str, value: &str| {
            let mut other = session.clone();
            other.customers = other.customers.setting(id, column, value.into()).unwrap();
            compare(&session, &other).different
        };
        assert!(with("00000004", "customer_name", "MILO tarn").is_empty());
        assert!(with("00000004", "status", "Lost").is_empty());
        let file = "customer_relationship_manager_data.csv";
        assert_eq!(with("00000004", "status", "lost"), [file]);
        // Nothing, and an empty text.
        assert_eq!(with("00000000", "customer_phone", ""), [file]);
    }

    #[test]
    fn order_and_number_of_rows_matter_and_plots_count() {
        let session = own().unwrap();
        let mut other = session.clone();
        let mut rows = other.email.rows().to_vec();
        rows.swap(0, 1);
        other.email = Arc::new(Table::new(other.email.shape(), rows));
        other.plots = Arc::new(vec!["plots/A.png".into()]);
        assert_eq!(compare(&session, &other).different, ["emails.csv", "plots"]);
        let mut lower = session.clone();
        lower.plots = Arc::new(vec!["plots/a.png".into()]);
        assert_eq!(compare(&lower, &other).different, ["emails.csv"]);
        lower.project = lower.project.without("00000000").unwrap();
        assert_eq!(
            compare(&session, &lower).different,
            ["project_tasks.csv", "plots"]
        );
    }
}
