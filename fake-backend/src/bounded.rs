//! A memory of what is over: the newest entries, as many as fit.

use std::{
    collections::{HashSet, VecDeque},
    hash::Hash,
};

/// Remembers the last `limit` values put in.
#[derive(Debug)]
pub struct BoundedSet<T> {
    limit: usize,
    order: VecDeque<T>,
    known: HashSet<T>,
}

impl<T: Clone + Eq + Hash> BoundedSet<T> {
    /// An empty one.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            order: VecDeque::new(),
            known: HashSet::new(),
        }
    }

    /// Adds a value; drops the oldest where there is no more room.
    pub fn insert(&mut self, value: T) {
        if self.known.insert(value.clone()) {
            self.order.push_back(value);
            if self.order.len() > self.limit
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
    }

    /// Whether it is remembered.
    pub fn contains(&self, value: &T) -> bool {
        self.known.contains(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first() {
        let mut set = BoundedSet::new(2);
        for value in [1, 2, 2, 3] {
            set.insert(value);
        }
        assert_eq!([1, 2, 3].map(|value| set.contains(&value)), [false, true, true]);
    }
}
