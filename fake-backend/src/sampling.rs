//! What makes sampled tokens what they are: logprobs, weight spans, the digest of a span.
//!
//! A logprob depends on the token, its place in the reply and the prompt alone, so a generation that goes on from a prefix
//! gives each token the logprob that the undisturbed one gave it.

use crate::tokens::TokenId;

/// One sampled token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampled {
    /// Its id.
    pub id: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// The logprobs of one prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context(u64);

impl Context {
    /// The context that a prompt makes.
    pub fn of(prompt: &[TokenId]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for id in prompt {
            hasher.update(&id.to_le_bytes());
        }
        Self(first_u64(&hasher.finalize()))
    }

    /// The token at a place of the reply. The logprob is in (-4, 0], a multiple of 2^-10: exact in text and in binary.
    pub fn sample(self, id: TokenId, position: usize) -> Sampled {
        let mut mixed = self.0 ^ (u64::from(id) << 32) ^ position as u64;
        // The finaliser of splitmix64: neighbours in place or id get unrelated values.
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let steps = (mixed % 4096) as f32;
        Sampled {
            id,
            logprob: 0.0 - steps / 1024.0,
        }
    }
}

fn first_u64(hash: &blake3::Hash) -> u64 {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

/// A run of tokens sampled by the same weights.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct WeightRun {
    /// How many.
    pub tokens: u32,
    /// The weights' version.
    pub version: String,
}

/// Adds one token to the runs.
pub fn push_weight(runs: &mut Vec<WeightRun>, version: &str) {
    match runs.last_mut() {
        Some(last) if last.version == version => last.tokens += 1,
        _ => runs.push(WeightRun {
            tokens: 1,
            version: version.into(),
        }),
    }
}

/// The digest of a span as `worker.proto` defines it.
pub fn span_digest(prompt: &[TokenId], tokens: &[Sampled]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(prompt.len() as u32).to_le_bytes());
    for id in prompt {
        hasher.update(&id.to_le_bytes());
    }
    for token in tokens {
        hasher.update(&token.id.to_le_bytes());
        hasher.update(&token.logprob.to_bits().to_le_bytes());
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logprob_depends_on_id_place_and_prompt() {
        let context = Context::of(&[1, 2, 3]);
        let one = context.sample(7, 0);
        assert_eq!(one, Context::of(&[1, 2, 3]).sample(7, 0));
        assert!(one.logprob <= 0.0 && one.logprob > -4.0);
        let others = [
            context.sample(8, 0),
            context.sample(7, 1),
            Context::of(&[1, 2]).sample(7, 0),
        ];
        assert!(
            others.iter().all(|other| other.logprob != one.logprob),
            "{one:?} {others:?}"
        );
    }

    #[test]
    fn the_digest_tells_prompt_from_reply() {
        let token = |id| Sampled { id, logprob: -0.5 };
        let one = span_digest(&[1, 2], &[token(3)]);
        assert_ne!(one, span_digest(&[1], &[token(2), token(3)]));
        assert_ne!(
            one,
            span_digest(
                &[1, 2],
                &[Sampled {
                    id: 3,
                    logprob: -0.25
                }]
            )
        );
    }

    #[test]
    fn runs_grow_while_the_weights_stay() {
        let mut runs = Vec::new();
        for version in ["a", "a", "b", "a"] {
            push_weight(&mut runs, version);
        }
        let seen: Vec<_> = runs.iter().map(|r| (r.tokens, r.version.as_str())).collect();
        assert_eq!(seen, [(2, "a"), (1, "b"), (1, "a")]);
    }
}
