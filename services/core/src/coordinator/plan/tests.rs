use super::*;
use crate::coordinator::{
    attempts::Why,
    test_support::{Dice, episode, execution, instance, rollout},
};

const SOURCE: CheckpointId = CheckpointId {
    epoch: 1,
    sequence: 1,
};

fn saved(id: &str, attempt: u32, parts: &[&str]) -> Saved {
    Saved {
        episode: episode(id, attempt),
        parts: parts.iter().map(|p| instance(p)).collect(),
    }
}

fn make(saved: &[Saved], scope: &Scope, book: &AttemptBook) -> Result<Plan, Refusal> {
    let mut next = 0;
    plan(
        SOURCE,
        saved,
        scope,
        book,
        &|part, _| {
            (&*part.name != "gone").then(|| Instance {
                replica: 7,
                ..part.clone()
            })
        },
        &mut || {
            next += 1;
            execution(next)
        },
    )
}

#[test]
fn parts_go_to_replicas_of_the_same_server_each_once() {
    let parts = ["environment/e/0", "resources/counter/1", "resources/counter/0"];
    let plan = make(
        &[saved("a", 0, &parts)],
        &Scope::default(),
        &AttemptBook::default(),
    )
    .expect("planned");
    assert_eq!(plan.episodes[0].attempt, 1);
    assert_eq!(
        plan.episodes[0].placement,
        [instance("environment/e/7"), instance("resources/counter/7")]
    );
    assert_eq!(
        plan.superseded(),
        vec![Mark {
            rollout: rollout("a"),
            attempt: 0
        }]
    );
}

#[test]
fn a_server_that_is_gone_is_named() {
    let refusal = make(
        &[saved("a", 0, &["resources/gone/0"])],
        &Scope::default(),
        &AttemptBook::default(),
    )
    .expect_err("no place");
    assert_eq!(refusal.reason, Reason::InvalidRequest);
    assert!(refusal.message.contains("resources/gone"), "{}", refusal.message);
}

#[test]
fn the_scope_is_kept_and_of_two_attempts_the_higher_goes_on() {
    let all = [
        saved("a", 0, &[]),
        saved("a", 2, &[]),
        saved("b", 0, &[]),
        saved("c", 0, &[]),
    ];
    let scope = Scope {
        only: [rollout("a"), rollout("b")].into(),
        leave_out: [rollout("b")].into(),
    };
    let plan = make(&all, &scope, &AttemptBook::default()).expect("planned");
    assert_eq!(plan.episodes.len(), 1);
    assert_eq!((plan.episodes[0].saved.attempt, plan.episodes[0].attempt), (2, 3));
}

/// Restores, retires and forgets in any order: no attempt is handed out twice, none at or below a mark, nothing that
/// is over comes back, and everything else does, again and again.
#[test]
fn random_histories_hand_out_each_attempt_once() {
    let mut dice = Dice::new("random_histories_hand_out_each_attempt_once");
    for _ in 0..500 {
        let mut book = AttemptBook::default();
        let mut given: BTreeSet<(RolloutId, u32)> = BTreeSet::new();
        let all: Vec<Saved> = (0..4)
            .map(|n| saved(&format!("r{n}"), dice.below(3) as u32, &["agent/a/0"]))
            .collect();
        for _ in 0..8 {
            let one = &all[dice.below(4) as usize].episode;
            match dice.below(4) {
                0 => {
                    let mark = Mark {
                        rollout: one.rollout.clone(),
                        attempt: dice.below(4) as u32,
                    };
                    book.rollouts.extend(book.raised(&[mark], Why::Retired));
                }
                _ => {
                    let plan = make(&all, &Scope::default(), &book).expect("planned");
                    assert_eq!(plan.episodes.len() + plan.retired.len(), all.len());
                    for e in &plan.episodes {
                        let row = book.rollouts.get(&e.saved.rollout).copied().unwrap_or_default();
                        assert!(row.mark.is_none_or(|m| e.attempt > m));
                        assert!(row.retired.is_none_or(|r| e.saved.attempt > r));
                        assert!(e.attempt > e.saved.attempt);
                        assert!(given.insert((e.saved.rollout.clone(), e.attempt)), "{e:?} twice");
                    }
                    let out = plan.episodes.iter().map(|e| (&e.saved.rollout, e.attempt));
                    book.rollouts.extend(book.handed_out(out));
                    book.rollouts
                        .extend(book.raised(&plan.superseded(), Why::Superseded));
                }
            }
        }
    }
}
