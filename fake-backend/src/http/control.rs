//! `/_ctl`: what tests and the demo order and ask.

use std::time::Duration;

use axum::{
    Json, Router,
    body::Bytes,
    extract::{Query, State},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::HttpError;
use crate::{
    chat::read_json,
    ctl::{BackendState, Released, Waited, Weights},
    effects::Effect,
    engine::Engine,
    error::BackendError,
    faults::Faults,
    holds::Hold,
    log::{CallRecord, Counts},
    work::{Work, WorkHold, WorkKind, WorkRecord},
};

/// Longest wait of one call.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// The routes.
pub fn routes() -> Router<Engine> {
    Router::new()
        .route("/_ctl/hold", post(hold).get(current_hold))
        .route("/_ctl/release", post(release))
        .route("/_ctl/call_count", get(call_count))
        .route("/_ctl/wait", get(wait))
        .route("/_ctl/held", get(held))
        .route("/_ctl/calls", get(calls))
        .route("/_ctl/faults", post(set_faults).get(faults))
        .route("/_ctl/weights", post(set_weights).get(weights))
        .route("/_ctl/effects", post(add_effect).get(effects))
        .route("/_ctl/steps", post(ask_work).get(work))
        .route("/_ctl/steps/hold", post(hold_work))
        .route("/_ctl/steps/release", post(release_work))
        .route("/_ctl/steps/wait", get(wait_work))
        .route("/_ctl/state", get(state))
        .route("/_ctl/reset", post(reset))
}

async fn hold(State(engine): State<Engine>, body: Bytes) -> Result<Json<Hold>, HttpError> {
    let hold: Hold = read_json(&body)?;
    engine.change(|state| state.holds.set(hold));
    Ok(Json(hold))
}

async fn current_hold(State(engine): State<Engine>) -> Json<Option<Hold>> {
    Json(engine.state().holds.current())
}

async fn release(State(engine): State<Engine>) -> Json<Released> {
    Json(Released {
        released: engine.release() as u64,
    })
}

async fn call_count(State(engine): State<Engine>) -> Json<Counts> {
    Json(*engine.counts().borrow())
}

/// Answers when all named counters are at least so high, or the bound is hit.
#[derive(Deserialize)]
struct Wait {
    #[serde(default)]
    received: u64,
    #[serde(default)]
    finished: u64,
    #[serde(default)]
    returned: u64,
    #[serde(default)]
    held: u64,
    #[serde(default)]
    effects: u64,
    timeout_ms: u64,
}

async fn wait(State(engine): State<Engine>, Query(wait): Query<Wait>) -> Result<Json<Waited>, HttpError> {
    wait_until(&engine, wait.timeout_ms, |counts| {
        counts.received >= wait.received
            && counts.finished >= wait.finished
            && counts.returned >= wait.returned
            && counts.held >= wait.held
            && counts.effects >= wait.effects
    })
    .await
}

#[derive(Deserialize)]
struct Held {
    #[serde(default)]
    at_least: u64,
    #[serde(default)]
    timeout_ms: u64,
}

async fn held(State(engine): State<Engine>, Query(wanted): Query<Held>) -> Result<Json<Waited>, HttpError> {
    wait_until(&engine, wanted.timeout_ms, |counts| {
        counts.held >= wanted.at_least
    })
    .await
}

fn bound(timeout_ms: u64) -> Result<Duration, HttpError> {
    let bound = Duration::from_millis(timeout_ms);
    if bound > LONGEST_WAIT {
        let rule = format!("is {timeout_ms}: it must be at most {}", LONGEST_WAIT.as_millis());
        return Err(BackendError::bad("timeout_ms", rule).into());
    }
    Ok(bound)
}

async fn wait_until(
    engine: &Engine,
    timeout_ms: u64,
    reached: impl Fn(&Counts) -> bool,
) -> Result<Json<Waited>, HttpError> {
    let bound = bound(timeout_ms)?;
    let mut counts = engine.counts();
    tokio::select! {
        _ = counts.wait_for(&reached) => {}
        () = tokio::time::sleep(bound) => {}
        () = engine.shutdown().cancelled() => return Err(BackendError::Stopping.into()),
    }
    let counts = *counts.borrow();
    Ok(Json(Waited {
        reached: reached(&counts),
        counts,
    }))
}

#[derive(Deserialize)]
struct Calls {
    rollout: Option<String>,
}

async fn calls(State(engine): State<Engine>, Query(wanted): Query<Calls>) -> Json<Vec<CallRecord>> {
    Json(engine.state().log.records(wanted.rollout.as_deref()))
}

async fn set_faults(State(engine): State<Engine>, body: Bytes) -> Result<Json<Faults>, HttpError> {
    let faults: Faults = read_json(&body)?;
    engine.replace_faults(faults.clone());
    Ok(Json(faults))
}

async fn faults(State(engine): State<Engine>) -> Json<Faults> {
    Json(engine.state().faults.clone())
}

async fn set_weights(State(engine): State<Engine>, body: Bytes) -> Result<Json<Weights>, HttpError> {
    let weights: Weights = read_json(&body)?;
    engine.change(|state| state.weights = weights.version.as_str().into());
    Ok(Json(weights))
}

async fn weights(State(engine): State<Engine>) -> Json<Weights> {
    Json(Weights {
        version: engine.state().weights.to_string(),
    })
}

async fn add_effect(State(engine): State<Engine>, body: Bytes) -> Result<Json<Value>, HttpError> {
    let effect: Effect = read_json(&body)?;
    let new = engine.change(|state| {
        let new = state.effects.add(effect);
        state.log.counts.effects += u64::from(new);
        new
    });
    Ok(Json(json!({ "new": new })))
}

async fn effects(State(engine): State<Engine>) -> Json<Vec<Effect>> {
    Json(engine.state().effects.all().to_vec())
}

async fn ask_work(State(engine): State<Engine>, body: Bytes) -> Result<Json<Value>, HttpError> {
    let work: Work = read_json(&body)?;
    tokio::select! {
        () = engine.work().ask(work) => Ok(Json(json!({}))),
        () = engine.shutdown().cancelled() => Err(BackendError::Stopping.into()),
    }
}

async fn work(State(engine): State<Engine>) -> Json<Vec<WorkRecord>> {
    Json(engine.work().records())
}

async fn hold_work(State(engine): State<Engine>, body: Bytes) -> Result<Json<WorkHold>, HttpError> {
    let hold: WorkHold = read_json(&body)?;
    engine.work().hold(hold.clone());
    Ok(Json(hold))
}

/// Takes away the rules of a kind.
#[derive(Deserialize)]
struct ReleaseWork {
    what: WorkKind,
}

async fn release_work(State(engine): State<Engine>, body: Bytes) -> Result<Json<Value>, HttpError> {
    let release: ReleaseWork = read_json(&body)?;
    engine.work().release(release.what);
    Ok(Json(json!({})))
}

/// Answers when so many of the kind wait, or the bound is hit.
#[derive(Deserialize)]
struct WaitWork {
    what: WorkKind,
    waiting: usize,
    timeout_ms: u64,
}

async fn wait_work(
    State(engine): State<Engine>,
    Query(wait): Query<WaitWork>,
) -> Result<Json<bool>, HttpError> {
    let bound = bound(wait.timeout_ms)?;
    tokio::select! {
        () = engine.work().until_waiting(wait.what, wait.waiting) => Ok(Json(true)),
        () = tokio::time::sleep(bound) => Ok(Json(false)),
        () = engine.shutdown().cancelled() => Err(BackendError::Stopping.into()),
    }
}

async fn state(State(engine): State<Engine>) -> Json<BackendState> {
    let state = engine.state();
    Json(BackendState {
        store: state.rows.identity().to_owned(),
        rollouts: state.keyed.rollouts() as u64,
        calls: state.calls.len() as u64,
        rows: state.rows.count() as u64,
        staged_checkpoints: state.staging.checkpoints() as u64,
    })
}

async fn reset(State(engine): State<Engine>) -> Json<Counts> {
    engine.reset();
    Json(*engine.counts().borrow())
}
