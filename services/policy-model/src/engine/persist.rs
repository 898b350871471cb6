//! Trying again, within a bound that has a name.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep, timeout};

use crate::error::PolicyError;

/// How one attempt failed.
pub(super) enum Failure {
    /// It may work the next time.
    Transient(String),
    /// It will not.
    Final(PolicyError),
}

/// How long to try, and whom.
#[derive(Clone, Debug)]
pub(super) struct Persist {
    /// The engine's address, for messages.
    pub(super) engine: String,
    /// From the first failure in a row.
    pub(super) patience: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// An attempt that lasted longer than any connecting takes had reached the engine: its failure begins a new row.
const REACHED: Duration = Duration::from_secs(30);

impl Persist {
    /// Makes attempts, each at most `limit` long, until one succeeds, one is final, or the patience is over.
    pub(super) async fn until_done<T, Fut>(
        &self,
        what: &'static str,
        limit: Duration,
        mut attempt: impl FnMut() -> Fut,
    ) -> Result<T, PolicyError>
    where
        Fut: Future<Output = Result<T, Failure>>,
    {
        let mut failing_since = None;
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            let last = match timeout(limit, attempt()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(Failure::Final(error))) => return Err(error),
                Ok(Err(Failure::Transient(last))) => last,
                Err(_) => format!("no answer within {} s", limit.as_secs_f32()),
            };
            if began.elapsed() > REACHED.max(self.patience) {
                failing_since = None;
                pause = FIRST_PAUSE;
            }
            let since = *failing_since.get_or_insert_with(Instant::now);
            if since.elapsed() + pause > self.patience {
                return Err(PolicyError::Unreachable {
                    engine: self.engine.clone(),
                    what,
                    last,
                    patience: self.patience,
                });
            }
            tracing::debug!(engine = self.engine, what, last, "trying again");
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn persist(patience: Duration) -> Persist {
        Persist {
            engine: "127.0.0.1:1".into(),
            patience,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_tries_until_it_works_and_gives_up_by_name() {
        let tries = AtomicU32::new(0);
        let third = |_| async {
            match tries.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => Err(Failure::Transient("refused".into())),
                n => Ok(n),
            }
        };
        let done = persist(Duration::from_secs(5))
            .until_done("cut", Duration::from_secs(1), || third(()))
            .await;
        assert_eq!(done.expect("the third works"), 2);

        let began = Instant::now();
        let gave_up = persist(Duration::from_secs(5))
            .until_done("cut", Duration::from_secs(1), || async {
                Err::<(), _>(Failure::Transient("refused".into()))
            })
            .await
            .expect_err("never works")
            .to_string();
        assert!(
            gave_up.contains("127.0.0.1:1") && gave_up.contains("cut: refused"),
            "{gave_up}"
        );
        assert!(began.elapsed() <= Duration::from_secs(6));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_attempt_ends_and_a_connection_lost_late_begins_a_new_row() {
        let hangs = persist(Duration::from_secs(5))
            .until_done("release", Duration::from_secs(1), || async {
                std::future::pending::<Result<(), Failure>>().await
            })
            .await
            .expect_err("never answers")
            .to_string();
        assert!(hangs.contains("no answer within 1 s"), "{hangs}");

        let tries = AtomicU32::new(0);
        let long_then_lost = || async {
            sleep(Duration::from_secs(100)).await;
            match tries.fetch_add(1, Ordering::Relaxed) {
                0..5 => Err(Failure::Transient("reset".into())),
                n => Ok(n),
            }
        };
        let patient = persist(Duration::from_secs(5));
        let done = patient
            .until_done("generate", Duration::from_secs(3600), long_then_lost)
            .await;
        assert_eq!(done.expect("each time it had been reached"), 5);
    }
}
