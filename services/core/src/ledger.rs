//! The capture ledger: a row for each model call of an episode, chained so that a trajectory can be proved whole.
//!
//! Rows are only ever added. A row's chain hash covers the row before it and what was asked and sampled, but neither lives nor places: a
//! chain stays the same chain when its episode goes on in another life or its tokens move to another store.

use std::sync::Arc;

use crate::{
    ids::{Digest, Episode, ExecutionId, Operation},
    parts::LedgerTip,
};

/// Why a generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FinishReason {
    /// The model ended its answer.
    Stop,
    /// The token budget is used up.
    Length,
    /// The answer calls tools.
    ToolCalls,
}

/// A run of tokens that were sampled by the same weights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WeightSpan {
    /// How many tokens, in order.
    pub tokens: u32,
    /// The weights' version; empty means unknown.
    pub version: String,
}

/// Where tokens lie. Opaque to everyone but the store that issued it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Coordinate {
    /// The token store's identity.
    pub store: String,
    /// The row.
    pub row: String,
}

/// Sampled tokens at rest, and how to know them again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenSpan {
    /// Where they lie in a token store. `None`: they are carried with the row (see [`Row::carried`]).
    pub coordinate: Option<Coordinate>,
    /// How many were sampled.
    pub tokens: u32,
    /// As `token_digest` of them.
    pub digest: Digest,
    /// Which weights sampled which tokens; their sum is `tokens`.
    pub weights: Vec<WeightSpan>,
}

impl TokenSpan {
    /// The weights account for every token.
    pub fn aligned(&self) -> bool {
        self.weights.iter().map(|w| u64::from(w.tokens)).sum::<u64>() == u64::from(self.tokens)
    }
}

/// The tokens of one model call.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tokens {
    /// The prompt as the engine read it.
    pub prompt: Vec<u32>,
    /// What was sampled.
    pub sampled: Vec<u32>,
    /// Natural logarithm of each sampled token's probability; as many as `sampled`.
    pub logprobs: Vec<f32>,
}

impl Tokens {
    /// As `token_digest`; `None` when there is not exactly one logprob for each sampled token.
    pub fn digest(&self) -> Option<Digest> {
        (self.sampled.len() == self.logprobs.len()).then(|| token_digest(self))
    }
}

/// BLAKE3 over the prompt ids' count, the prompt ids, and for each sampled token its id and the bits of its logprob,
/// all little-endian u32: what a token store and a ledger agree on.
fn token_digest(tokens: &Tokens) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(tokens.prompt.len() as u32).to_le_bytes());
    for id in &tokens.prompt {
        hasher.update(&id.to_le_bytes());
    }
    for (id, logprob) in tokens.sampled.iter().zip(&tokens.logprobs) {
        hasher.update(&id.to_le_bytes());
        hasher.update(&logprob.to_bits().to_le_bytes());
    }
    hasher.finalize().into()
}

/// What a model call brought, before it has its place in the chain.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// Its place in the rollout.
    pub operation: Operation,
    /// The attempt that sampled it.
    pub episode: Episode,
    /// The life that sampled it.
    pub execution: ExecutionId,
    /// BLAKE3 of the request.
    pub request_digest: Digest,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// What was sampled. `None`: the engine gives no token ids.
    pub span: Option<TokenSpan>,
    /// The tokens themselves, where no token store has them.
    pub carried: Option<Arc<Tokens>>,
    /// Why it ended.
    pub finish: FinishReason,
}

/// One model call in the ledger.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// What it brought.
    pub entry: Entry,
    /// Chain hash of the row before; `None` for the first.
    pub parent: Option<Digest>,
    /// This row's own.
    pub chain: Digest,
}

impl Row {
    /// The tokens, where no token store has them.
    pub fn carried(&self) -> Option<&Arc<Tokens>> {
        self.entry.carried.as_ref()
    }
}

/// BLAKE3 over parent (32 zero bytes if none), turn, index (u32 LE), request digest, prompt tokens, sampled tokens (u32 LE)
/// and token digest (32 zero bytes where the engine gives no tokens).
fn chain_hash(parent: Option<Digest>, entry: &Entry) -> Digest {
    let (sampled, digest) = entry.span.as_ref().map_or((0, [0; 32]), |s| (s.tokens, s.digest));
    let mut hasher = blake3::Hasher::new();
    hasher.update(&parent.unwrap_or_default());
    hasher.update(&entry.operation.turn.to_le_bytes());
    hasher.update(&entry.operation.index.to_le_bytes());
    hasher.update(&entry.request_digest);
    hasher.update(&entry.prompt_tokens.to_le_bytes());
    hasher.update(&sampled.to_le_bytes());
    hasher.update(&digest);
    hasher.finalize().into()
}

/// A ledger that is no chain: which row, and what is wrong with it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("ledger row {index} (operation {operation}) {what}")]
pub struct BrokenChain {
    /// The row, from 0.
    pub index: usize,
    /// Its operation.
    pub operation: Operation,
    /// What is wrong.
    pub what: &'static str,
}

/// The ledger of one episode. Cloning copies references, so a clone is a capture with its length pinned.
#[derive(Clone, Default, Debug)]
pub struct Ledger {
    rows: Vec<Arc<Row>>,
}

impl Ledger {
    /// Takes rows that were saved, if they are a chain.
    pub fn from_rows(rows: Vec<Row>) -> Result<Self, BrokenChain> {
        let mut before: Option<&Row> = None;
        for (index, row) in rows.iter().enumerate() {
            let operation = row.entry.operation;
            let broken = |what| {
                Err(BrokenChain {
                    index,
                    operation,
                    what,
                })
            };
            match before {
                None if operation != Operation::FIRST => return broken("is the first and not (0, 0)"),
                Some(before) if operation <= before.entry.operation => {
                    return broken("is not later than the one before it");
                }
                _ => {}
            }
            if row.parent != before.map(|b| b.chain) {
                return broken("does not name the row before it as its parent");
            }
            if row.chain != chain_hash(row.parent, &row.entry) {
                return broken("does not have the chain hash of its content");
            }
            before = Some(row);
        }
        Ok(Self {
            rows: rows.into_iter().map(Arc::new).collect(),
        })
    }

    /// Adds a row at the end. The caller has checked that the operation is later than the last.
    pub fn append(&mut self, entry: Entry) -> Arc<Row> {
        debug_assert!(
            self.rows
                .last()
                .is_none_or(|last| last.entry.operation < entry.operation)
        );
        let parent = self.rows.last().map(|last| last.chain);
        let row = Arc::new(Row {
            chain: chain_hash(parent, &entry),
            parent,
            entry,
        });
        self.rows.push(row.clone());
        row
    }

    /// The last row.
    pub fn last(&self) -> Option<&Arc<Row>> {
        self.rows.last()
    }

    /// The ledger's end, as the closure check wants it.
    pub fn tip(&self) -> Option<LedgerTip> {
        self.rows.last().map(|row| LedgerTip {
            operation: row.entry.operation,
            chain: row.chain,
            parent: row.parent,
        })
    }

    /// The only operation that can be added: the model call of the turn after the last row's.
    pub fn next_operation(&self) -> Operation {
        self.rows.last().map_or(Operation::FIRST, |row| {
            Operation::model_call(row.entry.operation.turn.saturating_add(1))
        })
    }

    /// All rows, in order.
    pub fn rows(&self) -> &[Arc<Row>] {
        &self.rows
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// No model call has finished.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::ids::RolloutId;

    fn entry(turn: u32) -> Entry {
        Entry {
            operation: Operation::model_call(turn),
            episode: Episode::new(RolloutId::new("r").expect("legal"), 0),
            execution: ExecutionId(Uuid::nil()),
            request_digest: [turn as u8; 32],
            prompt_tokens: 3 + turn,
            span: Some(TokenSpan {
                coordinate: Some(Coordinate {
                    store: "s".into(),
                    row: turn.to_string(),
                }),
                tokens: 5,
                digest: [7; 32],
                weights: vec![WeightSpan {
                    tokens: 5,
                    version: String::new(),
                }],
            }),
            carried: None,
            finish: FinishReason::ToolCalls,
        }
    }

    fn rows(n: u32) -> Vec<Row> {
        let mut ledger = Ledger::default();
        for turn in 0..n {
            ledger.append(entry(turn));
        }
        ledger.rows().iter().map(|row| (**row).clone()).collect()
    }

    #[test]
    fn what_was_appended_reads_back_as_a_chain() {
        let ledger = Ledger::from_rows(rows(4)).expect("a chain");
        let tip = ledger.tip().expect("four rows");
        assert_eq!(tip.operation, Operation::model_call(3));
        assert_eq!(tip.parent, Some(ledger.rows()[2].chain));
        assert_eq!(ledger.rows()[0].parent, None);
        assert!(
            Ledger::from_rows(Vec::new())
                .expect("no row is a chain")
                .tip()
                .is_none()
        );
    }

    #[test]
    fn any_altered_row_breaks_the_chain() {
        type Alter = fn(&mut Row);
        let alterations: [(&str, Alter); 9] = [
            ("turn", |r| r.entry.operation.turn += 100),
            ("index", |r| r.entry.operation.index += 1),
            ("request digest", |r| r.entry.request_digest[31] ^= 1),
            ("prompt tokens", |r| r.entry.prompt_tokens += 1),
            ("sampled tokens", |r| {
                r.entry.span.as_mut().expect("set").tokens += 1
            }),
            ("token digest", |r| {
                r.entry.span.as_mut().expect("set").digest[0] ^= 1
            }),
            ("no span", |r| r.entry.span = None),
            ("parent", |r| r.parent = Some([9; 32])),
            ("chain", |r| r.chain[0] ^= 1),
        ];
        for at in 0..4 {
            for (what, alter) in alterations {
                let mut altered = rows(4);
                alter(&mut altered[at]);
                assert!(Ledger::from_rows(altered).is_err(), "{what} of row {at}");
            }
        }
    }

    #[test]
    fn a_row_missing_twice_or_elsewhere_breaks_the_chain() {
        for at in 0..3 {
            let mut missing = rows(4);
            missing.remove(at);
            assert!(Ledger::from_rows(missing).is_err(), "without row {at}");
            let mut swapped = rows(4);
            swapped.swap(at, at + 1);
            assert!(
                Ledger::from_rows(swapped).is_err(),
                "rows {at} and {} swapped",
                at + 1
            );
        }
        let mut twice = rows(4);
        twice.push(twice[3].clone());
        assert!(Ledger::from_rows(twice).is_err());
    }

    #[test]
    fn lives_and_places_are_not_in_the_chain() {
        let mut moved = rows(2);
        for row in &mut moved {
            row.entry.episode.attempt = 9;
            row.entry.execution = ExecutionId(Uuid::max());
            row.entry.span.as_mut().expect("set").coordinate = None;
        }
        let moved = Ledger::from_rows(moved).expect("still a chain");
        assert_eq!(moved.tip(), Ledger::from_rows(rows(2)).expect("a chain").tip());
    }

    #[test]
    fn a_capture_does_not_see_rows_that_come_later() {
        let mut ledger = Ledger::from_rows(rows(2)).expect("a chain");
        let captured = ledger.clone();
        ledger.append(entry(2));
        assert_eq!((captured.len(), ledger.len()), (2, 3));
        assert!(
            Arc::ptr_eq(&captured.rows()[1], &ledger.rows()[1]),
            "references, not copies"
        );
    }

    #[test]
    fn a_token_digest_covers_every_id_and_every_bit_of_a_logprob() {
        let tokens = Tokens {
            prompt: vec![1, 2],
            sampled: vec![3, 4],
            logprobs: vec![-0.5, 0.0],
        };
        let digest = tokens.digest().expect("aligned");
        for altered in [
            Tokens {
                prompt: vec![1],
                ..tokens.clone()
            },
            Tokens {
                prompt: vec![1, 9],
                ..tokens.clone()
            },
            Tokens {
                sampled: vec![3, 9],
                ..tokens.clone()
            },
            Tokens {
                logprobs: vec![-0.5, -0.0],
                ..tokens.clone()
            },
            Tokens {
                prompt: vec![1],
                sampled: vec![2, 3],
                logprobs: vec![0.0, 0.0],
            },
        ] {
            assert_ne!(altered.digest().expect("aligned"), digest, "{altered:?}");
        }
        assert_eq!(
            Tokens {
                logprobs: vec![],
                ..tokens
            }
            .digest(),
            None
        );
    }
}
