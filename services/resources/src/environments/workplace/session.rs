//! A session's tables, and how they are written into a record.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::tables::{Row, Table};

/// The five tables of a session, with the plots that were asked for. A copy shares what is not changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    pub(super) analytics: Arc<Table>,
    pub(super) calendar: Arc<Table>,
    pub(super) customers: Arc<Table>,
    pub(super) email: Arc<Table>,
    pub(super) project: Arc<Table>,
    /// The files of the plots, in the order they were asked for: what the analytics tools change.
    pub(super) plots: Arc<Vec<String>>,
    /// The company's addresses, which nothing changes: not part of a record.
    pub(super) directory: Arc<Vec<String>>,
}

/// A session in a record: rows without their columns' names.
#[derive(Serialize)]
struct Written<'a> {
    began_with: &'a str,
    tables: [Vec<&'a [Option<String>]>; 5],
    plots: &'a [String],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    began_with: String,
    tables: [Vec<Vec<Option<String>>>; 5],
    plots: Vec<String>,
}

impl Session {
    pub(super) fn tables(&self) -> [&Arc<Table>; 5] {
        [
            &self.analytics,
            &self.calendar,
            &self.customers,
            &self.email,
            &self.project,
        ]
    }

    /// A digest of all of it: sessions that began with other tables are told apart by it.
    pub(super) fn digest(&self) -> String {
        let mut digest = blake3::Hasher::new();
        digest.update(&self.written(""));
        for address in self.directory.iter() {
            digest.update(address.as_bytes()).update(b"\n");
        }
        digest.finalize().to_hex().to_string()
    }

    /// The session as bytes; `began_with` is the digest of the tables that it began with.
    pub(super) fn written(&self, began_with: &str) -> Bytes {
        let written = Written {
            began_with,
            tables: self
                .tables()
                .map(|table| table.rows().iter().map(|row| row.cells()).collect()),
            plots: &self.plots,
        };
        // Texts and lists of texts always write.
        serde_json::to_vec(&written).unwrap_or_default().into()
    }

    /// About how many bytes `written` would make.
    pub(super) fn size(&self) -> u64 {
        let plots: usize = self.plots.iter().map(|plot| plot.len() + 3).sum();
        self.tables().iter().map(|table| table.size()).sum::<u64>() + plots as u64 + 150
    }

    /// The session from its bytes, read by an environment whose sessions begin with `self`.
    pub(super) fn read(&self, began_with: &str, written: &[u8]) -> Result<Self, String> {
        let read: Read = serde_json::from_slice(written)
            .map_err(|error| format!("the workplace's tables do not read: {error}"))?;
        if read.began_with != began_with {
            return Err(
                "the session began with other tables than this server has; give it the same with `tables`"
                    .into(),
            );
        }
        let [analytics, calendar, customers, email, project] = read.tables;
        Ok(Self {
            analytics: table(&self.analytics, analytics)?,
            calendar: table(&self.calendar, calendar)?,
            customers: table(&self.customers, customers)?,
            email: table(&self.email, email)?,
            project: table(&self.project, project)?,
            plots: Arc::new(read.plots),
            directory: self.directory.clone(),
        })
    }
}

/// A table of these rows; the very one that sessions begin with where it is unchanged.
fn table(initial: &Arc<Table>, rows: Vec<Vec<Option<String>>>) -> Result<Arc<Table>, String> {
    let shape = initial.shape();
    let row = |cells: Vec<Option<String>>| {
        if cells.len() != shape.columns.len() {
            let (file, expected) = (shape.file, shape.columns.len());
            return Err(format!("{file}: a row of {} cells, not {expected}", cells.len()));
        }
        let row = Row::new(shape, cells);
        row.check()
            .map_err(|(column, rule)| format!("{}: column {column:?}: {rule}", shape.file))?;
        Ok(Arc::new(row))
    };
    let table = Table::new(shape, rows.into_iter().map(row).collect::<Result<_, _>>()?);
    Ok(if table == **initial {
        initial.clone()
    } else {
        Arc::new(table)
    })
}

#[cfg(test)]
mod tests {
    use super::{super::load::own, *};

    fn changed() -> Session {
        let mut session = own().unwrap();
        session.email = session.email.without("00000005").unwrap();
        let subject = "\"quoted\" \\n,\nline é".to_owned();
        session.email = session.email.setting("00000002", "subject", subject).unwrap();
        session.customers = session
            .customers
            .setting("00000000", "notes", String::new())
            .unwrap();
        session.plots = Arc::new(vec!["plots/a.png".into()]);
        session
    }

    #[test]
    fn a_session_reads_back_exactly_and_shares_what_is_unchanged() {
        let initial = own().unwrap();
        let digest = initial.digest();
        for session in [initial.clone(), changed()] {
            let written = session.written(&digest);
            let read = initial.read(&digest, &written).unwrap();
            assert_eq!(read, session);
            assert_eq!(read.written(&digest), written);
            assert!(Arc::ptr_eq(&read.analytics, &initial.analytics));
        }
    }

    #[test]
    fn a_change_leaves_all_other_rows_shared() {
        let (before, after) = (own().unwrap(), changed());
        assert_eq!(before.calendar, after.calendar);
        let next = before.email.setting("00000002", "subject", "x".into()).unwrap();
        let same = |at: usize| Arc::ptr_eq(&before.email.rows()[at], &next.rows()[at]);
        assert_eq!((0..next.rows().len()).filter(|at| !same(*at)).count(), 1);
    }

    #[test]
    fn the_size_is_about_right() {
        for session in [own().unwrap(), changed()] {
            let (size, written) = (session.size(), session.written(&session.digest()).len() as u64);
            assert!(size.abs_diff(written) < 200, "{size} for {written}");
        }
    }

    #[test]
    fn bytes_that_do_not_read_say_why() {
        let session = own().unwrap();
        let digest = session.digest();
        let why = |written: &[u8]| session.read(&digest, written).unwrap_err();
        assert!(why(b"").contains("do not read"));
        assert!(why(&session.written("other")).contains("other tables"));
        let text = String::from_utf8(session.written(&digest).to_vec()).unwrap();
        let change = |from: &str, to: &str| {
            assert!(text.contains(from));
            why(text.replacen(from, to, 1).as_bytes())
        };
        assert!(change("\"True\"", "\"yes\"").contains("user_engaged"));
        assert!(change(",\"True\"", "").contains("a row of 5 cells, not 6"));
        assert!(change("\"plots\"", "\"plans\"").contains("plans"));
    }

    #[test]
    fn other_tables_have_another_digest() {
        let mut other = own().unwrap();
        other.directory = Arc::new(vec!["a@b".into()]);
        assert_ne!(other.digest(), own().unwrap().digest());
        assert_ne!(changed().digest(), own().unwrap().digest());
    }
}
