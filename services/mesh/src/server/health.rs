//! gRPC health: whether a server serves, said without waiting and reported from one place.

use std::{convert::Infallible, future::pending, sync::Arc};

use tokio::sync::watch;
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::shutdown::Shutdown;

/// The whole server, in gRPC health's terms.
const WHOLE: &str = "";

/// Says through gRPC health whether the server serves. Cheap to clone.
#[derive(Clone)]
pub struct HealthHandle {
    serving: Arc<watch::Sender<bool>>,
}

impl HealthHandle {
    pub(super) fn new() -> Self {
        Self {
            serving: Arc::new(watch::Sender::new(false)),
        }
    }

    /// SERVING or NOT_SERVING, for the whole server (the service named "") and for each of its episode services. Waits for
    /// nothing: a participant may say it under its lock.
    pub fn set(&self, serving: bool) {
        self.serving.send_replace(serving);
    }

    /// As [`set`](Self::set).
    pub async fn serving(&self, serving: bool) {
        self.set(serving);
    }

    /// Reports what is said, until `shutdown`: then NOT_SERVING, and the streams of those who watch end, or they would hold
    /// up the drain.
    pub(super) async fn report(
        self,
        mut reporter: HealthReporter,
        services: Vec<&'static str>,
        shutdown: Shutdown,
    ) -> Infallible {
        let services: Vec<_> = [WHOLE].into_iter().chain(services).collect();
        let mut said = self.serving.subscribe();
        loop {
            let serving = *said.borrow_and_update() && !shutdown.is_cancelled();
            let status = if serving {
                ServingStatus::Serving
            } else {
                ServingStatus::NotServing
            };
            for service in &services {
                reporter.set_service_status(service, status).await;
            }
            if shutdown.is_cancelled() {
                break;
            }
            tokio::select! {
                // `self` holds a sender: there is always one more word to come.
                _ = said.changed() => {}
                () = shutdown.cancelled() => {}
            }
        }
        for service in &services {
            reporter.clear_service_status(service).await;
        }
        pending().await
    }
}
