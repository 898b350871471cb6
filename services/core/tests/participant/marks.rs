//! Marks: lists of some of them, under the version of all.

use belay_core::{
    participant::{Outcome, Settle},
    refusal::Reason,
};

use crate::rig::{Rig, episode, id, mark, marks, refused};

/// Marks come in lists of some of them, and the version is that of all: one that was sent before a newer list and arrives after it
/// must not be answered as if it held (protocol 3.2 rule 8).
#[test]
fn a_mark_that_comes_with_an_older_version_is_never_answered_as_held() {
    let mut rig = Rig::idle();
    let retire = |rig: &mut Rig, version, name| {
        rig.machine
            .retire(rig.now, &rig.fence, &marks(version, &[mark(name, 0)]))
    };
    assert_eq!(retire(&mut rig, 3, "newer").unwrap().len(), 1);
    refused(retire(&mut rig, 2, "late"), Reason::RetireIncomplete);
    assert!(!rig.machine.marks().refuses(&episode("late", 0)));
    // What holds already is answered whatever the version is, and the present version brings the other.
    assert_eq!(retire(&mut rig, 2, "newer").unwrap().len(), 1);
    assert_eq!(retire(&mut rig, 3, "late").unwrap().len(), 1);
    assert!(rig.machine.marks().refuses(&episode("late", 0)));

    let drop = |version| Settle {
        id: id(7),
        outcome: Outcome::Published,
        drop: marks(version, &[mark("left", 1)]),
    };
    refused(rig.settle(&drop(2)), Reason::RetireIncomplete);
    assert_eq!(rig.settle(&drop(3)).unwrap(), 1);
    assert!(rig.machine.marks().refuses(&episode("left", 1)));
}
