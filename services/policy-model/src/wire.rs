//! Between the core's values of this server and their messages.

use belay_core::{
    calls::{CallKey, CutAnswer, CutOutcome},
    ids::{Digest, Episode, ExecutionId},
    ledger::{Coordinate, FinishReason, TokenSpan, WeightSpan},
};
use belay_mesh::wire::{self, ToWire};
use belay_proto::{episode as ep, worker as pb};
use bytes::Bytes;

pub(crate) fn digest(digest: &Digest) -> Bytes {
    Bytes::copy_from_slice(digest)
}

/// 32 bytes; the error names the field.
pub(crate) fn read_digest(field: &str, bytes: &[u8]) -> Result<Digest, String> {
    bytes
        .try_into()
        .map_err(|_| format!("{field} has {} bytes and not 32", bytes.len()))
}

/// 32 bytes, or none.
pub(crate) fn read_optional_digest(field: &str, bytes: &[u8]) -> Result<Option<Digest>, String> {
    if bytes.is_empty() {
        Ok(None)
    } else {
        read_digest(field, bytes).map(Some)
    }
}

pub(crate) fn episode_ref(episode: &Episode, execution: ExecutionId) -> ep::EpisodeRef {
    (episode, execution).to_wire()
}

pub(crate) fn call_key(key: &CallKey) -> pb::CallKey {
    pb::CallKey {
        r#ref: Some(episode_ref(&key.episode, key.execution)),
        operation: Some(key.operation.to_wire()),
    }
}

fn read_call_key(key: Option<pb::CallKey>) -> Option<CallKey> {
    let key = key?;
    let (episode, execution) = wire::episode_ref(key.r#ref).ok()?;
    Some(CallKey {
        episode,
        execution,
        operation: wire::operation(key.operation).ok()?,
    })
}

pub(crate) fn coordinate(coordinate: &Coordinate) -> pb::Coordinate {
    pb::Coordinate {
        store: coordinate.store.clone(),
        row: coordinate.row.clone(),
    }
}

pub(crate) fn read_coordinate(coordinate: pb::Coordinate) -> Coordinate {
    Coordinate {
        store: coordinate.store,
        row: coordinate.row,
    }
}

pub(crate) fn weights(weights: &[WeightSpan]) -> Vec<ep::WeightSpan> {
    weights
        .iter()
        .map(|w| ep::WeightSpan {
            tokens: w.tokens,
            version: w.version.clone(),
        })
        .collect()
}

pub(crate) fn token_span(span: &TokenSpan) -> pb::TokenSpan {
    pb::TokenSpan {
        coordinate: span.coordinate.as_ref().map(coordinate),
        tokens: span.tokens,
        digest: digest(&span.digest),
        weights: weights(&span.weights),
    }
}

/// The span as it is described; whether its weights add up is asked where it matters.
pub(crate) fn read_token_span(span: pb::TokenSpan) -> Result<TokenSpan, String> {
    let weights = span.weights.into_iter().map(|w| WeightSpan {
        tokens: w.tokens,
        version: w.version,
    });
    Ok(TokenSpan {
        coordinate: span.coordinate.map(read_coordinate),
        tokens: span.tokens,
        digest: read_digest("the token span's digest", &span.digest)?,
        weights: weights.collect(),
    })
}

/// One answer of a receipt. `None`: its key does not read, so it belongs to no call.
pub(crate) fn read_cut_answer(answer: pb::CutAnswer) -> Option<CutAnswer> {
    let key = read_call_key(answer.key)?;
    let outcome = match answer.outcome {
        Some(pb::cut_answer::Outcome::Staged(span)) => match read_token_span(span) {
            Ok(span) if span.aligned() && span.coordinate.is_some() => CutOutcome::Staged(span),
            Ok(_) => CutOutcome::Failed("the prefix has no place, or its weights do not add up".into()),
            Err(what) => CutOutcome::Failed(what),
        },
        Some(pb::cut_answer::Outcome::Finished(_)) => CutOutcome::Finished,
        Some(pb::cut_answer::Outcome::Failed(failed)) => CutOutcome::Failed(failed.reason),
        None => CutOutcome::Failed("the answer has no outcome".into()),
    };
    Some(CutAnswer { key, outcome })
}

pub(crate) fn finish(finish: FinishReason) -> i32 {
    let reason = match finish {
        FinishReason::Stop => ep::FinishReason::Stop,
        FinishReason::Length => ep::FinishReason::Length,
        FinishReason::ToolCalls => ep::FinishReason::ToolCalls,
    };
    reason.into()
}

pub(crate) fn read_finish(wire: i32) -> Result<FinishReason, String> {
    match ep::FinishReason::try_from(wire) {
        Ok(ep::FinishReason::Stop) => Ok(FinishReason::Stop),
        Ok(ep::FinishReason::Length) => Ok(FinishReason::Length),
        Ok(ep::FinishReason::ToolCalls) => Ok(FinishReason::ToolCalls),
        _ => Err(format!("finish reason {wire} is not known")),
    }
}
