//! What the tools share: their arguments and their outputs.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;

use super::{session::Session, tables::Row};
use crate::environment::ToolOutcome;

pub(super) type Outcome = ToolOutcome<Session>;

/// What a tool comes to: the error is its failure, so that a tool can end early.
pub(super) type Reply = Result<Outcome, Outcome>;

/// A tool: its name, the names of its arguments, and what it does.
pub(super) struct Tool {
    pub(super) name: &'static str,
    /// `page` and `page_size` are integers, all others texts.
    pub(super) takes: &'static [&'static str],
    pub(super) run: fn(&Session, &Arguments) -> Reply,
}

/// The arguments of a call. An empty text counts as not given, as does `null`.
#[derive(Default, Debug)]
pub(super) struct Arguments {
    texts: BTreeMap<String, String>,
    page: Option<i64>,
    page_size: Option<i64>,
}

impl Arguments {
    /// Reads what the model wrote; the error says what would be right.
    pub(super) fn read(tool: &Tool, raw: &[u8]) -> Result<Self, String> {
        let wrong = |what: String| {
            format!(
                "the arguments of {} do not read: {what}; write a JSON object with {}",
                tool.name,
                tool.takes.join(", ")
            )
        };
        let raw = if raw.trim_ascii().is_empty() { b"{}" } else { raw };
        let given: BTreeMap<String, Value> =
            serde_json::from_slice(raw).map_err(|error| wrong(error.to_string()))?;
        let mut arguments = Self::default();
        for (name, value) in given {
            if !tool.takes.contains(&&*name) {
                return Err(wrong(format!("{name:?} is not one of them")));
            }
            match (&*name, value) {
                (_, Value::Null) => {}
                ("page", Value::Number(n)) if n.is_i64() => arguments.page = n.as_i64(),
                ("page_size", Value::Number(n)) if n.is_i64() => arguments.page_size = n.as_i64(),
                ("page" | "page_size", other) => {
                    return Err(wrong(format!("{name} is {other}, not an integer")));
                }
                (_, Value::String(text)) => {
                    arguments.texts.insert(name, text);
                }
                (_, other) => return Err(wrong(format!("{name} is {other}, not a string"))),
            }
        }
        Ok(arguments)
    }

    /// A text that was given.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let text = self.texts.get(name).map(String::as_str);
        text.filter(|text| !text.is_empty())
    }

    /// All of these, or `otherwise` as the tool's failure.
    pub(super) fn all<const N: usize>(
        &self,
        names: [&str; N],
        otherwise: &str,
    ) -> Result<[&str; N], Outcome> {
        let mut texts = [""; N];
        for (text, name) in texts.iter_mut().zip(names) {
            *text = self.get(name).ok_or_else(|| refused(otherwise))?;
        }
        Ok(texts)
    }
}

fn output(value: &impl Serialize) -> Bytes {
    #[derive(Serialize)]
    struct Output<'a, T> {
        output: &'a T,
    }
    // What tools say always writes: texts, numbers, and maps under texts.
    serde_json::to_vec(&Output { output: value })
        .unwrap_or_default()
        .into()
}

/// What the tool found.
pub(super) fn found(value: &impl Serialize) -> Reply {
    Ok(ToolOutcome::Same {
        output: output(value),
    })
}

/// A call that was wrong; nothing is changed.
pub(super) fn refused(message: &str) -> Outcome {
    ToolOutcome::Failed {
        output: output(&message),
    }
}

/// The session after the call, and what the tool says.
pub(super) fn changed(message: &str, session: Session) -> Reply {
    Ok(ToolOutcome::Changed {
        output: output(&message),
        state: session,
    })
}

/// One field of a row as an object.
pub(super) fn field(row: &Row, name: &str) -> Reply {
    found(&BTreeMap::from([(name, row.get(name))]))
}

/// Whether a cell has a text in it, in whatever case. Nothing has none.
pub(super) fn contains(cell: Option<&str>, text: &str) -> bool {
    cell.is_some_and(|cell| cell.to_lowercase().contains(&text.to_lowercase()))
}

/// One page of the rows, or that there is none.
pub(super) fn page(noun: &'static str, rows: &[&Row], arguments: &Arguments) -> Reply {
    let size = arguments.page_size.unwrap_or(5);
    let Some(size) = usize::try_from(size).ok().filter(|size| *size > 0) else {
        return Err(refused("page_size must be at least 1."));
    };
    if rows.is_empty() {
        return found(&format!("No {noun} found."));
    }
    let pages = rows.len().div_ceil(size);
    let page = usize::try_from(arguments.page.unwrap_or(1))
        .unwrap_or(1)
        .clamp(1, pages);
    let start = (page - 1) * size;
    found(&Page {
        noun,
        rows: &rows[start..rows.len().min(start.saturating_add(size))],
        pagination: Pagination {
            noun,
            total: rows.len(),
            page,
            size,
            pages,
        },
    })
}

struct Page<'a> {
    noun: &'static str,
    rows: &'a [&'a Row],
    pagination: Pagination,
}

impl Serialize for Page<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(self.noun, self.rows)?;
        map.serialize_entry("pagination", &self.pagination)?;
        map.end()
    }
}

struct Pagination {
    noun: &'static str,
    total: usize,
    page: usize,
    size: usize,
    pages: usize,
}

impl Serialize for Pagination {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry(&format!("total_{}", self.noun), &self.total)?;
        map.serialize_entry("page", &self.page)?;
        map.serialize_entry("page_size", &self.size)?;
        map.serialize_entry("total_pages", &self.pages)?;
        map.end()
    }
}

/// That a value is one of a list: `Status not valid. Please choose from: 'Lost', 'Won'`, with `end` after it.
pub(super) fn one_of(what: &str, value: &str, list: &[&str], end: &str) -> Result<(), Outcome> {
    if list.contains(&value) {
        return Ok(());
    }
    let list = list.join("', '");
    Err(refused(&format!(
        "{what} not valid. Please choose from: '{list}'{end}"
    )))
}
