//! What a stage may take of a run's one budget (protocol 4).

use std::time::Duration;

/// Kept back for each later stage: at most this.
const RESERVE: Duration = Duration::from_secs(1);

/// What the next stage may take of what is `left`, when `later` stages come after it: all but min(1 s, 5 %) for each of them.
pub fn share(left: Duration, later: u32) -> Duration {
    let reserve = RESERVE.min(left / 20);
    left.saturating_sub(reserve.saturating_mul(later))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_leaves_something_for_each_later_one() {
        let seconds = Duration::from_secs;
        assert_eq!(share(seconds(60), 0), seconds(60));
        assert_eq!(share(seconds(60), 10), seconds(50));
        assert_eq!(share(seconds(10), 10), seconds(5));
        assert_eq!(share(Duration::ZERO, 3), Duration::ZERO);
        assert_eq!(share(seconds(1), 100), Duration::ZERO);
    }

    #[test]
    fn stages_that_use_up_their_shares_never_pass_the_budget() {
        let mut left = Duration::from_secs(60);
        for later in (0..10).rev() {
            let share = share(left, later);
            assert!(share <= left && (later == 0 || share < left));
            left -= share;
        }
        assert_eq!(left, Duration::ZERO);
    }
}
