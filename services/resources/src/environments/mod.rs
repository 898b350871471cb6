//! The built-in environments, one module each.

mod counter;
mod json;
mod synonyms;
mod weather;

pub use counter::Counter;
pub use synonyms::Synonyms;
pub use weather::Weather;

/// The names of the built-in environments.
pub const BUILT_IN: [&str; 3] = ["counter", "synonyms", "weather"];

#[cfg(test)]
mod recorded_tests;
