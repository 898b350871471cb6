use super::*;
use crate::{
    coordinator::test_support::{Dice, episode, instance, need, part, rollout},
    ids::Kind,
    parts::{Mark, Need, Standing},
};

const ENV: &str = "environment/default/0";
const AGENTS: [&str; 2] = ["agent/default/0", "agent/default/1"];
const RES: &str = "resources/counter/0";
const POLICY: &str = "policy-model/default/0";

fn members() -> Vec<Instance> {
    [ENV, AGENTS[0], AGENTS[1], RES, POLICY].map(instance).to_vec()
}

fn refusal() -> Refusal {
    Refusal::new(Reason::DeadlinePassed, "it did not park")
}

fn failed() -> Done {
    Done::Failed {
        instance: None,
        refusal: refusal(),
    }
}

/// An environment with three episodes: `a` whole, `b` a restart by the resources server, `c` restored and unclaimed.
fn prepared(on: &[Instance]) -> Done {
    let reply = |i: &Instance| match i.kind {
        Kind::Environment => Prepared {
            roots: vec![episode("a", 0), episode("b", 0)],
            restarts: vec![],
        },
        Kind::Resources => Prepared {
            restarts: vec![Restart {
                episode: episode("b", 0),
                instance: i.clone(),
                reason: "restart_only".into(),
            }],
            roots: vec![],
        },
        _ => Prepared::default(),
    };
    Done::Prepared(on.iter().map(|i| (i.clone(), reply(i))).collect())
}

fn committed(on: &[Instance], scope: &[Episode]) -> Done {
    let reply = |i: &Instance| match i.kind {
        Kind::Environment => Committed {
            parts: scope
                .iter()
                .map(|e| PartSummary {
                    root: true,
                    needs: vec![need(RES, Need::Whole)],
                    ..part(e.clone())
                })
                .collect(),
            partition: vec![
                PartitionEntry {
                    episode: episode("a", 0),
                    standing: Standing::SavedRunning,
                    reason: String::new(),
                },
                PartitionEntry {
                    episode: episode("b", 0),
                    standing: Standing::Restart,
                    reason: String::new(),
                },
                PartitionEntry {
                    episode: episode("c", 1),
                    standing: Standing::LeftOut,
                    reason: partition::UNCLAIMED.into(),
                },
            ],
            at_door: 2,
            restarts: vec![],
        },
        Kind::Resources => Committed {
            parts: scope.iter().map(|e| part(e.clone())).collect(),
            ..Committed::default()
        },
        _ => Committed::default(),
    };
    Done::Committed(on.iter().map(|i| (i.clone(), reply(i))).collect())
}

/// What a mesh without faults replies.
fn well(step: &Step) -> Done {
    match step {
        Step::Prepare { on, .. } => prepared(on),
        Step::Commit { on, scope } => committed(on, scope),
        Step::Keep { on } => Done::Kept {
            kept: on.clone(),
            failure: None,
        },
        Step::Publish => Done::NameIsCheckpoint,
        Step::Bury { .. } => Done::NameIsTombstone,
        _ => Done::Ok,
    }
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::Prepare { .. } => "prepare",
        Step::Cuts { .. } => "cuts",
        Step::Commit { .. } => "commit",
        Step::Report => "report",
        Step::Journal => "journal",
        Step::Keep { .. } => "keep",
        Step::Await { .. } => "await",
        Step::Publish => "publish",
        Step::Record => "record",
        Step::Settle { .. } => "settle",
        Step::Abandon { .. } => "abandon",
        Step::Bury { .. } => "bury",
        Step::Discard { .. } => "discard",
        Step::End(Ending::Published) => "published",
        Step::End(Ending::Abandoned(_)) => "abandoned",
    }
}

/// Runs to the end; `fault` may replace a reply.
fn run(mut fault: impl FnMut(&Step) -> Option<Done>) -> (CheckpointRun, Vec<Step>) {
    let (mut run, mut step) = CheckpointRun::begin(members(), BTreeSet::new());
    let mut steps = vec![step.clone()];
    for _ in 0..100 {
        if matches!(step, Step::End(_)) {
            return (run, steps);
        }
        let done = fault(&step).unwrap_or_else(|| well(&step));
        step = run.after(done);
        steps.push(step.clone());
    }
    panic!("the run does not end: {steps:?}");
}

fn names(steps: &[Step]) -> Vec<&'static str> {
    steps.iter().map(name).collect()
}

#[test]
fn a_run_without_faults_goes_in_the_order_of_the_protocol() {
    let (run, steps) = run(|_| None);
    assert_eq!(
        names(&steps),
        [
            "prepare",
            "prepare",
            "prepare",
            "prepare",
            "cuts",
            "commit",
            "commit",
            "report",
            "journal",
            "keep",
            "keep",
            "keep",
            "keep",
            "await",
            "publish",
            "record",
            "settle",
            "published"
        ]
    );
    let Step::Prepare { on, .. } = &steps[2] else {
        panic!()
    };
    assert_eq!(on, &AGENTS.map(instance), "all replicas of a kind at once");
    let Step::Commit { scope, .. } = &steps[5] else {
        panic!()
    };
    assert_eq!(scope, &[episode("a", 0)], "no restart in the scope");
    let Step::Settle { drop, .. } = &steps[16] else {
        panic!()
    };
    assert_eq!(
        drop,
        &[Mark {
            rollout: rollout("c"),
            attempt: 1
        }]
    );
    assert_eq!(run.closure().whole.len(), 1);
    assert_eq!(run.partition().at_door, 2);
}

#[test]
fn later_stages_count_down_to_none() {
    let (mut run, mut step) = CheckpointRun::begin(members(), BTreeSet::new());
    let mut last = u32::MAX;
    while !matches!(step, Step::End(_)) {
        assert!(run.later_stages() <= last, "{step:?}");
        last = run.later_stages();
        step = run.after(well(&step));
    }
    assert_eq!(last, 0);
}

#[test]
fn only_listed_rollouts_are_in_the_scope() {
    let (mut run, mut step) = CheckpointRun::begin(members(), BTreeSet::from([rollout("z")]));
    while !matches!(step, Step::Commit { .. }) {
        step = run.after(well(&step));
    }
    assert!(matches!(step, Step::Commit { scope, .. } if scope.is_empty()));
}

#[test]
fn a_failure_before_keep_abandons_and_touches_no_name() {
    for fails in ["prepare", "cuts", "commit", "report", "journal"] {
        let (_, steps) = run(|step| (name(step) == fails).then(failed));
        let names = names(&steps);
        assert_eq!(names[names.len() - 2..], ["abandon", "abandoned"], "{fails}");
        assert!(!names.contains(&"bury") && !names.contains(&"keep"), "{fails}");
    }
}

#[test]
fn a_failure_after_keep_buries_before_it_discards() {
    for fails in ["await", "publish"] {
        let (_, steps) = run(|step| (name(step) == fails).then(failed));
        let names = names(&steps);
        assert_eq!(
            names[names.len() - 3..],
            ["bury", "discard", "abandoned"],
            "{fails}"
        );
    }
}

#[test]
fn those_that_were_not_kept_are_abandoned_before_they_are_settled() {
    let lapsed = instance(AGENTS[1]);
    let (_, steps) = run(|step| match step {
        Step::Keep { on } if on.contains(&lapsed) => Some(Done::Kept {
            kept: vec![instance(AGENTS[0])],
            failure: Some((lapsed.clone(), refusal())),
        }),
        _ => None,
    });
    let Some(Step::Discard { abandon_first, .. }) = steps.iter().find(|s| name(s) == "discard") else {
        panic!()
    };
    assert_eq!(abandon_first, &[ENV, AGENTS[1], POLICY].map(instance));
}

#[test]
fn whoever_finds_the_name_taken_follows_it() {
    let (_, steps) = run(|step| matches!(step, Step::Publish).then_some(Done::NameIsTombstone));
    let names_ = names(&steps);
    assert_eq!(names_[names_.len() - 2..], ["discard", "abandoned"]);
    // The link was made, its answer was an error: the burial finds the checkpoint.
    let (_, steps) = run(|step| match step {
        Step::Publish => Some(failed()),
        Step::Bury { .. } => Some(Done::NameIsCheckpoint),
        _ => None,
    });
    let names = names(&steps);
    assert_eq!(
        names[names.len() - 4..],
        ["bury", "record", "settle", "published"]
    );
}

/// Any step may fail in any way: the run ends, commits come after every PREPARED, KEEP after every capture, a link after every
/// durable capture; after a KEEP there is never an end without a name that says which.
#[test]
fn random_faults_never_break_the_order() {
    let mut dice = Dice::new("random_faults_never_break_the_order");
    let (mut published, mut abandoned) = (0, 0);
    for _ in 0..5_000 {
        let odds = 1 + dice.below(40);
        let mut good: Vec<(&'static str, usize)> = Vec::new();
        let mut linked = None;
        let (_, steps) = run(|step| {
            let wrong = dice.one_in(odds);
            let done = match (wrong, step) {
                (true, Step::Publish) => [failed(), Done::NameIsTombstone][dice.below(2) as usize].clone(),
                (true, Step::Bury { .. }) => Done::NameIsCheckpoint,
                (true, Step::Keep { on }) => Done::Kept {
                    kept: on[1..].to_vec(),
                    failure: Some((on[0].clone(), refusal())),
                },
                (true, _) if dice.one_in(5) => Done::Kept {
                    kept: vec![],
                    failure: None,
                },
                (true, _) => failed(),
                (false, _) => well(step),
            };
            match (step, &done) {
                (Step::Publish | Step::Bury { .. }, Done::NameIsCheckpoint) => linked = Some(true),
                (Step::Publish | Step::Bury { .. }, Done::NameIsTombstone) => linked = Some(false),
                (Step::Prepare { on, .. }, Done::Prepared(_))
                | (Step::Commit { on, .. }, Done::Committed(_))
                | (Step::Keep { on }, Done::Kept { failure: None, .. })
                | (Step::Await { on }, Done::Ok) => good.push((name(step), on.len())),
                _ => {}
            }
            let reached = |what| {
                good.iter()
                    .filter(|(n, _)| *n == what)
                    .map(|(_, c)| c)
                    .sum::<usize>()
            };
            match step {
                Step::Commit { .. } => assert_eq!(reached("prepare"), 5),
                Step::Journal => assert_eq!(reached("commit"), 5),
                Step::Publish => assert_eq!((reached("keep"), reached("await")), (5, 5)),
                Step::Settle { .. } => assert_eq!(linked, Some(true)),
                Step::Abandon { .. } => assert_eq!(linked, None),
                _ => {}
            }
            Some(done)
        });
        let names = names(&steps);
        match names.last() {
            Some(&"published") => {
                published += 1;
                assert_eq!(linked, Some(true));
            }
            _ => {
                abandoned += 1;
                assert_ne!(linked, Some(true));
                assert_eq!(names.contains(&"keep"), names.contains(&"discard"), "{names:?}");
            }
        }
    }
    assert!(
        published > 500 && abandoned > 500,
        "{published} published, {abandoned} abandoned"
    );
}
