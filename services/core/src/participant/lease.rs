//! How long a closed participant waits to hear from its coordinator (protocol 3.2 rule 7).

use std::time::Duration;

/// Runs out `grace` after the last accepted call.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    grace: Duration,
    until: Duration,
}

impl Lease {
    pub(super) fn new(now: Duration, grace: Duration) -> Self {
        Self {
            grace,
            until: now + grace,
        }
    }

    /// An accepted call: the lease runs anew. Never shortens it, should time seem to go back.
    pub(super) fn renew(&mut self, now: Duration) {
        self.until = self.until.max(now + self.grace);
    }

    pub(super) fn until(&self) -> Duration {
        self.until
    }

    pub(super) fn left(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }

    pub(super) fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_runs_from_the_last_accepted_call() {
        let mut lease = Lease::new(s(10), s(60));
        assert!(!lease.is_over(s(69)) && lease.is_over(s(70)));
        lease.renew(s(69));
        assert_eq!(lease.left(s(100)), s(29));
        lease.renew(s(5));
        assert_eq!(lease.until(), s(129), "an older time takes nothing away");
    }
}
