//! How long a closed participant waits to hear from its coordinator (protocol 3.2 rule 7), and the bounds of what calls may ask for.

use std::time::Duration;

use crate::refusal::{Reason, Refusal};

/// The lease where a Prepare names none.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(60);
/// The longest lease.
pub const MAX_GRACE: Duration = Duration::from_secs(600);
/// The longest timeout of a call that can wait.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

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

/// A grace in (0, 10 min]; unset reads as [`DEFAULT_GRACE`].
pub fn grace(asked: Option<Duration>) -> Result<Duration, Refusal> {
    let grace = asked.unwrap_or(DEFAULT_GRACE);
    within("grace", grace, MAX_GRACE, "10 min")
}

/// A timeout in (0, 1 h], which must be there.
pub fn timeout(asked: Option<Duration>) -> Result<Duration, Refusal> {
    let timeout = asked.ok_or_else(|| {
        Refusal::new(
            Reason::InvalidRequest,
            "timeout is missing: give a duration in (0, 1 h]",
        )
        .with("field", "timeout")
    })?;
    within("timeout", timeout, MAX_TIMEOUT, "1 h")
}

/// A soft limit below its call's timeout, or none.
pub fn soft_limit(asked: Option<Duration>, timeout: Duration) -> Result<Option<Duration>, Refusal> {
    match asked {
        Some(limit) if limit >= timeout => Err(Refusal::new(
            Reason::InvalidRequest,
            format!("soft_limit {limit:?} must be below the call's timeout {timeout:?}"),
        )
        .with("field", "soft_limit")),
        asked => Ok(asked),
    }
}

fn within(field: &'static str, asked: Duration, most: Duration, bound: &str) -> Result<Duration, Refusal> {
    if asked.is_zero() || asked > most {
        return Err(Refusal::new(
            Reason::InvalidRequest,
            format!("{field} {asked:?} is not in (0, {bound}]"),
        )
        .with("field", field));
    }
    Ok(asked)
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

    #[test]
    fn bounds_are_kept_and_named() {
        assert_eq!(grace(None), Ok(DEFAULT_GRACE));
        assert_eq!(grace(Some(MAX_GRACE)), Ok(MAX_GRACE));
        assert_eq!(timeout(Some(MAX_TIMEOUT)), Ok(MAX_TIMEOUT));
        for (refused, field) in [
            (grace(Some(s(601))), "grace"),
            (grace(Some(s(0))), "grace"),
            (timeout(None), "timeout"),
            (timeout(Some(s(0))), "timeout"),
            (timeout(Some(s(3601))), "timeout"),
        ] {
            let refusal = refused.expect_err("out of bounds");
            assert_eq!(refusal.reason, Reason::InvalidRequest);
            assert_eq!(refusal.get("field"), Some(field));
        }
        assert!(soft_limit(Some(s(5)), s(5)).is_err());
        assert_eq!(soft_limit(Some(s(4)), s(5)), Ok(Some(s(4))));
    }
}
