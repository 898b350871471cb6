//! Whether a mesh may open by itself (protocol 3.1).
//!
//! After a crash of everything that runs episodes, a retried Run would start from scratch beside its own restore. So when
//! there is a checkpoint and no environment or agent of the mesh as it was is left, the mesh waits for a restore, or for
//! somebody's word that nothing is to be restored.

use std::collections::BTreeMap;

use crate::ids::{Incarnation, Instance, Kind};

/// What is known of one member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// It answers, as this process.
    Alive(Incarnation),
    /// It does not answer.
    Silent,
}

/// True when the mesh waits for Restore or Open: there is a checkpoint, and no environment or agent is known to be the
/// process that was opened before. A silent one proves nothing: it may be down.
pub fn waits_for_restore(
    has_checkpoint: bool,
    members: &BTreeMap<Instance, Seen>,
    opened: &BTreeMap<Instance, Incarnation>,
) -> bool {
    has_checkpoint
        && !members
            .iter()
            .filter(|(instance, _)| matches!(instance.kind, Kind::Environment | Kind::Agent))
            .any(|(instance, seen)| match seen {
                Seen::Alive(incarnation) => opened.get(instance) == Some(incarnation),
                Seen::Silent => false,
            })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::coordinator::test_support::instance;

    fn life(n: u128) -> Incarnation {
        Incarnation(Uuid::from_u128(n))
    }

    fn members(env: Seen, agent: Seen) -> BTreeMap<Instance, Seen> {
        [
            (instance("environment/e/0"), env),
            (instance("agent/a/0"), agent),
            (instance("resources/r/0"), Seen::Alive(life(3))),
        ]
        .into()
    }

    #[test]
    fn it_opens_while_one_environment_or_agent_is_the_one_that_was_opened() {
        let opened: BTreeMap<_, _> = [
            (instance("environment/e/0"), life(1)),
            (instance("agent/a/0"), life(2)),
            (instance("resources/r/0"), life(3)),
        ]
        .into();
        let (old_env, old_agent, new) = (Seen::Alive(life(1)), Seen::Alive(life(2)), Seen::Alive(life(9)));
        assert!(!waits_for_restore(true, &members(old_env, new), &opened));
        assert!(!waits_for_restore(true, &members(new, old_agent), &opened));
        assert!(waits_for_restore(true, &members(new, new), &opened));
        assert!(waits_for_restore(true, &members(new, Seen::Silent), &opened));
        assert!(!waits_for_restore(false, &members(new, new), &opened));
        assert!(waits_for_restore(
            true,
            &members(old_env, old_agent),
            &BTreeMap::new()
        ));
    }
}
