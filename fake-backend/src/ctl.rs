//! `/_ctl`: orders and questions of tests and the demo, and a typed client of it.
//!
//! | path | what |
//! | --- | --- |
//! | `POST /_ctl/hold` | a [`Hold`]: `{"after_calls": n}`, `{"after_calls_per_rollout": n}` or `{"after_tokens_per_call": n}` |
//! | `POST /_ctl/release` | frees all that is held, and takes the hold away |
//! | `GET /_ctl/call_count` | [`Counts`], at constant cost |
//! | `GET /_ctl/wait?received=n&finished=n&returned=n&held=n&effects=n&timeout_ms=m` | [`Waited`]: when all counters named are at least so high, or after the bound |
//! | `GET /_ctl/held?at_least=n&timeout_ms=m` | the same for `held` alone |
//! | `GET /_ctl/calls[?rollout=r]` | a list of [`CallRecord`] |
//! | `POST /_ctl/faults`, `GET` | [`Faults`]: replaces the list; an empty one ends all faults |
//! | `POST /_ctl/weights`, `GET` | [`Weights`]: what samples from the next token on |
//! | `POST /_ctl/effects`, `GET` | an [`Effect`], idempotent; the list of all |
//! | `POST /_ctl/steps/hold`, `/_ctl/steps/release` | a [`WorkHold`]: tool calls or verifies of servers with `faults.work_asks` wait |
//! | `GET /_ctl/steps`, `GET /_ctl/steps/wait?what=tool&waiting=n&timeout_ms=m` | a list of [`WorkRecord`]; true when so many wait |
//! | `GET /_ctl/state` | [`BackendState`]: what is kept |
//! | `POST /_ctl/reset` | frees what is held, clears faults, counters, call log and effect log; rows and calls in flight stay |

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use crate::{
    effects::Effect,
    faults::{Fault, FaultKind, Faults},
    holds::Hold,
    log::{CallRecord, Counts, RecordState},
    work::{WorkHold, WorkKind, WorkRecord},
};

/// How many calls a release freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Released {
    /// So many.
    pub released: u64,
}

/// The end of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waited {
    /// The condition holds; false: the bound was hit.
    pub reached: bool,
    /// The counters at the end.
    #[serde(flatten)]
    pub counts: Counts,
}

/// What samples.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Weights {
    /// The version; empty: unknown.
    pub version: String,
}

/// What the engine keeps: nothing is left of a rollout that was freed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BackendState {
    /// The token store's identity.
    pub store: String,
    /// Rollouts with keyed calls.
    pub rollouts: u64,
    /// Calls in flight, and finished ones that can be asked for again.
    pub calls: u64,
    /// Rows in the token store, staged prefixes counted.
    pub rows: u64,
    /// Checkpoints with cuts that were not released.
    pub staged_checkpoints: u64,
}

/// Why a call of the client failed.
#[derive(Debug, thiserror::Error)]
pub enum CtlError {
    /// There was no answer.
    #[error("{what} at {base}: no answer ({source}); is the fake backend running?")]
    Unreachable {
        /// Which call.
        what: String,
        /// Where.
        base: String,
        /// What the transport said.
        source: reqwest::Error,
    },
    /// The answer was an error.
    #[error("{what} at {base}: {status}: {body}")]
    Refused {
        /// Which call.
        what: String,
        /// Where.
        base: String,
        /// The status.
        status: u16,
        /// What it said.
        body: String,
    },
    /// A wait's bound was hit.
    #[error("{what} at {base} was not reached in {bound:?}: {counts:?}")]
    NotReached {
        /// Which wait.
        what: String,
        /// Where.
        base: String,
        /// The bound.
        bound: Duration,
        /// The counters then.
        counts: Box<Counts>,
    },
}

/// A client of `/_ctl`. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CtlClient {
    http: reqwest::Client,
    base: String,
}

/// How long an order may take; a wait adds its own bound.
const PATIENCE: Duration = Duration::from_secs(30);

impl CtlClient {
    /// Of the engine at `host:port`.
    pub fn new(address: impl std::fmt::Display) -> Self {
        // reqwest asks for it even where no TLS is spoken.
        belay_mesh::telemetry::install_crypto();
        Self {
            http: reqwest::Client::new(),
            base: format!("http://{address}"),
        }
    }

    /// The engine's URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
        what: &str,
        bound: Duration,
    ) -> Result<T, CtlError> {
        let unreachable = |source| CtlError::Unreachable {
            what: what.into(),
            base: self.base.clone(),
            source,
        };
        let response = request.timeout(bound).send().await.map_err(unreachable)?;
        let status = response.status();
        if !status.is_success() {
            return Err(CtlError::Refused {
                what: what.into(),
                base: self.base.clone(),
                status: status.as_u16(),
                body: response.text().await.unwrap_or_default(),
            });
        }
        response.json().await.map_err(unreachable)
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, CtlError> {
        let request = self.http.post(format!("{}{path}", self.base)).json(body);
        self.send(request, path, PATIENCE).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, bound: Duration) -> Result<T, CtlError> {
        self.send(self.http.get(format!("{}{path}", self.base)), path, bound)
            .await
    }

    /// Sets the hold.
    pub async fn hold(&self, hold: Hold) -> Result<(), CtlError> {
        self.post::<Hold>("/_ctl/hold", &hold).await.map(drop)
    }

    /// Frees all that is held: how many calls.
    pub async fn release(&self) -> Result<u64, CtlError> {
        let released: Released = self.post("/_ctl/release", &()).await?;
        Ok(released.released)
    }

    /// The counters.
    pub async fn counts(&self) -> Result<Counts, CtlError> {
        self.get("/_ctl/call_count", PATIENCE).await
    }

    /// Waits until at least so many calls are held.
    pub async fn wait_held(&self, at_least: u64, bound: Duration) -> Result<Counts, CtlError> {
        self.wait(&format!("held={at_least}"), bound).await
    }

    /// Waits until at least so many calls arrived.
    pub async fn wait_received(&self, at_least: u64, bound: Duration) -> Result<Counts, CtlError> {
        self.wait(&format!("received={at_least}"), bound).await
    }

    /// Waits until at least so many calls were sampled to their end.
    pub async fn wait_finished(&self, at_least: u64, bound: Duration) -> Result<Counts, CtlError> {
        self.wait(&format!("finished={at_least}"), bound).await
    }

    /// Waits until at least so many effects were reported.
    pub async fn wait_effects(&self, at_least: u64, bound: Duration) -> Result<Counts, CtlError> {
        self.wait(&format!("effects={at_least}"), bound).await
    }

    async fn wait(&self, condition: &str, bound: Duration) -> Result<Counts, CtlError> {
        let path = format!("/_ctl/wait?{condition}&timeout_ms={}", bound.as_millis());
        let waited: Waited = self.get(&path, bound + PATIENCE).await?;
        if waited.reached {
            Ok(waited.counts)
        } else {
            Err(CtlError::NotReached {
                what: condition.into(),
                base: self.base.clone(),
                bound,
                counts: Box::new(waited.counts),
            })
        }
    }

    /// Tool calls or verifies wait from now on: those of the kind with `about` in what they are about.
    pub async fn hold_work(&self, what: WorkKind, about: &str) -> Result<(), CtlError> {
        let hold = WorkHold {
            what,
            about: about.into(),
        };
        self.post::<WorkHold>("/_ctl/steps/hold", &hold).await.map(drop)
    }

    /// Frees what waits of the kind, and holds none from now on.
    pub async fn release_work(&self, what: WorkKind) -> Result<(), CtlError> {
        let body = serde_json::json!({ "what": what });
        self.post::<serde_json::Value>("/_ctl/steps/release", &body)
            .await
            .map(drop)
    }

    /// Waits until at least so many tool calls or verifies are held.
    pub async fn wait_work(&self, what: WorkKind, at_least: usize, bound: Duration) -> Result<(), CtlError> {
        let kind = match what {
            WorkKind::Tool => "tool",
            WorkKind::Verify => "verify",
        };
        let condition = format!("what={kind}&waiting={at_least}");
        let path = format!("/_ctl/steps/wait?{condition}&timeout_ms={}", bound.as_millis());
        if self.get::<bool>(&path, bound + PATIENCE).await? {
            return Ok(());
        }
        Err(CtlError::NotReached {
            what: condition,
            base: self.base.clone(),
            bound,
            counts: Box::new(self.counts().await?),
        })
    }

    /// All tool calls and verifies that have asked.
    pub async fn work(&self) -> Result<Vec<WorkRecord>, CtlError> {
        self.get("/_ctl/steps", PATIENCE).await
    }

    /// All model calls.
    pub async fn calls(&self) -> Result<Vec<CallRecord>, CtlError> {
        self.get("/_ctl/calls", PATIENCE).await
    }

    /// The model calls of a rollout.
    pub async fn calls_of(&self, rollout: &str) -> Result<Vec<CallRecord>, CtlError> {
        self.get(&format!("/_ctl/calls?rollout={rollout}"), PATIENCE)
            .await
    }

    /// Replaces the faults.
    pub async fn faults(&self, faults: Vec<Fault>) -> Result<(), CtlError> {
        self.post::<Faults>("/_ctl/faults", &Faults { faults })
            .await
            .map(drop)
    }

    /// Changes the weights' version from the next token on.
    pub async fn weights(&self, version: &str) -> Result<(), CtlError> {
        let weights = Weights {
            version: version.into(),
        };
        self.post::<Weights>("/_ctl/weights", &weights).await.map(drop)
    }

    /// All effects.
    pub async fn effects(&self) -> Result<Vec<Effect>, CtlError> {
        self.get("/_ctl/effects", PATIENCE).await
    }

    /// Reports an effect. False if it was reported before.
    pub async fn add_effect(&self, effect: &Effect) -> Result<bool, CtlError> {
        #[derive(Deserialize)]
        struct Added {
            new: bool,
        }
        let added: Added = self.post("/_ctl/effects", effect).await?;
        Ok(added.new)
    }

    /// What is kept.
    pub async fn state(&self) -> Result<BackendState, CtlError> {
        self.get("/_ctl/state", PATIENCE).await
    }

    /// Clears what tests count.
    pub async fn reset(&self) -> Result<(), CtlError> {
        self.post::<Counts>("/_ctl/reset", &()).await.map(drop)
    }
}
