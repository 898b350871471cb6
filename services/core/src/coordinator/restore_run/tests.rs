use super::*;
use crate::coordinator::test_support::{Dice, instance};

fn members() -> Vec<Instance> {
    [
        "environment/e/0",
        "agent/a/0",
        "resources/r/0",
        "resources/r/1",
        "policy-model/p/0",
    ]
    .map(instance)
    .to_vec()
}

fn failed() -> Done {
    Done::Failed {
        instance: None,
        refusal: Refusal::new(Reason::InvalidCheckpoint, "torn"),
    }
}

fn kept(on: &[Instance]) -> Done {
    Done::Answers(on.iter().map(|i| (i.clone(), KeepAnswer::Kept)).collect())
}

#[test]
fn what_is_called_opens_before_its_callers() {
    let (mut run, mut step) = RestoreRun::begin(members());
    let mut order = Vec::new();
    while !matches!(step, Step::End(_)) {
        step = match &step {
            Step::Keep { on } => {
                order.push(on[0].kind);
                run.after(kept(on))
            }
            _ => run.after(Done::Ok),
        };
    }
    assert_eq!(
        order,
        [Kind::Resources, Kind::Agent, Kind::PolicyModel, Kind::Environment]
    );
    assert_eq!(step, Step::End(Ending::Restored));
}

#[test]
fn a_failure_before_activate_leaves_nothing_live() {
    for fails_at in ["stage", "activate"] {
        let (mut run, mut step) = RestoreRun::begin(members());
        while run.stage() != fails_at {
            step = run.after(Done::Ok);
        }
        assert!(!matches!(step, Step::Keep { .. }));
        step = run.after(failed());
        assert_eq!(step, Step::Abandon { on: members() });
        assert!(matches!(run.after(Done::Ok), Step::End(Ending::Abandoned(f)) if f.stage == fails_at));
    }
}

#[test]
fn one_that_came_back_is_staged_again_and_then_kept() {
    let (mut run, step) = RestoreRun::resume(members());
    let Step::Keep { on } = step else {
        panic!("{step:?}")
    };
    let answers = vec![
        (on[0].clone(), KeepAnswer::Kept),
        (on[1].clone(), KeepAnswer::NeedsStaging),
    ];
    assert_eq!(
        run.after(Done::Answers(answers)),
        Step::Restage {
            on: vec![on[1].clone()]
        }
    );
    assert_eq!(
        run.after(Done::Ok),
        Step::Keep {
            on: vec![on[1].clone()]
        }
    );
    assert!(matches!(run.after(failed()), Step::Pause { .. }));
}

#[test]
fn abort_is_legal_until_an_agent_has_opened() {
    let (mut run, step) = RestoreRun::resume(members());
    let Step::Keep { on } = step else { panic!() };
    assert!(run.may_abort());
    let mut late = run.clone();
    assert!(run.abort());
    let Step::Undo { abandon, retire } = run.after(kept(&on)) else {
        panic!()
    };
    assert_eq!((abandon.len(), retire), (3, on.clone()));
    let Step::Keep { on: agents } = late.after(kept(&on)) else {
        panic!()
    };
    late.after(kept(&agents));
    assert!(!late.abort());
}

#[test]
fn a_removed_instance_is_not_waited_for() {
    let (mut run, _) = RestoreRun::resume(vec![instance("agent/a/0"), instance("agent/a/1")]);
    run.remove(&instance("agent/a/1"));
    assert_eq!(run.after(kept(&[instance("agent/a/0")])), Step::Record);
}

/// After *activate* nothing but Abort ends a run before every member has answered, and faults only delay it.
#[test]
fn random_faults_only_delay_an_activated_run() {
    let mut dice = Dice::new("random_faults_only_delay_an_activated_run");
    let mut restored = 0;
    for _ in 0..2_000 {
        let (mut run, mut step) = RestoreRun::begin(members());
        let mut activated = false;
        let mut steps = 0;
        while !matches!(step, Step::End(_)) {
            steps += 1;
            let faults = steps < 60;
            activated |= matches!(step, Step::Keep { .. });
            let done = match &step {
                Step::Keep { on } if faults => Done::Answers(
                    on.iter()
                        .map(|i| {
                            let answer = match dice.below(4) {
                                0 => KeepAnswer::NeedsStaging,
                                1 => KeepAnswer::Silent,
                                _ => KeepAnswer::Kept,
                            };
                            (i.clone(), answer)
                        })
                        .collect(),
                ),
                Step::Keep { on } => kept(on),
                _ if faults && dice.one_in(8) => failed(),
                _ => Done::Ok,
            };
            step = run.after(done);
            assert!(steps < 200, "it does not end");
        }
        assert_eq!(activated, step == Step::End(Ending::Restored), "{step:?}");
        restored += u32::from(activated);
        assert!(!activated || run.missing().is_empty());
    }
    assert!(restored > 500);
}
