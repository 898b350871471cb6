//! The built-in environments, one module each.

mod counter;
mod json;
mod synonyms;
mod weather;
mod workplace;

pub use counter::Counter;
pub use synonyms::Synonyms;
pub use weather::Weather;
pub use workplace::{TablesError, Workplace};

/// The names of the built-in environments.
pub const BUILT_IN: [&str; 4] = ["counter", "synonyms", "weather", "workplace"];

#[cfg(test)]
mod recorded_tests;
