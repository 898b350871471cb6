//! An environment whose work is held from outside, for tests: it asks a URL before each tool call and each verify, and waits for
//! the answer.

use std::time::Duration;

use belay_core::parts::{CheckpointMode, VerifyMode};
use bytes::Bytes;
use serde_json::json;

use crate::{
    environment::{Environment, TaskError, ToolCall, ToolOutcome, Verdict},
    error::ResourcesError,
};

/// Longer than any test; a wait that ends so goes on with a warning.
const BOUND: Duration = Duration::from_secs(600);

/// Asks before it works.
pub(crate) struct Asking<E> {
    inner: E,
    url: String,
    client: reqwest::Client,
}

impl<E: Environment> Asking<E> {
    pub(crate) fn new(inner: E, url: &str) -> Result<Self, ResourcesError> {
        // The client sets TLS up even where the URL is plain.
        belay_mesh::telemetry::install_crypto();
        let client = reqwest::Client::builder()
            .timeout(BOUND)
            .build()
            .map_err(|source| ResourcesError::WorkAsks {
                url: url.to_owned(),
                source,
            })?;
        Ok(Self {
            inner,
            url: url.to_owned(),
            client,
        })
    }

    async fn ask(&self, what: &str, about: &str) {
        let work = json!({ "what": what, "about": about });
        let answer = self.client.post(&self.url).json(&work).send().await;
        if let Err(error) = answer.and_then(reqwest::Response::error_for_status) {
            tracing::warn!("{} does not say that a {what} may go on: {error}", self.url);
        }
    }
}

impl<E: Environment> Environment for Asking<E> {
    type State = E::State;

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn mode(&self) -> CheckpointMode {
        self.inner.mode()
    }

    fn verify_mode(&self) -> VerifyMode {
        self.inner.verify_mode()
    }

    fn shared(&self) -> bool {
        self.inner.shared()
    }

    fn external(&self, tool: &str) -> bool {
        self.inner.external(tool)
    }

    fn tools(&self) -> &[&'static str] {
        self.inner.tools()
    }

    fn seed(&self, task: &[u8]) -> Result<Self::State, TaskError> {
        self.inner.seed(task)
    }

    async fn call<'a>(&'a self, state: &'a Self::State, call: ToolCall<'a>) -> ToolOutcome<Self::State> {
        self.ask("tool", call.key).await;
        self.inner.call(state, call).await
    }

    async fn verify<'a>(
        &'a self,
        state: &'a Self::State,
        task: &'a [u8],
        response: &'a [u8],
    ) -> Result<Verdict, TaskError> {
        self.ask("verify", &String::from_utf8_lossy(task)).await;
        self.inner.verify(state, task, response).await
    }

    fn export(&self, state: &Self::State) -> Bytes {
        self.inner.export(state)
    }

    fn export_size(&self, state: &Self::State) -> u64 {
        self.inner.export_size(state)
    }

    fn import(&self, task: &[u8], exported: &[u8]) -> Result<Self::State, String> {
        self.inner.import(task, exported)
    }
}
