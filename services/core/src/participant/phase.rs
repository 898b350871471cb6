//! Where a participant is, and which moves are legal.

use std::fmt;

/// Where a participant is. Admission is open exactly in [`Idle`](Self::Idle).
///
/// ```text
///                    Restore (a fresh process)
///        +-----------------------------------> RESTORED
///        | <---------------------------------- |
///        |            Resume ABANDON           | Resume KEEP
///     JOINING --Join(open)--> IDLE <-----------+
///                              | ^
///                      Prepare | | Resume, lapse, a defect while preparing
///                              v |
///            PREPARING -ready-> PREPARED -Commit-> COMMITTED
///         (each of the three goes back to IDLE; a Prepare that finds nothing to wait for
///          passes through PREPARING in the same turn)
/// ```
///
/// A restore beside the living leaves the phase in IDLE: its records are staged, and nothing closes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// A fresh process: serves no data until a coordinator gave it epoch and marks.
    Joining,
    /// Open.
    Idle,
    /// Closed; some episodes cannot be cut yet.
    Preparing,
    /// Closed; every episode can be cut.
    Prepared,
    /// Closed; captured.
    Committed,
    /// Records are staged; nothing is live. Does not lapse.
    Restored,
}

/// Every legal move.
pub const LEGAL: &[(Phase, Phase)] = &[
    (Phase::Joining, Phase::Idle),
    (Phase::Joining, Phase::Restored),
    (Phase::Restored, Phase::Idle),
    (Phase::Restored, Phase::Joining),
    (Phase::Idle, Phase::Preparing),
    (Phase::Preparing, Phase::Prepared),
    (Phase::Prepared, Phase::Committed),
    (Phase::Preparing, Phase::Idle),
    (Phase::Prepared, Phase::Idle),
    (Phase::Committed, Phase::Idle),
];

impl Phase {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Joining,
        Self::Idle,
        Self::Preparing,
        Self::Prepared,
        Self::Committed,
        Self::Restored,
    ];

    /// As the protocol writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "JOINING",
            Self::Idle => "IDLE",
            Self::Preparing => "PREPARING",
            Self::Prepared => "PREPARED",
            Self::Committed => "COMMITTED",
            Self::Restored => "RESTORED",
        }
    }

    /// Closed by a checkpoint: such a phase has a lease.
    pub fn is_closed(self) -> bool {
        matches!(self, Self::Preparing | Self::Prepared | Self::Committed)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Holds the phase; the only way to change it is [`enter`](Self::enter).
#[derive(Clone, Debug)]
pub(super) struct PhaseCell(Phase);

impl PhaseCell {
    pub(super) fn new(phase: Phase) -> Self {
        Self(phase)
    }

    pub(super) fn get(&self) -> Phase {
        self.0
    }

    /// Moves, and checks that the move is in [`LEGAL`]: another one is a defect of this module and must not go on.
    pub(super) fn enter(&mut self, next: Phase) {
        assert!(
            LEGAL.contains(&(self.0, next)),
            "a participant never goes from {} to {next}",
            self.0
        );
        self.0 = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_move_that_is_not_listed_is_caught() {
        for from in Phase::ALL {
            for to in Phase::ALL {
                let moved = std::panic::catch_unwind(|| PhaseCell::new(from).enter(to));
                assert_eq!(moved.is_ok(), LEGAL.contains(&(from, to)), "{from} to {to}");
            }
        }
    }

    #[test]
    fn every_phase_but_joining_and_restored_leads_back_to_idle() {
        for from in [Phase::Preparing, Phase::Prepared, Phase::Committed] {
            assert!(from.is_closed());
            assert!(LEGAL.contains(&(from, Phase::Idle)));
        }
    }
}
