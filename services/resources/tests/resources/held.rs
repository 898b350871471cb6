//! A counter whose tool calls and verifiers wait until the test lets them go on, and that counts them.

use std::sync::Arc;

use belay_core::parts::{CheckpointMode, VerifyMode};
use belay_resources::{
    Environment,
    environment::{TaskError, ToolCall, ToolOutcome, Verdict},
    environments::Counter,
};
use bytes::Bytes;
use tokio::sync::watch;

use super::PATIENCE;

#[derive(Clone)]
pub struct Held {
    seen: Arc<watch::Sender<Seen>>,
    shared: bool,
}

#[derive(Clone, Default, Debug)]
pub struct Seen {
    pub hold: bool,
    /// The next call panics.
    pub fail: bool,
    pub calls: u32,
    pub verifies: u32,
    pub keys: Vec<String>,
}

impl Held {
    pub fn new() -> Self {
        let seen = Seen {
            hold: true,
            ..Seen::default()
        };
        Self {
            seen: Arc::new(watch::Sender::new(seen)),
            shared: false,
        }
    }

    /// Its sessions share state, it says.
    pub fn sharing() -> Self {
        Self {
            shared: true,
            ..Self::new()
        }
    }

    pub fn release(&self) {
        self.seen.send_modify(|seen| seen.hold = false);
    }

    pub fn fail_next(&self) {
        self.seen.send_modify(|seen| seen.fail = true);
    }

    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    pub async fn until(&self, what: &str, wanted: impl FnMut(&Seen) -> bool) {
        let mut seen = self.seen.subscribe();
        let reached = tokio::time::timeout(PATIENCE, seen.wait_for(wanted)).await;
        assert!(reached.is_ok(), "{what}: not reached, {:?}", self.seen());
    }

    async fn pass(&self) {
        let mut seen = self.seen.subscribe();
        seen.wait_for(|seen| !seen.hold)
            .await
            .expect("the test holds a sender");
        let mut fail = false;
        self.seen
            .send_modify(|seen| fail = std::mem::take(&mut seen.fail));
        assert!(!fail, "a defect of the environment, made by the test");
    }
}

impl Environment for Held {
    type State = i64;

    fn name(&self) -> &str {
        "counter"
    }

    fn mode(&self) -> CheckpointMode {
        CheckpointMode::Exported
    }

    fn verify_mode(&self) -> VerifyMode {
        VerifyMode::Wait
    }

    fn shared(&self) -> bool {
        self.shared
    }

    fn tools(&self) -> &[&'static str] {
        &["increment_counter", "get_counter_value"]
    }

    fn seed(&self, task: &[u8]) -> Result<i64, TaskError> {
        Counter.seed(task)
    }

    async fn call<'a>(&'a self, state: &'a i64, call: ToolCall<'a>) -> ToolOutcome<i64> {
        self.seen.send_modify(|seen| {
            seen.calls += 1;
            seen.keys.push(call.key.to_owned());
        });
        self.pass().await;
        Counter.call(state, call).await
    }

    async fn verify<'a>(
        &'a self,
        state: &'a i64,
        task: &'a [u8],
        response: &'a [u8],
    ) -> Result<Verdict, TaskError> {
        self.seen.send_modify(|seen| seen.verifies += 1);
        self.pass().await;
        Counter.verify(state, task, response).await
    }

    fn export(&self, state: &i64) -> Bytes {
        Counter.export(state)
    }

    fn export_size(&self, state: &i64) -> u64 {
        Counter.export_size(state)
    }

    fn import(&self, task: &[u8], exported: &[u8]) -> Result<i64, String> {
        Counter.import(task, exported)
    }
}
