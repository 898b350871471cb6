//! Why a resources server could not start or ended.

use belay_mesh::server::ServeError;

use crate::environments::{BUILT_IN, TablesError};

/// Every error of this server. Those of calls are refusals.
#[derive(Debug, thiserror::Error)]
pub enum ResourcesError {
    /// There is no built-in environment of that name.
    #[error("{name:?} is not a built-in environment; there is {}: name one of them with `builtin`", BUILT_IN.join(", "))]
    UnknownEnvironment {
        /// As it was asked for.
        name: String,
    },
    /// The tables that sessions begin with.
    #[error(transparent)]
    Tables(#[from] TablesError),
    /// Tables for an environment that has none.
    #[error("{name:?} has no tables; take out `tables`, or name `workplace` with `builtin`")]
    NoTables {
        /// The built-in environment.
        name: String,
    },
    /// The effect log's client.
    #[error("the effect log {url} cannot be used: {source}; mend `effect_log`")]
    EffectLog {
        /// As it was configured.
        url: String,
        /// What is wrong.
        source: reqwest::Error,
    },
    /// The client that asks before work.
    #[error("{url} cannot be asked: {source}; mend `faults.work_asks`")]
    WorkAsks {
        /// As it was configured.
        url: String,
        /// What is wrong.
        source: reqwest::Error,
    },
    /// Its ports.
    #[error(transparent)]
    Serve(#[from] ServeError),
}
