//! The token store: rows of sampled tokens, in memory.
//!
//! A store's identity is made when its process starts, so a coordinate of a store that lost its rows is never taken for
//! one of this store.

use std::{collections::HashMap, sync::Arc};

use uuid::Uuid;

use crate::{
    error::BackendError,
    sampling::{Sampled, WeightRun, span_digest},
    tokens::TokenId,
};

/// Sampled tokens at rest. Never changes.
#[derive(Debug)]
pub struct Row {
    /// The prompt as the engine read it.
    pub prompt: Arc<[TokenId]>,
    /// What was sampled.
    pub tokens: Vec<Sampled>,
    /// By which weights.
    pub weights: Vec<WeightRun>,
    /// As `worker.proto` defines it.
    pub digest: [u8; 32],
}

impl Row {
    /// A row with its digest.
    pub fn new(prompt: Arc<[TokenId]>, tokens: Vec<Sampled>, weights: Vec<WeightRun>) -> Self {
        let digest = *span_digest(&prompt, &tokens).as_bytes();
        Self {
            prompt,
            tokens,
            weights,
            digest,
        }
    }
}

/// Where a row lies.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Coordinate {
    /// The store's identity.
    pub store: String,
    /// The row's name in it.
    pub row: String,
}

/// A row and where it lies.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Where.
    pub at: Coordinate,
    /// What.
    pub row: Arc<Row>,
}

/// What lies at a coordinate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// As described.
    Whole,
    /// Nothing.
    Missing,
    /// Something else.
    Altered,
}

/// All rows of this process.
#[derive(Debug)]
pub struct RowStore {
    store: String,
    next: u64,
    rows: HashMap<String, Arc<Row>>,
}

impl RowStore {
    /// An empty store with an identity of its own.
    pub fn new() -> Self {
        Self {
            store: Uuid::now_v7().to_string(),
            next: 0,
            rows: HashMap::new(),
        }
    }

    /// Its identity.
    pub fn identity(&self) -> &str {
        &self.store
    }

    /// Keeps a row.
    pub fn insert(&mut self, row: Row) -> Stored {
        self.next += 1;
        let name = self.next.to_string();
        let row = Arc::new(row);
        self.rows.insert(name.clone(), row.clone());
        Stored {
            at: Coordinate {
                store: self.store.clone(),
                row: name,
            },
            row,
        }
    }

    /// The row at a coordinate.
    pub fn get(&self, at: &Coordinate) -> Result<Stored, BackendError> {
        let row = self.rows.get(&at.row).filter(|_| at.store == self.store);
        row.map(|row| Stored {
            at: at.clone(),
            row: row.clone(),
        })
        .ok_or_else(|| BackendError::RowMissing {
            store: at.store.clone(),
            row: at.row.clone(),
        })
    }

    /// Whether a span is there as it is described.
    pub fn check(&self, at: &Coordinate, tokens: u32, digest: &[u8]) -> Found {
        match self.get(at) {
            Err(_) => Found::Missing,
            Ok(found) if found.row.tokens.len() == tokens as usize && found.row.digest == digest => {
                Found::Whole
            }
            Ok(_) => Found::Altered,
        }
    }

    /// Frees a row. True if it was there.
    pub fn remove(&mut self, at: &Coordinate) -> bool {
        at.store == self.store && self.rows.remove(&at.row).is_some()
    }

    /// How many rows are kept.
    pub fn count(&self) -> usize {
        self.rows.len()
    }
}

impl Default for RowStore {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_whole_missing_or_altered() {
        let mut rows = RowStore::new();
        let token = Sampled { id: 9, logprob: -1.0 };
        let stored = rows.insert(Row::new([1, 2].into(), vec![token], Vec::new()));
        let digest = stored.row.digest;
        assert_eq!(rows.check(&stored.at, 1, &digest), Found::Whole);
        assert_eq!(rows.check(&stored.at, 2, &digest), Found::Altered);
        assert_eq!(rows.check(&stored.at, 1, &[0; 32]), Found::Altered);
        let elsewhere = Coordinate {
            store: RowStore::new().identity().to_owned(),
            row: stored.at.row.clone(),
        };
        assert_eq!(rows.check(&elsewhere, 1, &digest), Found::Missing);
        assert!(!rows.remove(&elsewhere));
        assert!(rows.remove(&stored.at));
        assert_eq!(rows.check(&stored.at, 1, &digest), Found::Missing);
    }
}
