//! Deliberate faults of incoming calls, for tests: a call comes late, is lost on its way, or its reply is.
//!
//! Off unless they are asked for. The layer sits in front of every service of a server; with no fault it passes calls on.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tonic::{Status, body::Body};
use tower::{Layer, Service};

/// What goes wrong with one kind of call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFault {
    /// The call, as `Generate` or `belay.episode.v1.PolicyModel/Generate`.
    pub call: String,
    /// It comes so many milliseconds late.
    #[serde(default)]
    pub delay_ms: u64,
    /// What is lost of it.
    #[serde(default)]
    pub lose: Option<Lose>,
    /// Only the first so many calls; all where it is unset.
    #[serde(default)]
    pub times: Option<u32>,
}

/// What is lost of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lose {
    /// The request: the server never sees it.
    Request,
    /// The reply: the server has done what was asked for.
    Reply,
}

/// Puts the faults in front of a server's services.
#[derive(Clone, Default)]
pub(crate) struct FaultLayer {
    faults: Arc<[Armed]>,
}

struct Armed {
    fault: CallFault,
    left: AtomicU32,
}

impl FaultLayer {
    pub(crate) fn new(faults: &[CallFault]) -> Self {
        let arm = |fault: &CallFault| Armed {
            left: AtomicU32::new(fault.times.unwrap_or(u32::MAX)),
            fault: fault.clone(),
        };
        Self {
            faults: faults.iter().map(arm).collect(),
        }
    }

    /// The fault that this call meets: the first one that names it and is not used up.
    fn meets(&self, path: &str) -> Option<CallFault> {
        self.faults
            .iter()
            .find(|armed| armed.names(path) && armed.take())
            .map(|armed| armed.fault.clone())
    }
}

impl Armed {
    fn names(&self, path: &str) -> bool {
        path.strip_suffix(self.fault.call.as_str())
            .is_some_and(|before| before.ends_with('/'))
    }

    fn take(&self) -> bool {
        let spend = |left: u32| match self.fault.times {
            None => Some(left),
            Some(_) => left.checked_sub(1),
        };
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend)
            .is_ok()
    }
}

impl<S> Layer<S> for FaultLayer {
    type Service = Faulty<S>;
    fn layer(&self, inner: S) -> Faulty<S> {
        Faulty {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind its faults.
#[derive(Clone)]
pub(crate) struct Faulty<S> {
    inner: S,
    layer: FaultLayer,
}

impl<S> Service<http::Request<Body>> for Faulty<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Some(fault) = self.layer.meets(request.uri().path()) else {
            return Box::pin(self.inner.call(request));
        };
        tracing::info!(call = request.uri().path(), ?fault, "a deliberate fault");
        // The inner future does nothing before it is polled.
        let answer = (fault.lose != Some(Lose::Request)).then(|| self.inner.call(request));
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(fault.delay_ms)).await;
            // As a connection that broke: without an ErrorInfo, so the caller cannot know what became of its call.
            let lost = || Ok(Status::unavailable("the call was lost by a deliberate fault").into_http());
            match answer {
                None => lost(),
                Some(answer) => {
                    let answer = answer.await;
                    if fault.lose == Some(Lose::Reply) {
                        lost()
                    } else {
                        answer
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_meets_the_calls_that_it_names_and_no_more_than_asked_for() {
        let fault = |call: &str, times| CallFault {
            call: call.into(),
            delay_ms: 0,
            lose: Some(Lose::Reply),
            times,
        };
        let layer = FaultLayer::new(&[fault("Generate", Some(2)), fault("PolicyModel/EndEpisodes", None)]);
        let generate = "/belay.episode.v1.PolicyModel/Generate";
        assert_eq!(layer.meets("/belay.episode.v1.PolicyModel/NotGenerate"), None);
        assert!(layer.meets(generate).is_some() && layer.meets(generate).is_some());
        assert_eq!(layer.meets(generate), None);
        assert_eq!(layer.meets("/x.PolicyModel/EndEpisodes"), None);
        let full = FaultLayer::new(&[fault("x.PolicyModel/EndEpisodes", None)]);
        for _ in 0..3 {
            assert!(full.meets("/x.PolicyModel/EndEpisodes").is_some());
        }
    }
}
