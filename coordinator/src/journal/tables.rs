//! How the journal's entries lie in the database: one table for each kind, keys as text, values as JSON.

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use serde::{Serialize, de::DeserializeOwned};

use super::state::{Entry, State};

type Table = TableDefinition<'static, &'static str, &'static [u8]>;

const META: Table = TableDefinition::new("meta");
const REMOVED: Table = TableDefinition::new("removed");
const ROLLOUTS: Table = TableDefinition::new("rollouts");
const FORGOTTEN: Table = TableDefinition::new("forgotten");
const UNSETTLED: Table = TableDefinition::new("unsettled");
const OWED: Table = TableDefinition::new("owed");
const PUBLISHED: Table = TableDefinition::new("published");
const UNFINISHED: Table = TableDefinition::new("unfinished");
const OPENED: Table = TableDefinition::new("opened");
const ENDED: Table = TableDefinition::new("ended");

const ALL: [Table; 10] = [
    META, REMOVED, ROLLOUTS, FORGOTTEN, UNSETTLED, OWED, PUBLISHED, UNFINISHED, OPENED, ENDED,
];

const DEPLOYMENT: &str = "deployment";
const EPOCH: &str = "epoch";
const MEMBERS_VERSION: &str = "members_version";
const MARKS_VERSION: &str = "marks_version";
const OPEN_RUN: &str = "open_run";

/// What the database or a value in it said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TableError(String);

macro_rules! from {
    ($($error:ty),*) => {$(
        impl From<$error> for TableError {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        }
    )*};
}
from!(
    redb::TransactionError,
    redb::TableError,
    redb::StorageError,
    redb::CommitError,
    serde_json::Error,
    belay_core::refusal::Refusal
);

/// Makes what is missing; replies the deployment that the journal belongs to.
pub fn create(db: &Database, deployment: &str) -> Result<String, TableError> {
    let write = db.begin_write()?;
    for table in ALL {
        write.open_table(table)?;
    }
    let found: Option<String> = get(&write, META, DEPLOYMENT)?;
    if found.is_none() {
        put(&write, META, DEPLOYMENT, &deployment)?;
    }
    write.commit()?;
    Ok(found.unwrap_or_else(|| deployment.into()))
}

/// Reads everything.
pub fn load(db: &Database) -> Result<State, TableError> {
    let write = db.begin_write()?;
    let mut state = State {
        epoch: get(&write, META, EPOCH)?.unwrap_or_default(),
        members_version: get(&write, META, MEMBERS_VERSION)?.unwrap_or_default(),
        open_run: get(&write, META, OPEN_RUN)?,
        ..State::default()
    };
    state.book.version = get(&write, META, MARKS_VERSION)?.unwrap_or_default();
    write.abort()?;
    each(db, REMOVED, |key, (): ()| {
        state.removed.insert(key.parse()?);
        Ok(())
    })?;
    each(db, ROLLOUTS, |key, row| {
        state
            .book
            .rollouts
            .insert(belay_core::ids::RolloutId::new(key)?, row);
        Ok(())
    })?;
    each(db, FORGOTTEN, |key, until| {
        state
            .book
            .forgotten
            .insert(belay_core::ids::RolloutId::new(key)?, until);
        Ok(())
    })?;
    each(db, UNSETTLED, |key, unsettled| {
        state.unsettled.insert(key.parse()?, unsettled);
        Ok(())
    })?;
    each(db, OWED, |key, why| {
        state.owed.insert(key.parse()?, why);
        Ok(())
    })?;
    each(db, PUBLISHED, |key, (): ()| {
        state.published.insert(key.parse()?);
        Ok(())
    })?;
    each(db, UNFINISHED, |key, unfinished| {
        let number = key
            .parse()
            .map_err(|_| TableError(format!("unfinished {key:?} is not a number")))?;
        state.unfinished.insert(number, unfinished);
        Ok(())
    })?;
    each(db, OPENED, |key, incarnation| {
        state.opened.insert(key.parse()?, incarnation);
        Ok(())
    })?;
    each(db, ENDED, |key, ended| {
        state.ended.insert(key.parse()?, ended);
        Ok(())
    })?;
    Ok(state)
}

/// Writes one change into a transaction.
pub fn store(write: &WriteTransaction, entry: &Entry) -> Result<(), TableError> {
    match entry {
        Entry::Epoch(epoch) => put(write, META, EPOCH, epoch),
        Entry::MembersVersion(version) => put(write, META, MEMBERS_VERSION, version),
        Entry::Removed(instance) => put(write, REMOVED, &instance.to_string(), &()),
        Entry::MarksVersion(version) => put(write, META, MARKS_VERSION, version),
        Entry::Rollout(rollout, row) => put(write, ROLLOUTS, rollout.as_str(), row),
        Entry::RolloutGone(rollout) => delete(write, ROLLOUTS, rollout.as_str()),
        Entry::Forgotten(rollout, until) => put(write, FORGOTTEN, rollout.as_str(), until),
        Entry::ForgottenGone(rollout) => delete(write, FORGOTTEN, rollout.as_str()),
        Entry::Run(run) => put(write, META, OPEN_RUN, run),
        Entry::RunOver(ended) => {
            delete(write, META, OPEN_RUN)?;
            match ended {
                Some((id, ended)) => put(write, ENDED, &id.to_string(), ended),
                None => Ok(()),
            }
        }
        Entry::Unsettled(id, unsettled) => put(write, UNSETTLED, &id.to_string(), unsettled),
        Entry::Settled(id) => delete(write, UNSETTLED, &id.to_string()),
        Entry::Owed(id, why) => put(write, OWED, &id.to_string(), why),
        Entry::Paid(id) => delete(write, OWED, &id.to_string()),
        Entry::Published(id) => put(write, PUBLISHED, &id.to_string(), &()),
        Entry::Pruned(id) => delete(write, PUBLISHED, &id.to_string()),
        Entry::Unfinished(number, unfinished) => put(write, UNFINISHED, &number.to_string(), unfinished),
        Entry::Finished(number) => delete(write, UNFINISHED, &number.to_string()),
        Entry::Opened(instance, incarnation) => put(write, OPENED, &instance.to_string(), incarnation),
    }
}

fn put<V: Serialize + ?Sized>(
    write: &WriteTransaction,
    table: Table,
    key: &str,
    value: &V,
) -> Result<(), TableError> {
    let bytes = serde_json::to_vec(value)?;
    write.open_table(table)?.insert(key, bytes.as_slice())?;
    Ok(())
}

fn delete(write: &WriteTransaction, table: Table, key: &str) -> Result<(), TableError> {
    write.open_table(table)?.remove(key)?;
    Ok(())
}

fn get<V: DeserializeOwned>(
    write: &WriteTransaction,
    table: Table,
    key: &str,
) -> Result<Option<V>, TableError> {
    let table = write.open_table(table)?;
    let value = table.get(key)?;
    Ok(value
        .map(|bytes| serde_json::from_slice(bytes.value()))
        .transpose()?)
}

fn each<V: DeserializeOwned>(
    db: &Database,
    table: Table,
    mut take: impl FnMut(&str, V) -> Result<(), TableError>,
) -> Result<(), TableError> {
    let table = db.begin_read()?.open_table(table)?;
    for row in table.iter()? {
        let (key, value) = row?;
        take(key.value(), serde_json::from_slice(value.value())?)?;
    }
    Ok(())
}
