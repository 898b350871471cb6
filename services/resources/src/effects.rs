//! The effect log: what tools did, told to somebody outside the mesh. It only observes; no decision depends on it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use belay_core::ids::Instance;
use serde::Serialize;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::{error::ResourcesError, resources::CallKey};

/// Calls at once: the client opens as many connections.
const CONNECTIONS: usize = 32;
const TRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Before the second try, the third and so on.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
];

/// One tool call that was applied. The log knows a report that is sent again by its fields.
#[derive(Debug, Serialize)]
pub(crate) struct Effect<'a> {
    rollout_id: &'a str,
    attempt: u32,
    execution: String,
    turn: u32,
    index: u32,
    tool: &'a str,
    external: bool,
    key: &'a str,
    instance: String,
    revision: u64,
}

/// What was applied, and what came of it.
pub(crate) struct AppliedTool<'a> {
    pub(crate) name: &'a str,
    /// It has effects outside the session.
    pub(crate) external: bool,
    /// What the tool was given to hand on.
    pub(crate) key: &'a str,
    /// The session's revision after it.
    pub(crate) revision: u64,
}

impl<'a> Effect<'a> {
    pub(crate) fn new(instance: &Instance, call: &'a CallKey, tool: &AppliedTool<'a>) -> Self {
        Self {
            rollout_id: call.episode.rollout.as_str(),
            attempt: call.episode.attempt,
            execution: call.execution.to_string(),
            turn: call.operation.turn,
            index: call.operation.index,
            tool: tool.name,
            external: tool.external,
            key: tool.key,
            instance: instance.to_string(),
            revision: tool.revision,
        }
    }
}

/// Where effects are told.
#[derive(Debug)]
pub(crate) struct EffectLog {
    url: String,
    client: reqwest::Client,
    connections: Semaphore,
    missed: AtomicU64,
}

impl EffectLog {
    pub(crate) fn new(url: &str) -> Result<Self, ResourcesError> {
        // The client sets TLS up even where the URL is plain.
        belay_mesh::telemetry::install_crypto();
        let client = reqwest::Client::builder()
            .timeout(TRY_TIMEOUT)
            .build()
            .map_err(|source| ResourcesError::EffectLog {
                url: url.to_owned(),
                source,
            })?;
        Ok(Self {
            url: url.to_owned(),
            client,
            connections: Semaphore::new(CONNECTIONS),
            missed: AtomicU64::new(0),
        })
    }

    /// Tells an effect, a few times if need be. A log that cannot be reached holds no tool call up for good: the effect is missed,
    /// and Status says so.
    pub(crate) async fn tell(&self, effect: &Effect<'_>) {
        let mut pauses = PAUSES.iter();
        loop {
            let error = match self.post(effect).await {
                Ok(()) => return,
                Err(error) => error,
            };
            let Some(pause) = pauses.next() else {
                self.missed.fetch_add(1, Ordering::Relaxed);
                warn!("the effect log {} missed {effect:?}: {error}", self.url);
                return;
            };
            tokio::time::sleep(*pause).await;
        }
    }

    async fn post(&self, effect: &Effect<'_>) -> Result<(), reqwest::Error> {
        let _connection = self.connections.acquire().await;
        let reply = self.client.post(&self.url).json(effect).send().await?;
        reply.error_for_status().map(|_| ())
    }

    /// For an operator, if there is something to know.
    pub(crate) fn warning(&self) -> Option<String> {
        match self.missed.load(Ordering::Relaxed) {
            0 => None,
            missed => Some(format!(
                "{missed} applied tool calls could not be told to the effect log {}: it is incomplete",
                self.url
            )),
        }
    }
}
