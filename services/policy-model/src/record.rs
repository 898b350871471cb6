//! An episode's record on disk: `PolicyModelEpisode`.

use std::sync::Arc;

use belay_core::{
    calls::{CapturedCall, CapturedEpisode, Reply, Restored},
    ledger::{Entry, Row, Tokens},
};
use belay_mesh::wire::{self as mesh_wire, ToWire};
use belay_proto::{episode as ep, record as pb};
use bytes::Bytes;
use prost::Message;

use crate::wire;

/// Bytes of a row without its tokens, about.
const ROW_SIZE: u64 = 350;
/// Bytes of a carried token: its id and its logprob, about.
const TOKEN_SIZE: u64 = 8;

/// How large the record will be, about: known at the capture, before anything is encoded.
pub(crate) fn size(captured: &CapturedEpisode) -> u64 {
    let rows = captured.ledger.rows().iter().map(|row| {
        let carried = row.carried().map_or(0, |t| t.prompt.len() + t.sampled.len()) as u64;
        ROW_SIZE + carried * TOKEN_SIZE
    });
    rows.sum::<u64>()
        + captured
            .last
            .as_ref()
            .map_or(0, |reply| reply.response.len() as u64)
        + ROW_SIZE
}

/// The record's payload.
pub(crate) fn encode(captured: &CapturedEpisode) -> Bytes {
    let last = captured
        .last
        .as_ref()
        .zip(captured.ledger.last())
        .map(|(reply, row)| pb::KeptModelReply {
            operation: Some(row.entry.operation.to_wire()),
            request_digest: wire::digest(&row.entry.request_digest),
            response: reply.response.clone(),
            usage: Some(ep::Usage {
                input_tokens: reply.input_tokens,
                output_tokens: reply.output_tokens,
            }),
        });
    let in_flight = captured.in_flight.as_ref().map(|call| pb::CutGeneration {
        operation: Some(call.operation.to_wire()),
        request_digest: wire::digest(&call.digest),
        prefix: call.prefix.as_ref().map(wire::token_span),
    });
    let rows = captured.ledger.rows().iter().map(|row| encode_row(row)).collect();
    pb::PolicyModelEpisode {
        rows,
        last,
        in_flight,
    }
    .encode_to_vec()
    .into()
}

fn encode_row(row: &Row) -> pb::LedgerRow {
    let entry = &row.entry;
    pb::LedgerRow {
        operation: Some(entry.operation.to_wire()),
        episode: Some(entry.episode.to_wire()),
        execution: entry.execution.to_string(),
        request_digest: wire::digest(&entry.request_digest),
        parent: row.parent.as_ref().map(wire::digest).unwrap_or_default(),
        prompt_tokens: entry.prompt_tokens,
        tokens: entry.span.as_ref().map(wire::token_span),
        finish_reason: wire::finish(entry.finish),
        chain_hash: wire::digest(&row.chain),
        carried: entry.carried.as_ref().map(|tokens| pb::CarriedTokens {
            prompt_token_ids: tokens.prompt.clone(),
            token_ids: tokens.sampled.clone(),
            logprobs: tokens.logprobs.clone(),
        }),
    }
}

/// Reads a payload and checks that it is what a capture writes; the error says what is wrong.
pub(crate) fn decode(payload: Bytes) -> Result<Restored, String> {
    let record = pb::PolicyModelEpisode::decode(payload).map_err(|e| e.to_string())?;
    let rows = record
        .rows
        .into_iter()
        .map(decode_row)
        .collect::<Result<Vec<_>, _>>()?;
    let last = record.last.map(decode_reply).transpose()?;
    let in_flight = record.in_flight.map(decode_call).transpose()?;
    Restored::new(rows, last, in_flight).map_err(|e| e.to_string())
}

fn decode_row(row: pb::LedgerRow) -> Result<Row, String> {
    let (episode, execution) = mesh_wire::episode_ref(Some(ep::EpisodeRef {
        episode: row.episode,
        execution: row.execution,
    }))
    .map_err(|r| r.message)?;
    let carried = row.carried.map(|tokens| {
        Arc::new(Tokens {
            prompt: tokens.prompt_token_ids,
            sampled: tokens.token_ids,
            logprobs: tokens.logprobs,
        })
    });
    let entry = Entry {
        operation: mesh_wire::operation(row.operation).map_err(|r| r.message)?,
        episode,
        execution,
        request_digest: wire::read_digest("a row's request digest", &row.request_digest)?,
        prompt_tokens: row.prompt_tokens,
        span: row.tokens.map(wire::read_token_span).transpose()?,
        carried,
        finish: wire::read_finish(row.finish_reason)?,
    };
    Ok(Row {
        entry,
        parent: wire::read_optional_digest("a row's parent", &row.parent)?,
        chain: wire::read_digest("a row's chain hash", &row.chain_hash)?,
    })
}

type KeptReply = (belay_core::ids::Operation, belay_core::ids::Digest, Reply);

fn decode_reply(kept: pb::KeptModelReply) -> Result<KeptReply, String> {
    let usage = kept.usage.unwrap_or_default();
    let reply = Reply {
        response: kept.response,
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
    };
    let operation = mesh_wire::operation(kept.operation).map_err(|r| r.message)?;
    Ok((
        operation,
        wire::read_digest("the kept reply's request digest", &kept.request_digest)?,
        reply,
    ))
}

fn decode_call(call: pb::CutGeneration) -> Result<CapturedCall, String> {
    Ok(CapturedCall {
        operation: mesh_wire::operation(call.operation).map_err(|r| r.message)?,
        digest: wire::read_digest("the cut call's request digest", &call.request_digest)?,
        prefix: call.prefix.map(wire::read_token_span).transpose()?,
    })
}
