//! The version of the format, the same in every file of a checkpoint.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// A version. A newer major is refused; a newer minor has fields that are passed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Format {
    /// Grows when an old reader would read wrong.
    pub major: u32,
    /// Grows with new fields.
    pub minor: u32,
}

impl Format {
    /// What this program writes.
    pub const CURRENT: Self = Self { major: 1, minor: 0 };

    /// Refuses a format that this program does not know.
    pub fn check(self, file: &Path) -> Result<(), StoreError> {
        if self.major == Self::CURRENT.major {
            return Ok(());
        }
        Err(StoreError::Invalid {
            file: file.into(),
            what: format!(
                "is of format {}.{}, and this program reads format {} only",
                self.major,
                self.minor,
                Self::CURRENT.major
            ),
            newer: true,
            previous: None,
        })
    }
}
