use super::*;
use crate::{
    coordinator::test_support::{Dice, chain, episode, execution, instance, need, part},
    ids::Operation,
    parts::LedgerTip,
};

const ENV: &str = "environment/default/0";
const AGENT: &str = "agent/default/0";
const RES: &str = "resources/counter/0";
const POLICY: &str = "policy-model/default/0";

/// One episode in the middle of its second model call.
fn captures() -> Vec<(Instance, Vec<PartSummary>)> {
    let e = episode("a", 0);
    let env = PartSummary {
        root: true,
        needs: vec![
            need(AGENT, Need::Whole),
            need(RES, Need::Whole),
            need(POLICY, Need::IfBegun),
        ],
        ..part(e.clone())
    };
    let agent = PartSummary {
        cursor: Cursor {
            operation: Some(Operation::tool_call(0, 0)),
            chain: Some(chain(1)),
            revision: 1,
        },
        needs: vec![need(RES, Need::Whole), need(POLICY, Need::IfBegun)],
        ..part(e.clone())
    };
    let resources = PartSummary {
        revision: 1,
        ..part(e.clone())
    };
    let tip = LedgerTip {
        operation: Operation::FIRST,
        chain: chain(1),
        parent: None,
    };
    let policy = PartSummary {
        ledger: Some(tip),
        ..part(e)
    };
    vec![
        (instance(ENV), vec![env]),
        (instance(AGENT), vec![agent]),
        (instance(RES), vec![resources]),
        (instance(POLICY), vec![policy]),
    ]
}

fn restart_at(captures: &[(Instance, Vec<PartSummary>)]) -> Restart {
    let closure = close(captures, &[]);
    assert_eq!(closure.whole, vec![]);
    assert_eq!(closure.restarts.len(), 1, "{closure:?}");
    closure.restarts[0].clone()
}

#[test]
fn an_episode_with_all_its_parts_is_whole() {
    let closure = close(&captures(), &[]);
    assert_eq!(closure.restarts, vec![]);
    assert_eq!(closure.whole[0].parts.len(), 4);
    assert_eq!(closure.whole[0].cursor.revision, 1);
    assert_eq!(closure.left_out, 0);
}

#[test]
fn each_missing_part_makes_a_restart_that_names_it() {
    for lost in 1..4 {
        let mut captures = captures();
        captures[lost].1.clear();
        let restart = restart_at(&captures);
        assert_eq!(restart.instance, captures[lost].0);
        assert!(restart.reason.contains("the server was restarted since"));
        assert_eq!(
            restart.reason.contains("its time to live ended"),
            restart.instance == instance(RES),
            "{}",
            restart.reason
        );
    }
}

#[test]
fn a_part_of_another_life_does_not_count() {
    for other in 1..4 {
        let mut captures = captures();
        captures[other].1[0].execution = execution(2);
        let restart = restart_at(&captures);
        assert_eq!(restart.instance, captures[other].0);
        assert!(restart.reason.contains("another life"), "{}", restart.reason);
    }
}

#[test]
fn a_session_behind_the_cursor_is_not_whole_and_one_ahead_is() {
    let mut captures = captures();
    captures[2].1[0].revision = 0;
    assert_eq!(restart_at(&captures).instance, instance(RES));
    // The tool's reply is kept there and has not reached the agent.
    captures[2].1[0].revision = 2;
    assert_eq!(close(&captures, &[]).whole.len(), 1);
}

#[test]
fn the_ledger_may_be_one_row_ahead_and_no_more() {
    let mut captures = captures();
    let tip = |op, chain, parent| {
        Some(LedgerTip {
            operation: Operation::model_call(op),
            chain,
            parent,
        })
    };
    captures[3].1[0].ledger = tip(1, chain(2), Some(chain(1)));
    assert_eq!(close(&captures, &[]).whole.len(), 1);
    captures[3].1[0].ledger = tip(2, chain(3), Some(chain(2)));
    assert_eq!(restart_at(&captures).instance, instance(POLICY));
    captures[3].1[0].ledger = None;
    assert_eq!(restart_at(&captures).instance, instance(POLICY));
    // Before the agent's first reply: no row, or one that is on its way.
    captures[1].1[0].cursor = Cursor::default();
    assert_eq!(close(&captures, &[]).whole.len(), 1);
    captures[3].1[0].ledger = tip(0, chain(1), None);
    assert_eq!(close(&captures, &[]).whole.len(), 1);
}

#[test]
fn a_part_that_is_needed_if_begun_may_be_missing_before_the_first_call_only() {
    let mut captures = captures();
    captures[3].1.clear();
    assert_eq!(restart_at(&captures).instance, instance(POLICY));
    captures[1].1[0].cursor = Cursor::default();
    let closure = close(&captures, &[]);
    assert_eq!(
        closure.whole[0].parts.len(),
        4,
        "it is placed where its first call will go"
    );
    assert_eq!((closure.whole[0].not_begun, closure.left_out), (1, 0));
}

#[test]
fn without_a_session_the_roots_own_cursor_counts() {
    let mut captures = captures();
    let seen = captures[1].1[0].cursor;
    captures[1].1.clear();
    captures[0].1[0].needs.remove(0);
    captures[0].1[0].cursor = seen;
    assert_eq!(close(&captures, &[]).whole[0].cursor, seen);
    captures[2].1[0].revision = 0;
    assert_eq!(restart_at(&captures).instance, instance(RES));
}

#[test]
fn a_reported_restart_stays_one_and_parts_without_a_root_are_left_out() {
    let known = [Restart {
        episode: episode("a", 0),
        instance: instance(RES),
        reason: "too large".into(),
    }];
    let closure = close(&captures(), &known);
    assert_eq!(
        (closure.whole.len(), closure.restarts.len(), closure.left_out),
        (0, 0, 4)
    );
    let mut orphan = captures();
    orphan[0].1.clear();
    let closure = close(&orphan, &[]);
    assert_eq!(
        (closure.whole.len(), closure.restarts.len(), closure.left_out),
        (0, 0, 3)
    );
}

#[test]
fn two_roots_of_one_episode_are_not_whole() {
    let mut captures = captures();
    let twin = captures[0].1.clone();
    captures.push((instance("environment/default/1"), twin));
    let restart = restart_at(&captures);
    assert!(restart.reason.contains("environment/default/1"));
}

/// Whatever is lost, altered or misplaced: each root is whole or a restart, and what is whole has all that it needs.
#[test]
fn random_damage_never_makes_a_whole_episode_with_a_hole() {
    let mut dice = Dice::new("random_damage_never_makes_a_whole_episode_with_a_hole");
    let mut kept = 0;
    for _ in 0..5_000 {
        let mut captures = captures();
        for _ in 0..dice.below(3) {
            let at = dice.below(captures.len() as u64) as usize;
            let Some(part) = captures[at].1.first_mut() else {
                continue;
            };
            match dice.below(5) {
                0 => captures[at].1.clear(),
                1 => part.execution = execution(u128::from(dice.below(2))),
                2 => part.revision = dice.below(3),
                3 => part.cursor.revision = dice.below(3),
                _ => part.cursor.chain = dice.one_in(2).then(|| chain(dice.below(3) as u8)),
            }
        }
        let roots = captures.iter().flat_map(|(_, p)| p).filter(|p| p.root).count();
        let closure = close(&captures, &[]);
        assert_eq!(closure.whole.len() + closure.restarts.len(), roots);
        for whole in &closure.whole {
            kept += 1;
            for (instance, parts) in &captures {
                let held = whole.parts.contains(instance) && !parts.is_empty();
                assert!(!held || parts[0].execution == whole.root.execution);
                assert!(
                    !held || instance.kind != Kind::Resources || parts[0].revision >= whole.cursor.revision
                );
            }
        }
    }
    assert!(kept > 500, "the test must see whole episodes too");
}
