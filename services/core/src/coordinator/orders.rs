//! Which kinds of server are asked together, and in which order (protocol 4, orders).

use crate::ids::{Instance, Kind};

/// Kinds that are asked together, stage after stage.
pub type Order = &'static [&'static [Kind]];

/// Callers close before what they call, so that what is called runs dry.
pub const PREPARE: Order = &[
    &[Kind::Environment],
    &[Kind::PolicyModel],
    &[Kind::Agent],
    &[Kind::Resources],
];

/// Roots first: what the others capture is named by what the first have captured.
pub const COMMIT: Order = &[
    &[Kind::Environment, Kind::Agent],
    &[Kind::PolicyModel, Kind::Resources],
];

/// What is called opens before its callers.
pub const RESUME: Order = &[
    &[Kind::Resources],
    &[Kind::Agent],
    &[Kind::PolicyModel],
    &[Kind::Environment],
];

/// Whoever makes work stops before whoever does it.
pub const RETIRE: Order = &[
    &[Kind::Environment],
    &[Kind::Agent],
    &[Kind::PolicyModel, Kind::Resources],
];

/// The mark goes last where new work comes from.
pub const FORGET: Order = &[
    &[Kind::PolicyModel, Kind::Resources],
    &[Kind::Agent],
    &[Kind::Environment],
];

/// The members of each stage, in the members' order; stages without a member are left out.
pub fn stages(order: Order, members: &[Instance]) -> Vec<Vec<Instance>> {
    order
        .iter()
        .map(|kinds| {
            members
                .iter()
                .filter(|m| kinds.contains(&m.kind))
                .cloned()
                .collect::<Vec<_>>()
        })
        .filter(|stage| !stage.is_empty())
        .collect()
}

/// The kinds of a stage, for a report: `policy-model and resources`.
pub fn kinds_of(stage: &[Instance]) -> String {
    let mut kinds: Vec<Kind> = stage.iter().map(|i| i.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.iter().map(|k| k.as_str()).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::test_support::instance;

    #[test]
    fn every_order_asks_every_kind_once() {
        for order in [PREPARE, COMMIT, RESUME, RETIRE, FORGET] {
            let mut kinds: Vec<Kind> = order.iter().flat_map(|s| s.iter().copied()).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, Kind::ALL, "{order:?}");
        }
    }

    #[test]
    fn replicas_are_asked_at_once_and_empty_stages_left_out() {
        let members = ["agent/a/0", "agent/a/1", "resources/counter/0"].map(instance);
        assert_eq!(
            stages(PREPARE, &members),
            vec![
                vec![instance("agent/a/0"), instance("agent/a/1")],
                vec![instance("resources/counter/0")]
            ]
        );
        assert_eq!(kinds_of(&members), "agent and resources");
    }
}
