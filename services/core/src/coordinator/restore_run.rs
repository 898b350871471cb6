//! A run of restore (protocol 4), from the plan on: what to do next, given how the last thing went.
//!
//! ```text
//! Stage ─> Activate ─> Keep* ─> Record ─> End(Restored)
//!   └─────────┴─> Abandon ─> End(Abandoned)      Keep ─> Restage ─> Keep      a process that came back has nothing staged
//!                                                Keep ─> Pause ─> Keep        one that does not answer is asked again
//!                                                Keep ─> Undo ─> End          Abort, before an environment or agent has opened
//! ```

use std::collections::BTreeSet;

use super::{checkpoint_run::Failure, orders};
use crate::{
    ids::{Instance, Kind},
    refusal::{Reason, Refusal},
};

/// What the run asks its driver to do; one thing at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Restore on all at once.
    Stage {
        /// Everyone.
        on: Vec<Instance>,
    },
    /// Write down the decision: plan, placement, attempts, marks.
    Activate,
    /// Resume KEEP on all at once.
    Keep {
        /// Those of the stage that have not answered.
        on: Vec<Instance>,
    },
    /// Restore once more on processes that came back.
    Restage {
        /// They have nothing staged.
        on: Vec<Instance>,
    },
    /// Wait a moment: nobody new answered.
    Pause {
        /// Who is waited for.
        on: Vec<Instance>,
    },
    /// Write down that the run is complete.
    Record,
    /// Resume ABANDON on all at once.
    Abandon {
        /// Everyone.
        on: Vec<Instance>,
    },
    /// After *activate*: ABANDON on those that were not kept, retire the planned attempts on those that were.
    Undo {
        /// Nothing is live there.
        abandon: Vec<Instance>,
        /// The planned attempts are live there.
        retire: Vec<Instance>,
    },
    /// The run is over.
    End(Ending),
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Everything planned is live.
    Restored,
    /// Nothing is.
    Abandoned(Failure),
}

/// How one instance took KEEP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeepAnswer {
    /// It is live there.
    Kept,
    /// It answers, and holds nothing staged: another process, or the same that has abandoned.
    NeedsStaging,
    /// It does not answer.
    Silent,
}

/// How the last step went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Done {
    /// What was asked for is done.
    Ok,
    /// Keep: each instance's answer. Restage: those that are staged now are `Kept` by nobody yet and need no entry.
    Answers(Vec<(Instance, KeepAnswer)>),
    /// It did not go.
    Failed {
        /// Where, if it was one server.
        instance: Option<Instance>,
        /// Why.
        refusal: Refusal,
    },
}

#[derive(Clone, Debug)]
enum State {
    Staging,
    Activating,
    Keeping,
    Restaging(Vec<Instance>),
    Pausing,
    Recording,
    Abandoning(Failure),
    Undoing(Failure),
    Ended,
}

/// One run of restore.
#[derive(Clone, Debug)]
pub struct RestoreRun {
    members: Vec<Instance>,
    state: State,
    kept: BTreeSet<Instance>,
    aborted: bool,
}

impl RestoreRun {
    /// A run whose plan is made. The first step is with it.
    pub fn begin(members: Vec<Instance>) -> (Self, Step) {
        let run = Self {
            members,
            state: State::Staging,
            kept: BTreeSet::new(),
            aborted: false,
        };
        let step = run.step();
        (run, step)
    }

    /// A run that the journal holds as activated: it is completed.
    pub fn resume(members: Vec<Instance>) -> (Self, Step) {
        let mut run = Self {
            members,
            state: State::Keeping,
            kept: BTreeSet::new(),
            aborted: false,
        };
        run.state = run.keeping();
        let step = run.step();
        (run, step)
    }

    /// The stage that runs, by the name that reports use.
    pub fn stage(&self) -> &'static str {
        match self.state {
            State::Staging => "stage",
            State::Activating => "activate",
            State::Keeping | State::Restaging(_) | State::Pausing => "resume",
            State::Recording => "record",
            State::Abandoning(_) | State::Undoing(_) => "abandon",
            State::Ended => "end",
        }
    }

    /// The decision is written down.
    pub fn is_activated(&self) -> bool {
        !matches!(
            self.state,
            State::Staging | State::Activating | State::Abandoning(_)
        )
    }

    /// Who has not answered KEEP.
    pub fn missing(&self) -> Vec<Instance> {
        self.members
            .iter()
            .filter(|m| !self.kept.contains(m))
            .cloned()
            .collect()
    }

    /// Abort is legal until an environment or an agent has opened: from then on the restored may run.
    pub fn may_abort(&self) -> bool {
        let opened = self
            .kept
            .iter()
            .any(|i| matches!(i.kind, Kind::Environment | Kind::Agent));
        !opened && !matches!(self.state, State::Recording | State::Ended)
    }

    /// Asks for the end of the run; it comes with the next step. False when it is too late.
    pub fn abort(&mut self) -> bool {
        self.aborted |= self.may_abort();
        self.aborted
    }

    /// An instance was taken out of the mesh for good.
    pub fn remove(&mut self, instance: &Instance) {
        self.members.retain(|m| m != instance);
    }

    /// What to do next, after the last step went so.
    pub fn after(&mut self, done: Done) -> Step {
        let state = std::mem::replace(&mut self.state, State::Ended);
        self.state = match (state, done) {
            (State::Staging, Done::Ok) if !self.aborted => State::Activating,
            (State::Activating, Done::Ok) => self.keeping(),
            (State::Keeping, Done::Answers(answers)) => {
                let (mut moved, mut lost) = (false, Vec::new());
                for (instance, answer) in answers {
                    match answer {
                        KeepAnswer::Kept => moved |= self.kept.insert(instance),
                        KeepAnswer::NeedsStaging => lost.push(instance),
                        KeepAnswer::Silent => {}
                    }
                }
                if !lost.is_empty() {
                    State::Restaging(lost)
                } else if moved {
                    self.keeping()
                } else {
                    State::Pausing
                }
            }
            // Whether staging again went or not, KEEP tells; the pause keeps a server that cannot stage from being hammered.
            (State::Restaging(_), Done::Failed { .. }) => State::Pausing,
            (State::Restaging(_) | State::Pausing, _) => self.keeping(),
            (State::Recording, _) => State::Ended,
            (State::Abandoning(failure) | State::Undoing(failure), _) => {
                return Step::End(Ending::Abandoned(failure));
            }
            (State::Staging, Done::Failed { instance, refusal }) => State::Abandoning(Failure {
                stage: "stage",
                instance,
                refusal,
            }),
            (State::Activating, Done::Failed { instance, refusal }) => State::Abandoning(Failure {
                stage: "activate",
                instance,
                refusal,
            }),
            (State::Keeping, _) => State::Pausing,
            (State::Staging | State::Activating, _) => State::Abandoning(aborted()),
            (State::Ended, _) => State::Ended,
        };
        if self.aborted && matches!(self.state, State::Keeping | State::Restaging(_) | State::Pausing) {
            self.state = State::Undoing(aborted());
        }
        self.step()
    }

    fn keeping(&self) -> State {
        if self.missing().is_empty() {
            State::Recording
        } else {
            State::Keeping
        }
    }

    /// The first stage of the order that still misses an answer.
    fn next_stage(&self) -> Vec<Instance> {
        orders::stages(orders::RESUME, &self.missing())
            .into_iter()
            .next()
            .unwrap_or_default()
    }

    fn step(&self) -> Step {
        match &self.state {
            State::Staging => Step::Stage {
                on: self.members.clone(),
            },
            State::Activating => Step::Activate,
            State::Keeping => Step::Keep {
                on: self.next_stage(),
            },
            State::Restaging(on) => Step::Restage { on: on.clone() },
            State::Pausing => Step::Pause { on: self.missing() },
            State::Recording => Step::Record,
            State::Abandoning(_) => Step::Abandon {
                on: self.members.clone(),
            },
            State::Undoing(_) => Step::Undo {
                abandon: self.missing(),
                retire: self
                    .members
                    .iter()
                    .filter(|m| self.kept.contains(m))
                    .cloned()
                    .collect(),
            },
            State::Ended => Step::End(Ending::Restored),
        }
    }
}

fn aborted() -> Failure {
    Failure {
        stage: "resume",
        instance: None,
        refusal: Refusal::new(
            Reason::RunAbandoned,
            "Abort was called before an environment or agent had opened",
        ),
    }
}

#[cfg(test)]
mod tests {
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
}
