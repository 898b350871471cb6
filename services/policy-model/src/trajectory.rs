//! An episode's trajectory: its ledger, each row with its tokens. What cannot be proved is masked, never guessed.

use std::{collections::VecDeque, sync::Arc};

use belay_core::ledger::{Coordinate, Ledger, Row, Tokens};
use belay_mesh::wire::ToWire;
use belay_proto::episode as ep;

use crate::{engine::Engine, error::PolicyError, wire};

/// Rows that are read from the token store at a time.
const BATCH: usize = 16;

/// The ledger's rows in order, a batch at a time.
pub(crate) fn batches(ledger: &Ledger) -> impl Iterator<Item = &[Arc<Row>]> {
    ledger.rows().chunks(BATCH)
}

/// Rows as they are told, with their tokens.
pub(crate) async fn read<E: Engine>(
    engine: &E,
    rows: &[Arc<Row>],
) -> Result<Vec<ep::TrajectoryRow>, PolicyError> {
    let placed: Vec<Coordinate> = rows.iter().filter_map(|row| coordinate(row).cloned()).collect();
    let mut found = match &placed[..] {
        [] => VecDeque::new(),
        placed => VecDeque::from(engine.read(placed).await?),
    };
    let rows = rows.iter().map(|row| {
        let tokens = match coordinate(row) {
            Some(_) => found.pop_front().flatten(),
            None => row.carried().map(|tokens| (**tokens).clone()),
        };
        trajectory_row(row, tokens)
    });
    Ok(rows.collect())
}

fn coordinate(row: &Row) -> Option<&Coordinate> {
    row.entry.span.as_ref()?.coordinate.as_ref()
}

fn trajectory_row(row: &Row, tokens: Option<Tokens>) -> ep::TrajectoryRow {
    let entry = &row.entry;
    let mut wire_row = ep::TrajectoryRow {
        operation: Some(entry.operation.to_wire()),
        episode: Some(entry.episode.to_wire()),
        execution: entry.execution.to_string(),
        parent: row.parent.as_ref().map(wire::digest).unwrap_or_default(),
        chain_hash: wire::digest(&row.chain),
        request_digest: wire::digest(&entry.request_digest),
        finish_reason: wire::finish(entry.finish),
        ..ep::TrajectoryRow::default()
    };
    match proved(row, tokens) {
        Ok(tokens) => {
            wire_row.weights = entry
                .span
                .as_ref()
                .map(|s| wire::weights(&s.weights))
                .unwrap_or_default();
            wire_row.prompt_token_ids = tokens.prompt;
            wire_row.token_ids = tokens.sampled;
            wire_row.logprobs = tokens.logprobs;
        }
        Err(why) => wire_row.masked_because = why.into(),
    }
    wire_row
}

/// The tokens, if they are the ones that the ledger speaks of.
fn proved(row: &Row, tokens: Option<Tokens>) -> Result<Tokens, &'static str> {
    let Some(span) = &row.entry.span else {
        return Err("the engine gives no token ids");
    };
    let tokens = tokens.ok_or("the token store no longer has this row")?;
    match tokens.digest() {
        Some(digest) if digest == span.digest && tokens.sampled.len() == span.tokens as usize => {}
        _ => return Err("the token store has other tokens in this row than were sampled"),
    }
    if !span.aligned() {
        return Err("the weight versions do not account for every token");
    }
    Ok(tokens)
}
