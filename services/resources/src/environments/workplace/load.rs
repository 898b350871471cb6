//! Tables from CSV: those of a directory, or the small set that comes with the environment.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    analytics, calendar, customers, directory, email, project,
    session::Session,
    tables::{Row, Rule, Shape, Table},
};

/// A directory of tables that cannot be used: one line with the file, the place and the rule.
#[derive(Debug, thiserror::Error)]
#[error("tables: {file}{place}: {rule}")]
pub struct TablesError {
    file: PathBuf,
    /// `, line 3` or `, line 3, column "duration"`; empty for the whole file.
    place: String,
    rule: String,
}

/// The files that come with the environment.
const OWN: [(&str, &str); 6] = [
    (analytics::SHAPE.file, include_str!("tables/analytics_data.csv")),
    (calendar::SHAPE.file, include_str!("tables/calendar_events.csv")),
    (
        customers::SHAPE.file,
        include_str!("tables/customer_relationship_manager_data.csv"),
    ),
    (email::SHAPE.file, include_str!("tables/emails.csv")),
    (project::SHAPE.file, include_str!("tables/project_tasks.csv")),
    (directory::FILE, include_str!("tables/email_addresses.csv")),
];

/// The session that every task begins with, from the environment's own files.
pub(super) fn own() -> Result<Session, TablesError> {
    let text = |file: &'static str| {
        let own = OWN.iter().find(|(name, _)| *name == file);
        Ok((
            file.into(),
            own.map_or_else(Vec::new, |(_, text)| text.as_bytes().to_vec()),
        ))
    };
    session(text)
}

/// Likewise from the files of a directory.
pub(super) fn directory(directory: &Path) -> Result<Session, TablesError> {
    session(|file| {
        let path = directory.join(file);
        match std::fs::read(&path) {
            Ok(text) => Ok((path, text)),
            Err(error) => Err(TablesError {
                file: path,
                place: String::new(),
                rule: format!("cannot be read ({error}); a directory of tables has all six files"),
            }),
        }
    })
}

type File = (PathBuf, Vec<u8>);

fn session(open: impl Fn(&'static str) -> Result<File, TablesError>) -> Result<Session, TablesError> {
    let table = |shape: &'static Shape| table(shape, open(shape.file)?).map(Arc::new);
    Ok(Session {
        analytics: table(&analytics::SHAPE)?,
        calendar: table(&calendar::SHAPE)?,
        customers: table(&customers::SHAPE)?,
        email: table(&email::SHAPE)?,
        project: table(&project::SHAPE)?,
        plots: Arc::default(),
        directory: Arc::new(addresses(open(directory::FILE)?)?),
    })
}

fn error(file: &Path, line: u64, column: Option<&str>, rule: impl Into<String>) -> TablesError {
    let column = column.map_or_else(String::new, |column| format!(", column {column:?}"));
    TablesError {
        file: file.into(),
        place: format!(", line {line}{column}"),
        rule: rule.into(),
    }
}

/// What the CSV reader says, at its line.
fn unreadable(file: &Path, cause: &csv::Error) -> TablesError {
    let line = cause.position().map_or(1, csv::Position::line);
    let rule = match cause.kind() {
        csv::ErrorKind::Utf8 { .. } => "it is not UTF-8".to_owned(),
        csv::ErrorKind::UnequalLengths {
            expected_len, len, ..
        } => {
            format!("{len} fields, where the first line has {expected_len}")
        }
        _ => cause.to_string(),
    };
    error(file, line, None, rule)
}

/// For each column of the table its place in the file, which may have them in another order.
fn places(shape: &Shape, file: &Path, header: &csv::StringRecord) -> Result<Vec<usize>, TablesError> {
    let names: Vec<_> = shape.columns.iter().map(|column| column.name).collect();
    let mut seen = BTreeSet::new();
    for name in header {
        if !names.contains(&name) || !seen.insert(name) {
            let rule = format!(
                "not a column, or there twice; the columns are {}",
                names.join(", ")
            );
            return Err(error(file, 1, Some(name), rule));
        }
    }
    let place = |name: &&str| {
        header
            .iter()
            .position(|it| it == *name)
            .ok_or_else(|| error(file, 1, Some(name), "this column is missing"))
    };
    names.iter().map(place).collect()
}

fn table(shape: &'static Shape, (file, text): File) -> Result<Table, TablesError> {
    let mut reader = csv::Reader::from_reader(&text[..]);
    let header = reader.headers().map_err(|cause| unreadable(&file, &cause))?;
    let places = places(shape, &file, header)?;
    let (mut rows, mut ids) = (Vec::new(), BTreeSet::new());
    for record in reader.records() {
        let record = record.map_err(|cause| unreadable(&file, &cause))?;
        let line = record.position().map_or(1, csv::Position::line);
        let cell = |at: &usize| record.get(*at).filter(|cell| !cell.is_empty()).map(str::to_owned);
        let row = Row::new(shape, places.iter().map(cell));
        row.check()
            .map_err(|(column, rule)| error(&file, line, Some(column), rule))?;
        let first = &shape.columns[0];
        if first.rule == Rule::Id && !ids.insert(row.get(first.name).map(str::to_owned)) {
            let rule = "an id stands for one row, and this one has stood before";
            return Err(error(&file, line, Some(first.name), rule));
        }
        rows.push(Arc::new(row));
    }
    Ok(Table::new(shape, rows))
}

/// The company's directory: one address a line, without a header.
fn addresses((file, text): File) -> Result<Vec<String>, TablesError> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(&text[..]);
    let mut addresses = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|cause| unreadable(&file, &cause))?;
        let line = record.position().map_or(1, csv::Position::line);
        match record.iter().collect::<Vec<_>>()[..] {
            [address] if address.contains('@') => addresses.push(address.to_owned()),
            _ => return Err(error(&file, line, None, "one email address a line is expected")),
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The own files in a directory, with one of them changed.
    fn refused(file: &str, change: impl Fn(&str) -> Option<Vec<u8>>) -> String {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in OWN {
            let text = if name == file {
                change(text)
            } else {
                Some(text.into())
            };
            if let Some(text) = text {
                std::fs::write(dir.path().join(name), text).unwrap();
            }
        }
        let message = directory(dir.path()).unwrap_err().to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        message.replace(&*dir.path().to_string_lossy(), "DIR")
    }

    #[test]
    fn a_directory_with_the_own_files_is_the_own_set() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in OWN {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let own = own().unwrap();
        assert_eq!(directory(dir.path()).unwrap(), own);
        for table in own.tables() {
            assert!((10..=20).contains(&table.rows().len()), "{}", table.shape().file);
        }
        assert_eq!(own.directory.len(), 8);
    }

    #[test]
    fn columns_may_stand_in_another_order() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in OWN {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let text = "user_engaged,date_of_visit,visitor_id,page_views,session_duration_seconds,traffic_source\nTrue,2023-11-01,7,1,2,direct\n";
        std::fs::write(dir.path().join(analytics::SHAPE.file), text).unwrap();
        let session = directory(dir.path()).unwrap();
        assert_eq!(session.analytics.rows()[0].get("visitor_id"), Some("7"));
    }

    #[test]
    fn what_cannot_be_used_is_said_in_one_line_with_its_place() {
        let missing = refused("emails.csv", |_| None);
        assert!(
            missing.starts_with("tables: DIR/emails.csv: cannot be read"),
            "{missing}"
        );
        let replaced = |from: &'static str, to: &'static str| {
            move |text: &str| {
                assert!(text.contains(from), "{from}");
                Some(text.replacen(from, to, 1).into_bytes())
            }
        };
        let calendar = "calendar_events.csv";
        for (message, expected) in [
            (
                refused(calendar, replaced(",duration", "")),
                "tables: DIR/calendar_events.csv, line 1, column \"duration\": this column is missing",
            ),
            (
                refused(calendar, replaced(",duration", ",minutes")),
                "line 1, column \"minutes\": not a column",
            ),
            (
                refused(calendar, replaced(",duration", ",event_id")),
                "line 1, column \"event_id\": not a column, or there twice",
            ),
            (
                refused(calendar, replaced("2023-11-27 14:30:00", "soon")),
                "line 3, column \"event_start\": a point in time",
            ),
            (
                refused(calendar, replaced("00000007", "00000003")),
                "line 3, column \"event_id\": an id stands for one row",
            ),
            (
                refused(calendar, replaced("00000007", "7a")),
                "line 3, column \"event_id\": an id is a number",
            ),
            (
                refused(calendar, replaced("Greenhouse review,", "Greenhouse, review,")),
                "line 3: 6 fields, where the first line has 5",
            ),
            (
                refused(calendar, |_| Some(b"event_id,event_name\n1,\xff\n".to_vec())),
                "line 1, column \"participant_email\": this column is missing",
            ),
            (
                refused(calendar, |text| {
                    Some([text.as_bytes(), b"1,\xff,a,b,c\n"].concat())
                }),
                "line 14: it is not UTF-8",
            ),
            (
                refused("analytics_data.csv", replaced(",True", ",yes")),
                "line 2, column \"user_engaged\": True or False",
            ),
            (
                refused("email_addresses.csv", replaced("@", " at ")),
                "email_addresses.csv, line 1: one email address",
            ),
        ] {
            assert!(message.contains(expected), "{message}");
        }
    }
}
