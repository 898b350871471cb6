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
mod tests;
