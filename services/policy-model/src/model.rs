//! The policy model: a call in, a reply out, whatever happens to the caller meanwhile.
//!
//! The table of calls decides (`belay_core::calls`); this drives it. A generation is a task of its own: it goes on when its
//! caller goes away and when the mesh closes, and records its row and its reply in one step as soon as it has finished. A reply leaves
//! only while the mesh is open.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use belay_core::{
    calls::{Answer, Arrival, Begin, CallKey, Calls, Finished, Removed, Reply},
    ids::{Digest, Episode, ExecutionId},
    ledger::{Ledger, TokenSpan},
    refusal::{Reason, Refusal},
};
use belay_participant::Gate;
use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    chat::{self, ChatRequest, Outcome},
    engine::{Engine, Generated, Generation},
    error::PolicyError,
    freeing::{Freeing, Job},
    staging::StagedRollouts,
};

/// The state of one policy-model server, and its engine.
pub struct PolicyModel<E> {
    pub(crate) gate: Gate,
    pub(crate) engine: Arc<E>,
    /// The engine's name for its model.
    model: Option<String>,
    state: Mutex<State>,
    pub(crate) freeing: Freeing,
    pub(crate) staged: StagedRollouts,
    held_replies: Arc<AtomicU64>,
}

/// Calls and the tasks that make them, changed together.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) calls: Calls,
    flights: HashMap<CallKey, Flight>,
}

/// A generation in flight: how to hear of its end, and how to stop it.
#[derive(Clone)]
struct Flight {
    ended: watch::Receiver<Option<Result<Answer, Refusal>>>,
    stop: CancellationToken,
}

/// A model call as the data port takes it.
pub(crate) struct Call {
    pub(crate) key: CallKey,
    pub(crate) parent: Option<Digest>,
    pub(crate) request: Bytes,
}

impl<E: Engine> PolicyModel<E> {
    /// Holds nothing yet.
    pub fn new(gate: Gate, engine: E, model: Option<String>) -> Self {
        Self {
            gate,
            engine: Arc::new(engine),
            model,
            state: Mutex::default(),
            freeing: Freeing::default(),
            staged: StagedRollouts::default(),
            held_replies: Arc::default(),
        }
    }

    /// Nothing that can panic halfway is done under this lock, and nothing waits under it.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One model call, to its end. The flag says that the reply was kept.
    pub(crate) async fn generate(self: &Arc<Self>, call: Call) -> Result<(Answer, bool), PolicyError> {
        let chat = chat::to_chat(&call.request, self.model.as_deref()).map_err(PolicyError::Request)?;
        let arrival = Arrival {
            digest: blake3::hash(&call.request).into(),
            cuttable: !chat.constrained,
            parent: call.parent,
            key: call.key,
        };
        let CallKey {
            episode,
            execution,
            operation,
        } = &arrival.key;
        let permit = self
            .gate
            .enter(episode, format!("model call {operation}"))
            .await?;
        let begun = self.begin(&arrival, chat)?;
        // Registered: from here on a checkpoint does not wait for it.
        drop(permit);
        let (answer, kept) = match begun {
            Begun::Kept(answer) => (answer, true),
            Begun::InFlight(flight) => (flight.wait().await?, false),
        };
        self.may_leave(episode, *execution).await?;
        Ok((answer, kept))
    }

    /// A reply leaves only while the mesh is open, and only to the life that it was made for.
    async fn may_leave(&self, episode: &Episode, execution: ExecutionId) -> Result<(), Refusal> {
        if !self.gate.is_open() {
            let _held = Held::new(&self.held_replies);
            self.gate.opened().await;
        }
        self.gate.check_mark(episode)?;
        self.state().calls.check(episode, execution)
    }

    fn begin(self: &Arc<Self>, arrival: &Arrival, chat: ChatRequest) -> Result<Begun, Refusal> {
        let key = &arrival.key;
        let mut state = self.state();
        Ok(match state.calls.begin(arrival)? {
            Begin::Kept(answer) => Begun::Kept(answer),
            Begin::Join => Begun::InFlight(
                state
                    .flights
                    .get(key)
                    .cloned()
                    .ok_or_else(|| lost(&key.episode))?,
            ),
            Begin::Sample { prefix } => {
                let generation = Generation {
                    key: key.clone(),
                    digest: arrival.digest,
                    chat,
                    prefix,
                };
                let (tell, ended) = watch::channel(None);
                let flight = Flight {
                    ended,
                    stop: CancellationToken::new(),
                };
                state.flights.insert(key.clone(), flight.clone());
                tokio::spawn(self.clone().fly(generation, flight.stop.clone(), tell));
                Begun::InFlight(flight)
            }
        })
    }

    /// Samples one reply and records it.
    async fn fly(
        self: Arc<Self>,
        generation: Generation,
        stop: CancellationToken,
        tell: watch::Sender<Option<Result<Answer, Refusal>>>,
    ) {
        let key = &generation.key;
        let generated = tokio::select! {
            biased;
            () = stop.cancelled() => Err(stopped(&key.episode).into()),
            generated = self.engine.generate(&generation) => generated,
        };
        let finished = generated.and_then(|generated| finished(key, generated));
        let ended = {
            let mut state = self.state();
            state.flights.remove(key);
            match finished {
                Ok(finished) => state
                    .calls
                    .finish(key, finished)
                    .ok_or_else(|| stopped(&key.episode).into()),
                Err(error) => {
                    state.calls.fail(key);
                    Err(error)
                }
            }
        };
        if let Err(error) = &ended {
            tracing::warn!(episode = %key.episode, operation = %key.operation, "no reply: {error}");
        }
        tell.send_replace(Some(
            ended.map_err(|error| Refusal::from(error).instance(self.gate.instance())),
        ));
    }

    /// Waits until the generation has ended, one way or another.
    pub(crate) async fn ended(&self, key: &CallKey) {
        let flight = self.state().flights.get(key).cloned();
        if let Some(flight) = flight {
            // Its outcome goes to its caller.
            let _ = flight.wait().await;
        }
    }

    /// The episode's ledger as it is now.
    pub(crate) fn ledger(&self, episode: &Episode, execution: ExecutionId) -> Result<Ledger, Refusal> {
        self.state().calls.ledger(episode, execution)
    }

    /// Ends the ledgers of acknowledged episodes, and starts to free their tokens. While the mesh is closed it waits: what the
    /// environment has captured as not acknowledged must be captured here too.
    pub(crate) async fn end_episodes(&self, refs: Vec<(Episode, ExecutionId)>) -> Result<u32, PolicyError> {
        let mut ended = 0;
        let mut job = Job::default();
        let mut permit = None;
        for (episode, execution) in refs {
            // One permit keeps the mesh open for the whole list; who is retired meanwhile is ended by that.
            if permit.is_none() {
                match self.gate.enter(&episode, "end of ledger").await {
                    Ok(entered) => permit = Some(entered),
                    Err(refusal) if refusal.reason == Reason::StaleAttempt => continue,
                    Err(refusal) => return Err(refusal.into()),
                }
            }
            let mut state = self.state();
            let Some(removed) = state.calls.end(&episode, execution) else {
                continue;
            };
            ended += removed
                .iter()
                .filter(|removed| removed.episode == episode)
                .count() as u32;
            job.stop.extend(state.stop(removed));
            let needed = state.calls.higher_attempt(&episode).is_some()
                || self.staged.above(&episode.rollout, episode.attempt);
            if !needed {
                job.free.push((episode.rollout, episode.attempt));
            }
        }
        self.freeing.start(&self.engine, job);
        Ok(ended)
    }

    /// Replies that wait for the mesh to open.
    pub(crate) fn held_replies(&self) -> u64 {
        self.held_replies.load(Ordering::Relaxed)
    }
}

impl State {
    /// Stops the tasks of episodes that are no longer held. Replies the calls that an engine may still work on.
    pub(crate) fn stop(&mut self, removed: Vec<Removed>) -> Vec<CallKey> {
        let generating = removed.into_iter().filter_map(|removed| removed.generating);
        generating
            .inspect(|key| {
                if let Some(flight) = self.flights.remove(key) {
                    flight.stop.cancel();
                }
            })
            .collect()
    }
}

enum Begun {
    Kept(Answer),
    InFlight(Flight),
}

impl Flight {
    /// Bounded by the engine's own limits: the task ends whatever the engine does.
    async fn wait(mut self) -> Result<Answer, Refusal> {
        match self.ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().expect("waited for it"),
            Err(_) => Err(Refusal::new(
                Reason::Internal,
                "a generation's task ended without an outcome; please report it",
            )),
        }
    }
}

/// A reply that waits for the mesh to open, counted while it does.
struct Held(Arc<AtomicU64>);

impl Held {
    fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the ledger and the caller need of a reply.
fn finished(key: &CallKey, generated: Generated) -> Result<Finished, PolicyError> {
    let outcome = Outcome {
        finish: generated.finish,
        input_tokens: generated.prompt_tokens.into(),
        output_tokens: generated.output_tokens.into(),
        model: &generated.model,
    };
    let response =
        chat::to_response(&key.episode, key.operation, &generated.message, &outcome).map_err(|e| {
            PolicyError::BadAnswer {
                engine: generated.model.clone(),
                what: "generate",
                message: e.to_string(),
            }
        })?;
    Ok(Finished {
        reply: Reply {
            response,
            input_tokens: outcome.input_tokens,
            output_tokens: outcome.output_tokens,
        },
        prompt_tokens: generated.prompt_tokens,
        span: generated.span,
        carried: generated.carried,
        finish: generated.finish,
    })
}

fn stopped(episode: &Episode) -> Refusal {
    Refusal::new(
        Reason::StaleExecution,
        format!("{episode} has ended here, or goes on in another life: its generation was stopped"),
    )
    .episode(episode)
}

fn lost(episode: &Episode) -> Refusal {
    Refusal::new(
        Reason::Internal,
        format!("{episode}: a call in flight has no task; please report it"),
    )
    .episode(episode)
}

/// Spans of a restored episode that lie somewhere.
pub(crate) fn placed(span: Option<&TokenSpan>) -> Option<TokenSpan> {
    span.filter(|span| span.coordinate.is_some()).cloned()
}
