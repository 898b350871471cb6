//! Work in flight: one task does it, any number of callers wait for what it comes to.

use belay_core::refusal::{Reason, Refusal};
use tokio::sync::watch;

type Outcome<T> = Result<T, Refusal>;

/// A caller's side. Cheap to clone; dropping it stops nothing.
#[derive(Clone, Debug)]
pub(crate) struct Flight<T>(watch::Receiver<Option<Outcome<T>>>);

/// The worker's side.
#[derive(Debug)]
pub(crate) struct Landing<T>(watch::Sender<Option<Outcome<T>>>);

impl<T: Clone> Flight<T> {
    /// Both sides.
    pub(crate) fn new() -> (Landing<T>, Self) {
        let (tell, hear) = watch::channel(None);
        (Landing(tell), Self(hear))
    }

    /// The outcome. Bounded by the caller's own deadline: a tool may run for an hour.
    pub(crate) async fn wait(mut self) -> Outcome<T> {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(|| Err(lost())),
            Err(_) => Err(lost()),
        }
    }

    /// It has come to something.
    pub(crate) fn landed(&self) -> bool {
        self.0.borrow().is_some()
    }
}

impl<T> Landing<T> {
    /// Tells everybody who waits.
    pub(crate) fn land(self, outcome: Outcome<T>) {
        self.0.send_replace(Some(outcome));
    }
}

fn lost() -> Refusal {
    Refusal::new(
        Reason::Internal,
        "the environment failed in the middle of a call and nothing was applied; this is a defect of the environment, \
         see the server's log",
    )
}
