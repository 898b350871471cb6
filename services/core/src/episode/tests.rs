use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use uuid::Uuid;

use super::*;
use crate::{
    agent::Usage,
    coordinator::partition::UNCLAIMED,
    ids::{Episode, ExecutionId, Instance, RolloutId},
    parts::{CheckpointMode, Cursor, Mark, Need, Restart, Standing, VerifyMode},
    refusal::{Reason, Refusal},
};

fn instance(text: &str) -> Instance {
    text.parse().expect("an instance")
}

fn episode(id: &str, attempt: u32) -> Episode {
    Episode::new(RolloutId::new(id).expect("a rollout id"), attempt)
}

fn life(n: u128) -> ExecutionId {
    ExecutionId(Uuid::from_u128(n))
}

fn mark(id: &str, attempt: u32) -> Mark {
    Mark {
        rollout: RolloutId::new(id).expect("a rollout id"),
        attempt,
    }
}

fn work(task: &str) -> Arc<Work> {
    Arc::new(Work::new(
        Bytes::copy_from_slice(task.as_bytes()),
        "counter",
        "default",
        0,
    ))
}

fn request(episode: Episode, expect: Expect) -> Request {
    Request {
        episode,
        expect,
        work: work("{}"),
        deadline: None,
    }
}

fn parts() -> SeededParts {
    SeededParts {
        resources: instance("resources/counter/0"),
        resources_mode: CheckpointMode::Exported,
        verify: VerifyMode::Wait,
        agent: instance("agent/default/0"),
        agent_mode: CheckpointMode::Exported,
        policy_model: instance("policy-model/default/0"),
        revision: 0,
    }
}

fn outcome() -> AgentOutcome {
    AgentOutcome {
        response: Bytes::from_static(b"{}"),
        usage: Usage::default(),
        cursor: Cursor {
            chain: Some([7; 32]),
            ..Cursor::default()
        },
        model_calls: 1,
        tool_calls: 0,
    }
}

fn verdict() -> Verdict {
    Verdict {
        reward: 1.0,
        details: Bytes::from_static(b"{}"),
    }
}

fn all_steps() -> [StepDone; 5] {
    [
        StepDone::Seeded(parts()),
        StepDone::AgentReplied(outcome()),
        StepDone::AgentClosed,
        StepDone::Verified(verdict()),
        StepDone::ResourcesClosed,
    ]
}

fn table() -> Episodes {
    Episodes::new(instance("environment/default/0"), 100)
}

fn start(table: &mut Episodes, episode: &Episode, n: u128) -> ExecutionId {
    let admission = table
        .admit(&request(episode.clone(), Expect::Either), life(n), Duration::ZERO)
        .expect("admitted");
    assert!(matches!(admission, Admission::Start(_)), "{admission:?}");
    life(n)
}

fn finish(table: &mut Episodes, episode: &Episode, execution: ExecutionId) {
    for done in all_steps() {
        table.record(episode, execution, done).expect("the next step");
    }
}

fn refused(table: &mut Episodes, episode: Episode, expect: Expect) -> Refusal {
    let before = format!("{table:?}");
    let refusal = table
        .admit(&request(episode, expect), life(99), Duration::ZERO)
        .expect_err("refused");
    assert_eq!(format!("{table:?}"), before, "a refusal changes nothing");
    refusal
}

fn restored(episode: Episode, n: u128, boundary: Boundary) -> Restored {
    Restored {
        episode,
        execution: life(n),
        work: work("{}"),
        boundary,
        deadline: Deadline::Never,
    }
}

fn standing(table: &Episodes, scope: &[Episode]) -> BTreeMap<String, Standing> {
    let snapshot = table.snapshot(scope, &[], Duration::ZERO);
    snapshot
        .partition
        .iter()
        .map(|e| (format!("{:?}", e.episode), e.standing))
        .collect()
}

#[test]
fn only_the_next_step_moves_a_boundary() {
    let mut boundary = Boundary::Seed;
    for (at, done) in all_steps().into_iter().enumerate() {
        for (other, wrong) in all_steps().into_iter().enumerate() {
            assert_eq!(boundary.after(wrong).is_some(), at == other, "{at} {other}");
        }
        boundary = boundary.after(done).expect("legal");
        let again = Boundary::assemble(
            boundary.step(),
            boundary.parts().map(|p| p.as_ref().clone()),
            boundary.outcome().map(|o| o.as_ref().clone()),
            boundary.verdict().map(|v| v.as_ref().clone()),
        );
        assert_eq!(
            again.as_ref(),
            Some(&boundary),
            "a record gives the boundary back"
        );
    }
    assert_eq!(boundary.step(), Step::Return);
    for step in &Step::ALL[1..] {
        assert_eq!(Boundary::assemble(*step, None, None, None), None);
        assert_eq!(Step::from_name(step.as_str()), Some(*step));
    }
}

#[test]
fn a_checkpoint_waits_for_closes_and_for_a_verifier_that_says_so() {
    use StepMode::{Replay, Wait};
    let modes = |verify| Step::ALL.map(|step| step.mode(verify));
    assert_eq!(modes(VerifyMode::Wait), [Replay, Replay, Wait, Wait, Wait, Wait]);
    assert_eq!(
        modes(VerifyMode::Replay),
        [Replay, Replay, Wait, Replay, Wait, Wait]
    );
}

#[test]
fn a_boundary_needs_what_the_episode_cannot_go_on_without() {
    let mut boundary = Boundary::Seed;
    let mut seen = Vec::new();
    for done in all_steps() {
        boundary = boundary.after(done).expect("legal");
        let needs: Vec<String> = boundary
            .needs()
            .iter()
            .map(|n| format!("{} {:?}", n.instance.kind, n.need))
            .collect();
        seen.push(needs.join(", "));
    }
    assert_eq!(Boundary::Seed.needs(), vec![], "a restored seed seeds anew");
    assert_eq!(
        seen,
        [
            "agent Whole, resources Whole, policy-model IfBegun",
            "agent Whole, resources Whole, policy-model Whole",
            "resources Whole, policy-model Whole",
            "resources Whole, policy-model Whole",
            "policy-model Whole",
        ]
    );
}

#[test]
fn a_run_is_started_joined_and_replied_to() {
    let mut table = table();
    let a = episode("a", 0);
    let execution = start(&mut table, &a, 1);
    let again = request(a.clone(), Expect::Either);
    for expect in [Expect::Either, Expect::Fresh] {
        let joined = table.admit(&request(a.clone(), expect), life(2), Duration::ZERO);
        assert_eq!(joined, Ok(Admission::Join));
    }
    finish(&mut table, &a, execution);
    let Ok(Admission::Replied(finished)) = table.admit(&again, life(2), Duration::ZERO) else {
        panic!("a finished one replies");
    };
    assert_eq!((finished.execution, finished.restored), (execution, false));
    let freed = table.acknowledge(&[a.clone(), a.clone(), episode("never", 0)]);
    assert_eq!(freed.len(), 1);
    assert_eq!(freed[0].policy_model, parts().policy_model);
    let refusal = refused(&mut table, a, Expect::Either);
    assert_eq!(refusal.reason, Reason::StaleAttempt);
    assert_eq!(
        refusal.get("next_attempt"),
        None,
        "nobody is told to run it again"
    );
}

#[test]
fn two_attempts_never_live_at_once() {
    let mut table = table();
    let execution = start(&mut table, &episode("a", 1), 1);
    let below = refused(&mut table, episode("a", 0), Expect::Either);
    assert_eq!(
        (below.reason, below.get("next_attempt")),
        (Reason::StaleAttempt, Some("1"))
    );
    let above = refused(&mut table, episode("a", 2), Expect::Either);
    assert_eq!(
        (above.reason, above.get("next_attempt")),
        (Reason::AttemptLive, Some("1"))
    );

    finish(&mut table, &episode("a", 1), execution);
    let above = refused(&mut table, episode("a", 2), Expect::Either);
    assert_eq!(
        above.reason,
        Reason::AttemptLive,
        "its result is not acknowledged"
    );
    table.acknowledge(&[episode("a", 1)]);
    start(&mut table, &episode("a", 2), 2);
}

#[test]
fn a_retired_attempt_bars_the_next_until_its_task_has_ended() {
    let mut table = table();
    let a = episode("a", 0);
    let execution = start(&mut table, &a, 1);
    assert_eq!(table.retire(&mark("a", 0)), vec![execution]);
    assert!(table.retiring(&mark("a", 0)));
    assert_eq!(
        table.record(&a, execution, StepDone::Seeded(parts())),
        None,
        "a late step changes nothing"
    );
    let stale = refused(&mut table, a.clone(), Expect::Either);
    assert_eq!(
        (stale.reason, stale.get("next_attempt")),
        (Reason::StaleAttempt, Some("1"))
    );
    let early = refused(&mut table, episode("a", 1), Expect::Either);
    assert_eq!(
        (early.reason, early.retry_after.is_some()),
        (Reason::AttemptLive, true)
    );
    let rollout = &a.rollout;
    assert_eq!(
        table.may_forget(rollout).expect_err("it has yet to end").reason,
        Reason::RetireIncomplete
    );
    table.ended(&a, life(7));
    assert!(
        table.retiring(&mark("a", 0)),
        "another life's end is not this one's"
    );
    table.ended(&a, execution);
    assert!(!table.retiring(&mark("a", 0)));
    start(&mut table, &episode("a", 1), 2);
    assert_eq!(
        table.may_forget(rollout).expect_err("it lives").reason,
        Reason::RolloutLive
    );
    table.forget(rollout);
    assert_eq!(
        table.roots(),
        vec![episode("a", 1)],
        "what lives is not forgotten"
    );
}

#[test]
fn a_failed_attempt_gives_every_run_the_same_refusal_and_frees_the_next() {
    let mut table = table();
    let a = episode("a", 0);
    let execution = start(&mut table, &a, 1);
    let why = Refusal::new(Reason::EpisodeUnknown, "gone").instance(&instance("agent/default/0"));
    assert!(table.fail(&a, execution, why.clone()));
    assert!(!table.fail(&a, execution, Refusal::new(Reason::Internal, "later")));
    assert_eq!(refused(&mut table, a.clone(), Expect::Either), why);
    assert_eq!(table.outcome(&a), Some(Err(why)));
    start(&mut table, &episode("a", 1), 2);
}

#[test]
fn a_restored_episode_is_claimed_once_and_by_its_own_task() {
    let mut table = table();
    let a = episode("a", 1);
    table.activate(vec![restored(
        a.clone(),
        1,
        Boundary::InvokeAgent(Arc::new(parts())),
    )]);
    assert_eq!(table.unclaimed(), 1);
    let stale = refused(&mut table, episode("a", 0), Expect::Either);
    assert_eq!(
        (stale.reason, stale.get("next_attempt")),
        (Reason::StaleAttempt, Some("1"))
    );
    assert_eq!(
        refused(&mut table, a.clone(), Expect::Fresh).reason,
        Reason::AttemptLive
    );
    let mut other = request(a.clone(), Expect::Either);
    other.work = work(r#"{"other":1}"#);
    let mismatch = table
        .admit(&other, life(9), Duration::ZERO)
        .expect_err("another task");
    assert_eq!(mismatch.reason, Reason::TaskMismatch);
    assert_eq!(table.unclaimed(), 1, "a refused Run leaves it where it was");

    let claim = table.admit(&request(a.clone(), Expect::Restored), life(9), Duration::ZERO);
    let Ok(Admission::Claim(claimed)) = claim else {
        panic!("claimed: {claim:?}");
    };
    assert_eq!(
        (claimed.execution, claimed.boundary.step()),
        (life(1), Step::InvokeAgent)
    );
    let again = table.admit(&request(a, Expect::Restored), life(9), Duration::ZERO);
    assert_eq!(again, Ok(Admission::Join));
    assert_eq!(table.unclaimed(), 0);
}

#[test]
fn nothing_starts_where_a_restored_episode_was_expected() {
    let mut table = table();
    assert_eq!(
        refused(&mut table, episode("a", 1), Expect::Restored).reason,
        Reason::NotRestored
    );
    start(&mut table, &episode("b", 0), 1);
    assert_eq!(
        refused(&mut table, episode("b", 0), Expect::Restored).reason,
        Reason::NotRestored
    );
}

#[test]
fn a_finished_episode_is_saved_with_its_result_and_replies_after_the_restore() {
    let mut table = table();
    let a = episode("a", 0);
    let execution = start(&mut table, &a, 1);
    finish(&mut table, &a, execution);
    let snapshot = table.snapshot(&table.roots(), &[], Duration::ZERO);
    let saved = &snapshot.saved[0];
    assert!(saved.summary.finished && saved.summary.root);
    assert_eq!(saved.summary.needs[0].need, Need::Whole);

    let mut after = self::table();
    after.activate(vec![restored(episode("a", 1), 2, saved.boundary.clone())]);
    let reply = after.admit(
        &request(episode("a", 1), Expect::Restored),
        life(3),
        Duration::ZERO,
    );
    let Ok(Admission::Replied(finished)) = reply else {
        panic!("replied: {reply:?}");
    };
    assert!(finished.restored);
    assert_eq!((finished.verdict.reward, after.results()), (1.0, 1));
}

#[test]
fn the_partition_names_each_class() {
    let mut table = table();
    for (n, id) in [
        "ack", "failed", "finished", "out", "restart", "retired", "running",
    ]
    .iter()
    .enumerate()
    {
        start(&mut table, &episode(id, 0), n as u128);
    }
    finish(&mut table, &episode("ack", 0), life(0));
    table.acknowledge(&[episode("ack", 0)]);
    table.fail(
        &episode("failed", 0),
        life(1),
        Refusal::new(Reason::EngineFailed, "x"),
    );
    finish(&mut table, &episode("finished", 0), life(2));
    table.retire(&mark("retired", 0));
    table.activate(vec![restored(episode("unclaimed", 1), 50, Boundary::Seed)]);
    let scope = ["finished", "running", "restart", "ack"].map(|id| episode(id, 0));
    let restarts = [Restart {
        episode: episode("restart", 0),
        instance: instance("agent/default/0"),
        reason: "why".into(),
    }];
    let snapshot = table.snapshot(&scope, &restarts, Duration::ZERO);
    let seen: Vec<(&str, Standing)> = snapshot
        .partition
        .iter()
        .map(|e| (e.episode.rollout.as_str(), e.standing))
        .collect();
    assert_eq!(
        seen,
        [
            ("ack", Standing::Acknowledged),
            ("failed", Standing::Failed),
            ("finished", Standing::SavedFinished),
            ("out", Standing::LeftOut),
            ("restart", Standing::Restart),
            ("retired", Standing::Retired),
            ("running", Standing::SavedRunning),
            ("unclaimed", Standing::LeftOut),
        ]
    );
    assert_eq!(snapshot.partition[7].reason, UNCLAIMED);
    assert_eq!(snapshot.saved.len(), 2);
    assert_eq!(
        table.drop_unclaimed(&[mark("unclaimed", 1), mark("running", 0)]),
        1
    );
    assert_eq!(standing(&table, &[])["unclaimed#1"], Standing::Retired);
    assert_eq!(
        standing(&table, &[])["running#0"],
        Standing::LeftOut,
        "a claimed one stays"
    );
}

#[test]
fn an_episode_with_a_part_that_cannot_be_saved_is_a_restart_until_it_needs_it_no_more() {
    let mut table = table();
    let a = episode("a", 0);
    let execution = start(&mut table, &a, 1);
    let unsaveable = SeededParts {
        resources_mode: CheckpointMode::RestartOnly,
        ..parts()
    };
    assert_eq!(
        table.restarts(),
        vec![],
        "at seed nothing is known, and nothing is needed"
    );
    for done in [
        StepDone::Seeded(unsaveable),
        StepDone::AgentReplied(outcome()),
        StepDone::AgentClosed,
        StepDone::Verified(verdict()),
    ] {
        table.record(&a, execution, done);
        assert_eq!(table.restarts()[0].instance, parts().resources);
        let snapshot = table.snapshot(std::slice::from_ref(&a), &[], Duration::ZERO);
        assert_eq!(snapshot.saved, vec![], "never exported");
        assert_eq!(snapshot.partition[0].standing, Standing::Restart);
    }
    table.record(&a, execution, StepDone::ResourcesClosed);
    assert_eq!(table.restarts(), vec![]);
}

#[test]
fn without_boundaries_each_episode_that_runs_is_a_restart_and_a_finished_one_is_saved() {
    let mut table = table().without_boundaries();
    let (runs, done) = (episode("runs", 0), episode("done", 0));
    start(&mut table, &runs, 1);
    let execution = start(&mut table, &done, 2);
    assert_eq!(table.restarts().len(), 2);
    finish(&mut table, &done, execution);
    let restarts = table.restarts();
    assert_eq!(restarts.len(), 1);
    assert_eq!(restarts[0].instance, instance("environment/default/0"));
    assert!(restarts[0].reason.contains("no boundaries"), "{restarts:?}");
    let standing = standing(&table, &[runs, done]);
    assert_eq!(standing["runs#0"], Standing::Restart);
    assert_eq!(standing["done#0"], Standing::SavedFinished);
}

#[test]
fn results_are_bounded_and_those_that_are_known_still_reply() {
    let mut table = Episodes::new(instance("environment/default/0"), 1);
    let a = episode("a", 0);
    let execution = start(&mut table, &a, 1);
    finish(&mut table, &a, execution);
    let full = refused(&mut table, episode("b", 0), Expect::Either);
    assert_eq!(
        (full.reason, full.retry_after.is_some()),
        (Reason::AdmissionFull, true)
    );
    let known = table.admit(&request(a.clone(), Expect::Either), life(3), Duration::ZERO);
    assert!(matches!(known, Ok(Admission::Replied(_))));
    table.acknowledge(&[a]);
    start(&mut table, &episode("b", 0), 4);
}

#[test]
fn parked_and_dead_time_is_not_counted() {
    let secs = Duration::from_secs;
    let mut table = table();
    let mut run = request(episode("a", 0), Expect::Either);
    run.deadline = Some(secs(10));
    let Ok(Admission::Start(begun)) = table.admit(&run, life(1), secs(100)) else {
        panic!("started");
    };
    assert_eq!(begun.deadline, Deadline::Until(secs(110)));
    let saved = table.snapshot(&[episode("a", 0)], &[], secs(104)).saved;
    assert_eq!(saved[0].deadline_left, Some(secs(6)));

    let mut after = self::table();
    after.activate(vec![Restored {
        deadline: Deadline::from(saved[0].deadline_left),
        ..restored(episode("a", 1), 2, Boundary::Seed)
    }]);
    let unclaimed = after.snapshot(&[episode("a", 1)], &[], secs(50)).saved;
    assert_eq!(
        unclaimed[0].deadline_left,
        Some(secs(6)),
        "it stands until it is claimed"
    );
    let Ok(Admission::Claim(claimed)) =
        after.admit(&request(episode("a", 1), Expect::Either), life(3), secs(50))
    else {
        panic!("claimed");
    };
    assert_eq!(claimed.deadline, Deadline::Until(secs(56)));
}

#[test]
fn a_restore_stops_lower_attempts_before_its_own_goes_live() {
    let mut table = table();
    start(&mut table, &episode("a", 0), 1);
    let stopped = table.activate(vec![restored(episode("a", 2), 2, Boundary::Seed)]);
    assert_eq!(stopped, vec![life(1)]);
    assert_eq!(standing(&table, &[])["a#0"], Standing::Retired);
    assert_eq!(
        refused(&mut table, episode("a", 1), Expect::Either).reason,
        Reason::StaleAttempt
    );
}

/// Small, seeded, good enough to pick test cases: xorshift64*.
struct Dice(u64);

impl Dice {
    fn new(test: &str) -> Self {
        use std::hash::{BuildHasher as _, Hasher as _, RandomState};
        let seed = std::env::var("BELAY_SEED")
            .ok()
            .and_then(|s| s.parse().ok())
            .unwrap_or_else(|| RandomState::new().build_hasher().finish());
        println!("{test}: BELAY_SEED={seed}");
        Self(seed | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % n
    }
}

/// What a test of random events remembers beside the table.
#[derive(Default)]
struct Ghost {
    admitted: BTreeSet<Episode>,
    /// Finished here, neither acknowledged, retired nor dropped since.
    results: BTreeSet<Episode>,
    ran: u64,
}

impl Ghost {
    /// Records a step, the next one or not: true if it was.
    fn record(&mut self, table: &mut Episodes, e: &Episode, execution: ExecutionId, done: StepDone) -> bool {
        let state = |table: &Episodes| table.entry(e).map(|entry| format!("{:?}", entry.state));
        let before = state(table);
        let Some(next) = table.record(e, execution, done.clone()) else {
            assert_eq!(before, state(table), "{done:?} is refused and changes something");
            return false;
        };
        if next.step() == Step::Return {
            self.results.insert(e.clone());
            self.ran += 1;
        }
        true
    }

    fn forget_below(&mut self, mark: &Mark) {
        self.results
            .retain(|e| e.rollout != mark.rollout || e.attempt > mark.attempt);
    }
}

#[test]
fn random_events_keep_the_partition_exact_and_lose_no_result() {
    let mut dice = Dice::new("random_events_keep_the_partition_exact_and_lose_no_result");
    let mut ran = 0;
    for _ in 0..150 {
        let mut table = Episodes::new(instance("environment/default/0"), 6);
        let mut ghost = Ghost::default();
        for n in 0..80_u128 {
            event(&mut table, &mut ghost, &mut dice, n);
            check(&table, &ghost, &mut dice);
        }
        ran += ghost.ran;
    }
    assert!(
        ran > 150,
        "only {ran} episodes ran to their end: the test tests nothing"
    );
}

fn event(table: &mut Episodes, ghost: &mut Ghost, dice: &mut Dice, n: u128) {
    let id = ["a", "b", "c"][dice.below(3) as usize];
    let e = episode(id, dice.below(4) as u32);
    let held = table.entry(&e).map(|entry| entry.execution);
    match dice.below(16) {
        0..=3 => {
            let expect = [Expect::Fresh, Expect::Restored, Expect::Either][dice.below(3) as usize];
            if table
                .admit(&request(e.clone(), expect), life(n), Duration::ZERO)
                .is_ok()
            {
                ghost.admitted.insert(e);
            }
        }
        4..=9 => {
            if let Some(execution) = held.filter(|_| dice.below(4) == 0) {
                ghost.record(table, &e, execution, all_steps()[dice.below(5) as usize].clone());
            }
            run_on(table, ghost, dice);
        }
        10 => {
            for freed in table.acknowledge(std::slice::from_ref(&e)) {
                ghost.results.remove(&freed.episode);
            }
        }
        11 => {
            let m = mark(id, e.attempt);
            table.retire(&m);
            ghost.forget_below(&m);
        }
        12 => {
            if let Some(execution) = held {
                table.ended(&e, execution);
            }
        }
        13 => {
            if let Some(execution) = held {
                table.fail(&e, execution, Refusal::new(Reason::EngineFailed, "x"));
            }
        }
        14 => {
            // The coordinator hands out attempts above all that were seen.
            let above = table
                .rollouts
                .get(&e.rollout)
                .map_or(0, table::Rollout::next_attempt);
            let fresh = episode(id, above.max(e.attempt) + 1);
            let boundary = match dice.below(2) {
                0 => Boundary::Seed,
                _ => Boundary::Return(Arc::new(parts()), Arc::new(outcome()), Arc::new(verdict())),
            };
            ghost.forget_below(&mark(id, fresh.attempt - 1));
            if matches!(boundary, Boundary::Return(..)) {
                ghost.results.insert(fresh.clone());
            }
            ghost.admitted.insert(fresh.clone());
            table.activate(vec![restored(fresh, n, boundary)]);
        }
        _ => {
            if table.may_forget(&e.rollout).is_ok() {
                assert!(
                    !ghost.results.iter().any(|r| r.rollout == e.rollout),
                    "a result was forgotten"
                );
                ghost.admitted.retain(|a| a.rollout != e.rollout);
            }
            table.forget(&e.rollout);
        }
    }
}

/// Takes a claimed episode some steps further.
fn run_on(table: &mut Episodes, ghost: &mut Ghost, dice: &mut Dice) {
    let claimed: Vec<Episode> = table
        .roots()
        .into_iter()
        .filter(|e| table.entry(e).is_some_and(|entry| entry.claimed))
        .collect();
    let Some(e) = claimed.get(dice.below(claimed.len().max(1) as u64) as usize) else {
        return;
    };
    let execution = table.entry(e).expect("it is a root").execution;
    for _ in 0..=dice.below(4) {
        for done in all_steps() {
            if ghost.record(table, e, execution, done) {
                break;
            }
        }
    }
}

fn check(table: &Episodes, ghost: &Ghost, dice: &mut Dice) {
    let scope: Vec<Episode> = table.roots().into_iter().filter(|_| dice.below(3) > 0).collect();
    let snapshot = table.snapshot(&scope, &[], Duration::ZERO);
    let listed: Vec<&Episode> = snapshot.partition.iter().map(|e| &e.episode).collect();
    assert_eq!(
        listed,
        ghost.admitted.iter().collect::<Vec<_>>(),
        "each admitted episode exactly once"
    );
    let saved: BTreeSet<&Episode> = snapshot.saved.iter().map(|s| &s.summary.episode).collect();
    for entry in &snapshot.partition {
        let says = matches!(entry.standing, Standing::SavedRunning | Standing::SavedFinished);
        assert_eq!(says, saved.contains(&entry.episode), "{entry:?}");
        assert_eq!(says, scope.contains(&entry.episode), "{entry:?}");
    }
    for rollout in table.rollouts.values() {
        let live = rollout
            .attempts
            .values()
            .filter(|entry| entry.bars_others())
            .count();
        let ending = rollout
            .attempts
            .values()
            .filter(|entry| matches!(entry.state, table::State::Retired { ending: true }))
            .count();
        assert!(live - ending <= 1, "two attempts live: {rollout:?}");
    }
    assert_eq!(table.results(), ghost.results.len());
    for e in &ghost.results {
        assert!(table.finished(e).is_ok(), "the result of {e} is lost");
    }
}
