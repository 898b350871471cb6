//! Every call in every state: what is legal, what it leads to, and the reason where it is not.

use belay_core::{
    ids::CheckpointId,
    participant::{MarkList, Outcome, Phase},
    refusal::Refusal,
};

use crate::rig::{Rig, commit, id, marks, prepare, restore, rollout, settle};

/// The id that a state is about, and a newer one.
const OWN: u64 = 5;
const NEWER: u64 = 6;

/// The phases, and what can be beside them.
const STATES: [&str; 10] = [
    "joining",
    "reading",
    "RESTORED",
    "idle",
    "idle-reading",
    "idle-staged",
    "preparing",
    "prepared",
    "committed",
    "unsettled",
];

fn state(name: &str) -> Rig {
    let own = id(OWN);
    let mut rig = match name {
        "joining" | "reading" | "RESTORED" => Rig::joining(),
        "prepared" => Rig::prepared(own),
        "committed" => Rig::committed(own),
        "unsettled" => Rig::unsettled(own),
        _ => Rig::idle(),
    };
    let living = matches!(
        name,
        "idle" | "idle-reading" | "idle-staged" | "preparing" | "unsettled"
    );
    if living {
        rig.work("busy");
    }
    if matches!(name, "reading" | "idle-reading" | "RESTORED" | "idle-staged") {
        rig.machine
            .restore(rig.now, &rig.fence, &restore(own, &[("a", 1)]))
            .unwrap();
    }
    if matches!(name, "RESTORED" | "idle-staged") {
        rig.staged(own).unwrap();
    }
    if name == "preparing" {
        rig.prepare(&prepare(own)).unwrap();
    }
    rig.machine.check(rig.now).unwrap();
    rig
}

fn make(rig: &mut Rig, call: &str, id: CheckpointId) -> Result<(), Refusal> {
    let (now, fence) = (rig.now, rig.fence);
    match call {
        "Join" => rig.join(false, MarkList::default()).map(drop),
        "Join(open)" => rig.join(true, MarkList::default()).map(drop),
        "Prepare" => rig.prepare(&prepare(id)).map(drop),
        "Renew" => rig.machine.renew(now, &fence, id).map(drop),
        "Commit" => rig.commit(&commit(id, &["a"])).map(drop),
        "Await" => rig.machine.begin_await(now, &fence, id),
        "KEEP" => rig.keep(id).map(drop),
        "ABANDON" => rig.abandon(id).map(drop),
        "PUBLISHED" => rig.settle(&settle(id, Outcome::Published)).map(drop),
        "DISCARDED" => rig.settle(&settle(id, Outcome::Discarded)).map(drop),
        "Restore" => rig
            .machine
            .restore(now, &fence, &restore(id, &[("a", 1)]))
            .map(drop),
        "Retire" => rig.machine.retire(now, &fence, &marks(1, &[])).map(drop),
        "Forget" => {
            let rollouts = [rollout("over")];
            let asked = rig.machine.may_forget(now, &fence, &rollouts, 1);
            asked.map(|rollouts| {
                let _ = rig.machine.forget(&rollouts, 1);
            })
        }
        other => panic!("no call {other}"),
    }
}

/// `.`: accepted, the phase stays. A phase: accepted, and leads there. Otherwise refused: P INVALID_PHASE, S STALE_CHECKPOINT,
/// C CHECKPOINT_CONFLICT. The number is the id's: the state's own, or a newer one.
const TABLE: &str = "
call        id  joining reading RESTORED idle      idle-reading idle-staged preparing prepared  committed unsettled
Join         5  .       .       .        .         .            .           .         .         .         .
Join(open)   5  IDLE    .       .        .         .            .           .         .         .         .
Prepare      5  P       C       C        PREPARING C            C           .         .         .         S
Prepare      6  P       C       C        PREPARING C            C           C         C         C         C
Renew        5  S       .       .        S         .            .           .         .         .         S
Renew        6  S       C       C        S         C            C           C         C         C         C
Commit       5  S       P       P        S         P            P           P         COMMITTED .         S
Commit       6  S       C       C        S         C            C           C         C         C         C
Await        5  S       P       P        S         P            P           P         P         .         .
Await        6  S       C       C        S         C            C           C         C         C         C
KEEP         5  S       P       IDLE     S         P            .           P         P         IDLE      .
KEEP         6  S       S       S        S         S            S           S         S         S         S
ABANDON      5  .       .       JOINING  .         .            .           IDLE      IDLE      IDLE      C
ABANDON      6  .       .       .        .         .            .           .         .         .         .
PUBLISHED    5  .       P       P        .         P            P           P         P         P         .
PUBLISHED    6  .       .       .        .         .            .           .         .         .         .
DISCARDED    5  .       P       P        .         P            P           IDLE      IDLE      IDLE      .
DISCARDED    6  .       .       .        .         .            .           .         .         .         .
Restore      5  .       .       .        .         .            .           P         P         P         S
Restore      6  .       C       C        .         C            C           C         C         C         C
Retire       5  .       .       P        .         .            .           P         P         P         .
Forget       5  .       .       P        .         .            .           P         P         P         .
";

#[test]
fn every_call_in_every_state_does_what_the_table_says() {
    let mut rows = TABLE.lines().filter(|line| !line.is_empty());
    let head: Vec<&str> = rows.next().unwrap().split_whitespace().skip(2).collect();
    assert_eq!(head, STATES);
    for row in rows {
        let cells: Vec<&str> = row.split_whitespace().collect();
        let (call, sequence) = (cells[0], cells[1].parse().unwrap());
        assert_eq!(cells.len(), STATES.len() + 2, "{row}");
        for (name, expected) in STATES.into_iter().zip(&cells[2..]) {
            let mut rig = state(name);
            let before = rig.phase();
            let result = make(&mut rig, call, id(sequence));
            let seen = match &result {
                Ok(()) if rig.phase() == before => ".".to_owned(),
                Ok(()) => rig.phase().to_string(),
                Err(refusal) => match refusal.reason.as_str() {
                    "INVALID_PHASE" => "P".to_owned(),
                    "STALE_CHECKPOINT" => "S".to_owned(),
                    "CHECKPOINT_CONFLICT" => "C".to_owned(),
                    other => other.to_owned(),
                },
            };
            assert_eq!(seen, *expected, "{call} {sequence} in {name}: {result:?}");
            rig.machine.check(rig.now).unwrap();
            if let Err(refusal) = result {
                assert_eq!(rig.phase(), before, "a refused call moves nothing");
                assert_eq!(refusal.get("instance"), Some("resources/counter/0"));
                assert_eq!(refusal.get("phase"), Some(before.as_str()));
            }
        }
    }
    assert_eq!(NEWER, OWN + 1);
}

#[test]
fn admission_is_open_exactly_in_idle() {
    use belay_core::{participant::Admit, refusal::Reason};
    for name in STATES {
        let mut rig = state(name);
        let admit = rig
            .machine
            .admit(rig.now, &crate::rig::episode("new", 0), "seed".into());
        let replay = rig.machine.admit_replay(&crate::rig::episode("busy", 0));
        match rig.phase() {
            Phase::Idle => assert!(matches!(admit, Ok(Admit::Admitted(_))), "{name}"),
            Phase::Joining => assert_eq!(admit.unwrap_err().reason, Reason::NotJoined, "{name}"),
            _ => assert_eq!(admit, Ok(Admit::Closed), "{name}"),
        }
        assert_eq!(
            replay.is_ok(),
            !matches!(rig.phase(), Phase::Joining | Phase::Restored),
            "{name}: a replayable step of a live session waits for no checkpoint"
        );
    }
}
