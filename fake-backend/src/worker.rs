//! What the staging worker promises (`proto/belay/worker/v1/worker.proto`), in the engine's own values.

use std::{collections::BTreeSet, sync::Arc};

use belay_core::ids::{Attempt, CheckpointId, Digest, RolloutId};

use crate::{
    call::{CallKey, CallState, Finish, Plan},
    chat::ChatRequest,
    engine::{Engine, Origin, State},
    error::BackendError,
    faults::FaultKind,
    keyed::Admitted,
    log::RecordState,
    rows::{Coordinate, Stored},
    staging::{Outcome, Receipt},
};

/// A keyed call.
#[derive(Debug)]
pub struct Generate {
    /// The key.
    pub key: CallKey,
    /// BLAKE3 of the request as the agent sent it.
    pub request_digest: Digest,
    /// Messages, tools, budget.
    pub chat: ChatRequest,
    /// On from here.
    pub prefix: Option<PrefixSpan>,
}

/// A prefix as the caller describes it.
#[derive(Debug)]
pub struct PrefixSpan {
    /// Where it lies.
    pub at: Coordinate,
    /// How many tokens.
    pub tokens: u32,
    /// Its digest.
    pub digest: Vec<u8>,
}

/// A finished call.
#[derive(Clone, Debug)]
pub struct Generated {
    /// Why it ended.
    pub finish: Finish,
    /// Its tokens, staged.
    pub stored: Stored,
    /// How many came from the prefix.
    pub prefix_tokens: usize,
}

impl Engine {
    /// Samples a keyed call to its end, joins it, or replies with it again.
    pub async fn generate(&self, wanted: Generate) -> Result<Generated, BackendError> {
        let plan = self.plan(&wanted)?;
        self.pass_faults().await?;
        let (id, progress) = self.change(|state| {
            let id = match state.keyed.admit(&wanted.key, &wanted.request_digest)? {
                Admitted::Known(id) => {
                    let ended = state.calls.get(&id).is_some_and(|e| e.progress.borrow().ended);
                    if ended {
                        state.log.replayed(id);
                    } else {
                        state.log.joined(id);
                    }
                    id
                }
                Admitted::New { superseded } => {
                    for lower in superseded {
                        state.supersede(lower, wanted.key.episode.attempt);
                    }
                    let id = self.start_in(state, plan, Some(wanted.key.clone()), origin(&wanted.key));
                    state.keyed.insert(&wanted.key, wanted.request_digest, id);
                    id
                }
            };
            let entry = state.calls.get(&id).ok_or_else(|| gone(&wanted.key))?;
            Ok::<_, BackendError>((id, entry.progress.subscribe()))
        })?;
        self.ended(progress).await?;
        self.change(|state| {
            // Its rows can be freed between its end and this turn.
            let entry = state.calls.get(&id).ok_or_else(|| gone(&wanted.key))?;
            match &entry.call.state {
                CallState::Finished(finish, _, Some(stored)) => {
                    state.log.becomes(id, RecordState::Returned);
                    Ok(Generated {
                        finish: *finish,
                        stored: stored.clone(),
                        prefix_tokens: entry.call.plan.prefix_tokens(),
                    })
                }
                CallState::Stopped(why) => Err(why.clone()),
                CallState::Finished(..) | CallState::Sampling => Err(gone(&wanted.key)),
            }
        })
    }

    fn plan(&self, wanted: &Generate) -> Result<Plan, BackendError> {
        let plan = Plan::new(&wanted.chat.conversation, wanted.chat.budget);
        let Some(prefix) = &wanted.prefix else {
            return Ok(plan);
        };
        let stored = self.state().rows.get(&prefix.at)?;
        if stored.row.tokens.len() != prefix.tokens as usize || stored.row.digest != prefix.digest[..] {
            return Err(BackendError::bad(
                "prefix",
                format!("row {:?} holds other tokens than the span says", prefix.at.row),
            ));
        }
        plan.after(stored.row)
    }

    /// Keeps the prefixes of a client's calls in flight under a checkpoint. The generations go on.
    pub async fn cut(
        &self,
        checkpoint: CheckpointId,
        client: &str,
        calls: Vec<CallKey>,
    ) -> Result<Vec<(CallKey, Outcome)>, BackendError> {
        let listed: BTreeSet<CallKey> = calls.iter().cloned().collect();
        if listed.len() != calls.len() {
            return Err(BackendError::bad("calls", "lists a call twice"));
        }
        let mut replaced = self.faults_replaced();
        let (receipt, fault) = self.change(|state| {
            let receipt = match state.staging.receipt(checkpoint, client, &listed)? {
                Some(receipt) => receipt,
                None => {
                    let answers = calls.into_iter().map(|key| {
                        let outcome = state.cut_one(&key);
                        (key, outcome)
                    });
                    let receipt: Receipt = Arc::new(answers.collect());
                    state.staging.keep(checkpoint, client, receipt.clone());
                    receipt
                }
            };
            let of_cuts = |kind: &FaultKind| {
                use FaultKind::{CutDouble, CutForeign, CutLate, CutMissing};
                matches!(kind, CutMissing | CutDouble | CutForeign | CutLate)
            };
            Ok::<_, BackendError>((receipt, state.faults.take(of_cuts)))
        })?;
        let mut answers = receipt.to_vec();
        match fault {
            Some(FaultKind::CutMissing) => {
                answers.pop();
            }
            Some(FaultKind::CutDouble) => answers.extend(answers.first().cloned()),
            Some(FaultKind::CutForeign) => {
                if let Some((mut key, outcome)) = answers.first().cloned() {
                    key.operation.turn = key.operation.turn.saturating_add(1_000_000);
                    answers.push((key, outcome));
                }
            }
            Some(FaultKind::CutLate) => self.until_replaced(&mut replaced).await?,
            _ => {}
        }
        Ok(answers)
    }

    /// Frees what was cut under a checkpoint, and keeps a late cut from coming. How many prefixes.
    pub fn release_checkpoint(&self, checkpoint: CheckpointId) -> u32 {
        self.change(|state| {
            let staged = state.staging.release(checkpoint);
            let freed = staged.iter().filter(|stored| state.rows.remove(&stored.at));
            freed.count() as u32
        })
    }

    /// Stops a call, and keeps a later one of the key from starting. Answers when it samples no more; true if it did.
    pub fn cancel(&self, key: CallKey) -> bool {
        self.change(|state| {
            let call = state.keyed.find(&key);
            let sampling = |id| state.calls.get(&id).is_some_and(|e| !e.progress.borrow().ended);
            let running = call.filter(|id| sampling(*id));
            if let Some(id) = running {
                let why = BackendError::Stopped {
                    episode: key.episode.clone(),
                    operation: key.operation,
                    why: "it was cancelled".into(),
                };
                // A sampler changes a call under this lock only, so a call that is stopped here has stopped.
                state.stop(id, why);
            }
            if running.is_some() || call.is_none() {
                state.keyed.fence(key);
            }
            running.is_some()
        })
    }

    /// Frees the rows of rollouts through an attempt, and stops their calls. How many rows.
    pub fn free_rows(&self, rollouts: &[(RolloutId, Attempt)]) -> u64 {
        self.change(|state| {
            let mut freed = 0;
            for (rollout, through) in rollouts {
                for id in state.keyed.free(rollout, *through) {
                    freed += u64::from(state.free(id));
                }
            }
            freed
        })
    }
}

impl State {
    fn cut_one(&mut self, key: &CallKey) -> Outcome {
        let call = self.keyed.find(key).and_then(|id| self.calls.get(&id));
        match call.map(|entry| &entry.call) {
            None => Outcome::Failed("this call is not known here".into()),
            Some(call) => match &call.state {
                CallState::Sampling => Outcome::Staged(self.rows.insert(call.prefix_row())),
                CallState::Finished(..) => Outcome::Finished,
                CallState::Stopped(why) => Outcome::Failed(why.to_string()),
            },
        }
    }

    /// Stops a call of a lower attempt, if it still samples; what is finished stays: a later attempt's ledger names it.
    fn supersede(&mut self, id: u64, spoken: Attempt) {
        let Some(key) = self.calls.get(&id).and_then(|entry| entry.call.key.as_ref()) else {
            return;
        };
        let episode = key.episode.clone();
        self.stop(id, BackendError::StaleAttempt { episode, spoken });
    }

    fn free(&mut self, id: u64) -> bool {
        let Some(key) = self.calls.get(&id).and_then(|entry| entry.call.key.clone()) else {
            return false;
        };
        self.stop(
            id,
            BackendError::StaleExecution {
                episode: key.episode,
                execution: key.execution,
                why: "its rows were freed".into(),
            },
        );
        match self.calls.remove(&id).map(|entry| entry.call.state) {
            Some(CallState::Finished(_, _, Some(stored))) => self.rows.remove(&stored.at),
            _ => false,
        }
    }
}

fn gone(key: &CallKey) -> BackendError {
    BackendError::StaleExecution {
        episode: key.episode.clone(),
        execution: key.execution,
        why: "it was stopped, or its rows were freed".into(),
    }
}

fn origin(key: &CallKey) -> Origin {
    Origin {
        door: "worker",
        rollout: key.episode.rollout.as_str().to_owned(),
        attempt: Some(key.episode.attempt),
        execution: Some(key.execution.to_string()),
        turn: Some(key.operation.turn),
        index: Some(key.operation.index),
    }
}
