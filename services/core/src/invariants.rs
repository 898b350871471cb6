//! What must always hold (protocol 6): a name for each rule, so that whoever finds one broken can say which.

use std::fmt;

/// The rules, numbered as in protocol 6.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Invariant {
    /// Admission is open if and only if the phase is IDLE.
    OpenOnlyInIdle = 1,
    /// Every admitted, not forgotten episode is in exactly one class of the partition.
    PartitionExact = 2,
    /// One result for each rollout; an effect once, a sampling once for each operation.
    OnceEach = 3,
    /// The lineage of a trajectory is a chain.
    LineageChain = 4,
    /// A published checkpoint is whole, and restores again and again.
    CheckpointWhole = 5,
    /// What was abandoned never appears.
    AbandonedGone = 6,
    /// A retired attempt is refused; two attempts of a rollout never live at once.
    OneAttempt = 7,
    /// Nobody stays closed longer than its lease.
    LeaseEnds = 8,
    /// Every wait has a bound and a name.
    WaitsNamed = 9,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::OpenOnlyInIdle,
        Self::PartitionExact,
        Self::OnceEach,
        Self::LineageChain,
        Self::CheckpointWhole,
        Self::AbandonedGone,
        Self::OneAttempt,
        Self::LeaseEnds,
        Self::WaitsNamed,
    ];

    /// Its number in protocol 6.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The rule in a few words.
    pub fn rule(self) -> &'static str {
        match self {
            Self::OpenOnlyInIdle => "admission is open if and only if the phase is IDLE",
            Self::PartitionExact => "every admitted episode is in exactly one class",
            Self::OnceEach => "one result, one effect and one sampling each in the history that survives",
            Self::LineageChain => "the lineage of a trajectory is a chain",
            Self::CheckpointWhole => "a published checkpoint is whole and restores again and again",
            Self::AbandonedGone => "what was abandoned never appears",
            Self::OneAttempt => "a retired attempt is refused, and two never live at once",
            Self::LeaseEnds => "nobody stays closed longer than its lease",
            Self::WaitsNamed => "every wait has a bound and a name",
        }
    }
}

/// One that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which rule.
    pub invariant: Invariant,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, rule) = (self.invariant.number(), self.invariant.rule());
        write!(f, "invariant {number} ({rule}): {}", self.what)
    }
}

impl std::error::Error for Violation {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_protocol() {
        let numbers: Vec<u8> = Invariant::ALL.iter().map(|rule| rule.number()).collect();
        assert_eq!(numbers, (1..=9).collect::<Vec<_>>());
        let violation = Violation {
            invariant: Invariant::OneAttempt,
            what: "a#0 and a#1 live".into(),
        };
        let text = violation.to_string();
        assert!(text.starts_with("invariant 7 (") && text.ends_with("a#0 and a#1 live"));
    }
}
