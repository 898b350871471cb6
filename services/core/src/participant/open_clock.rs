//! A clock that stands still while the mesh is closed (protocol 3.2 rule 6).

use std::time::Duration;

/// Time for which the participant was open.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenClock {
    /// Of the spells that are over.
    past: Duration,
    /// When the present one began.
    since: Option<Duration>,
}

impl OpenClock {
    pub(super) fn set(&mut self, now: Duration, open: bool) {
        if open {
            self.since.get_or_insert(now);
        } else if let Some(since) = self.since.take() {
            self.past += now.saturating_sub(since);
        }
    }

    pub(super) fn read(&self, now: Duration) -> Duration {
        self.past
            + self
                .since
                .map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_open_time_counts() {
        let s = Duration::from_secs;
        let mut clock = OpenClock::default();
        assert_eq!(clock.read(s(5)), s(0), "joining");
        clock.set(s(5), true);
        clock.set(s(6), true);
        assert_eq!(clock.read(s(8)), s(3));
        clock.set(s(9), false);
        clock.set(s(12), false);
        assert_eq!(clock.read(s(20)), s(4));
        clock.set(s(20), true);
        assert_eq!(clock.read(s(21)), s(5));
    }
}
