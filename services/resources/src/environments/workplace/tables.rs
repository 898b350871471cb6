//! A table: rows of text under named columns. A change makes a new table that shares all other rows with the old one.

use std::sync::Arc;

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::moment::moment;

/// What a table is made of.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// The file's name in a directory of tables.
    pub(super) file: &'static str,
    /// In the order of the file and of the outputs.
    pub(super) columns: &'static [Column],
}

/// A column: its name, and what its cells may be.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) rule: Rule,
}

impl Column {
    pub(super) const fn new(name: &'static str, rule: Rule) -> Self {
        Self { name, rule }
    }
}

/// What a cell may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// Anything, also nothing.
    Text,
    /// The row's own number, of at most 18 digits.
    Id,
    /// A point in time.
    Moment,
    /// A number.
    Number,
    /// `True` or `False`; a boolean in outputs.
    Flag,
}

impl Rule {
    /// What is wrong with a cell.
    pub(super) fn check(self, cell: Option<&str>) -> Result<(), &'static str> {
        let text = cell.unwrap_or_default();
        let (holds, rule) = match self {
            Self::Text => (true, ""),
            Self::Id => (
                (1..=18).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
                "an id is a number of at most 18 digits",
            ),
            Self::Moment => (
                moment(text).is_some(),
                "a point in time is written as 2023-11-30 23:59:00",
            ),
            Self::Number => (
                text.trim().parse::<f64>().is_ok_and(f64::is_finite),
                "a number is expected",
            ),
            Self::Flag => (matches!(text, "True" | "False"), "True or False is expected"),
        };
        if holds { Ok(()) } else { Err(rule) }
    }
}

impl Shape {
    pub(super) fn at(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == column)
    }
}

/// A row. An empty cell of a file is nothing, `null` in outputs; a cell that a call emptied is an empty text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    shape: &'static Shape,
    cells: Box<[Option<String>]>,
}

impl Row {
    /// A row of the cells in the columns' order: as many as there are columns.
    pub(super) fn new(shape: &'static Shape, cells: impl IntoIterator<Item = Option<String>>) -> Self {
        Self {
            shape,
            cells: cells.into_iter().collect(),
        }
    }

    /// A cell; nothing where it is empty, or where there is no such column.
    pub(super) fn get(&self, column: &str) -> Option<&str> {
        self.cells.get(self.shape.at(column)?)?.as_deref()
    }

    pub(super) fn shape(&self) -> &'static Shape {
        self.shape
    }

    pub(super) fn cells(&self) -> &[Option<String>] {
        &self.cells
    }

    /// The first column that breaks its rule, and the rule.
    pub(super) fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let columns = self.shape.columns.iter();
        columns.zip(&self.cells).try_for_each(|(column, cell)| {
            column
                .rule
                .check(cell.as_deref())
                .map_err(|rule| (column.name, rule))
        })
    }

    /// About how many bytes it is in an exported session.
    fn size(&self) -> u64 {
        let cell = |cell: &Option<String>| {
            cell.as_ref().map_or(5, |text| {
                let escaped = text.bytes().filter(|byte| matches!(byte, b'"' | b'\\' | 0..32));
                text.len() + escaped.count() + 3
            })
        };
        self.cells.iter().map(cell).sum::<usize>() as u64 + 2
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.cells.len()))?;
        for (column, cell) in self.shape.columns.iter().zip(&self.cells) {
            match column.rule {
                Rule::Flag => map.serialize_entry(column.name, &(cell.as_deref() == Some("True")))?,
                _ => map.serialize_entry(column.name, cell)?,
            }
        }
        map.end()
    }
}

/// A table's rows, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Table {
    shape: &'static Shape,
    rows: Vec<Arc<Row>>,
    size: u64,
}

impl Table {
    pub(super) fn new(shape: &'static Shape, rows: Vec<Arc<Row>>) -> Self {
        let size = rows.iter().map(|row| row.size()).sum();
        Self { shape, rows, size }
    }

    pub(super) fn shape(&self) -> &'static Shape {
        self.shape
    }

    pub(super) fn rows(&self) -> &[Arc<Row>] {
        &self.rows
    }

    /// About how many bytes it is in an exported session.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The row with this id, which stands in the first column.
    pub(super) fn find(&self, id: &str) -> Option<&Row> {
        self.position(id).map(|at| &*self.rows[at])
    }

    fn position(&self, id: &str) -> Option<usize> {
        let is = |row: &Arc<Row>| row.cells.first().and_then(Option::as_deref) == Some(id);
        self.rows.iter().position(is)
    }

    /// One above the highest id, in 8 digits.
    pub(super) fn next_id(&self) -> String {
        let ids = self.rows.iter().filter_map(|row| row.cells.first()?.as_deref());
        let highest = ids.filter_map(|id| id.parse::<u64>().ok()).max();
        format!("{:08}", highest.map_or(0, |id| id + 1))
    }

    /// With a row more, at the end.
    pub(super) fn with(&self, row: Row) -> Arc<Self> {
        let mut table = self.clone();
        table.size += row.size();
        table.rows.push(Arc::new(row));
        Arc::new(table)
    }

    /// Without the row of this id; nothing where there is none.
    pub(super) fn without(&self, id: &str) -> Option<Arc<Self>> {
        let at = self.position(id)?;
        let mut table = self.clone();
        table.size -= table.rows.remove(at).size();
        Some(Arc::new(table))
    }

    /// With another value in one cell of the row of this id; nothing where there is no such row or column.
    pub(super) fn setting(&self, id: &str, column: &str, value: String) -> Option<Arc<Self>> {
        let (at, column) = (self.position(id)?, self.shape.at(column)?);
        let mut row = Row::clone(&self.rows[at]);
        *row.cells.get_mut(column)? = Some(value);
        let mut table = self.clone();
        table.size = table.size - table.rows[at].size() + row.size();
        table.rows[at] = Arc::new(row);
        Some(Arc::new(table))
    }
}
