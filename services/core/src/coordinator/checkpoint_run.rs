//! A run of checkpoint (protocol 4): what to do next, given how the last thing went.
//!
//! ```text
//! Prepare* ─> Cuts ─> Commit ─> Commit ─> Report ─> (Hold) ─> Journal ─> Keep* ─> Await ─> Publish ─> Record ─> Settle ─> End
//!    └───────────┴───────┴─────────┴────────┴────────┴──────────┘          └────────┴────────┤
//!                       no KEEP was sent                                      KEEP was sent  │
//!                              ▼                                                  ▼          ▼
//!                           Abandon ─> End                                 Bury ─> Discard ─> End
//! ```
//!
//! The link of the name `checkpoint.json` decides. Once a KEEP may have been sent, a run that fails links a tombstone at
//! that name before it discards anything, and follows what it finds there.

mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

pub use step::{Committed, Done, Ending, Failure, Prepared, Step};

use super::{
    closure::{Closure, close},
    orders,
    partition::{self, Partition},
};
use crate::{
    ids::{Episode, Instance, RolloutId},
    parts::{PartSummary, PartitionEntry, Restart},
    refusal::{Reason, Refusal},
};

#[derive(Clone, Debug)]
enum State {
    Preparing(usize),
    Cutting,
    Committing(usize),
    Reporting,
    Journaling,
    Keeping(usize),
    Awaiting,
    Publishing,
    Recording,
    Settling,
    Abandoning(Failure),
    Burying(Failure),
    Discarding(Failure),
    Ended,
}

/// One run of checkpoint.
#[derive(Clone, Debug)]
pub struct CheckpointRun {
    members: Vec<Instance>,
    listed: BTreeSet<RolloutId>,
    prepare: Vec<Vec<Instance>>,
    commit: Vec<Vec<Instance>>,
    resume: Vec<Vec<Instance>>,
    state: State,
    restarts: Vec<Restart>,
    roots: BTreeSet<Episode>,
    captured_roots: BTreeSet<Episode>,
    captures: Vec<(Instance, Vec<PartSummary>)>,
    listed_by: Vec<(Instance, Vec<PartitionEntry>)>,
    at_door: u64,
    kept: BTreeSet<Instance>,
    closure: Closure,
    partition: Partition,
}

impl CheckpointRun {
    /// A run over these members; `listed` are the only rollouts to save, empty means all. The first step is with it.
    pub fn begin(members: Vec<Instance>, listed: BTreeSet<RolloutId>) -> (Self, Step) {
        let run = Self {
            prepare: orders::stages(orders::PREPARE, &members),
            commit: orders::stages(orders::COMMIT, &members),
            resume: orders::stages(orders::RESUME, &members),
            members,
            listed,
            state: State::Preparing(0),
            restarts: Vec::new(),
            roots: BTreeSet::new(),
            captured_roots: BTreeSet::new(),
            captures: Vec::new(),
            listed_by: Vec::new(),
            at_door: 0,
            kept: BTreeSet::new(),
            closure: Closure::default(),
            partition: Partition::default(),
        };
        let step = run.step();
        (run, step)
    }

    /// The stage that runs, by the name that reports use.
    pub fn stage(&self) -> &'static str {
        match self.state {
            State::Preparing(_) => "prepare",
            State::Cutting | State::Committing(_) => "commit",
            State::Reporting => "closure",
            State::Journaling | State::Keeping(_) => "resume",
            State::Awaiting => "await",
            State::Publishing | State::Recording => "publish",
            State::Settling => "settle",
            State::Abandoning(_) | State::Burying(_) | State::Discarding(_) => "abandon",
            State::Ended => "end",
        }
    }

    /// How many stages that share the run's budget come after this one.
    pub fn later_stages(&self) -> u32 {
        let (prepare, commit, resume) = (self.prepare.len(), self.commit.len(), self.resume.len());
        let later = match self.state {
            State::Preparing(n) => prepare - n - 1 + commit + resume + 2,
            State::Cutting => commit + resume + 2,
            State::Committing(n) => commit - n - 1 + resume + 2,
            State::Reporting | State::Journaling => resume + 2,
            State::Keeping(n) => resume - n - 1 + 2,
            State::Awaiting => 1,
            _ => 0,
        };
        u32::try_from(later).unwrap_or(u32::MAX)
    }

    /// What the check of the captures came to; empty before Report.
    pub fn closure(&self) -> &Closure {
        &self.closure
    }

    /// Where everything stands; empty before Report.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// What to do next, after the last step went so. An answer that does not belong to the step is taken as its failure.
    pub fn after(&mut self, done: Done) -> Step {
        let state = std::mem::replace(&mut self.state, State::Ended);
        self.state = match (state, done) {
            (State::Preparing(stage), Done::Prepared(replies)) => {
                for (_, prepared) in replies {
                    self.restarts.extend(prepared.restarts);
                    self.roots.extend(prepared.roots);
                }
                if stage + 1 < self.prepare.len() {
                    State::Preparing(stage + 1)
                } else if self.policy_models().is_empty() {
                    self.committing(0)
                } else {
                    State::Cutting
                }
            }
            (State::Cutting, Done::Ok) => self.committing(0),
            (State::Committing(stage), Done::Committed(replies)) => {
                self.take_captures(replies);
                self.committing(stage + 1)
            }
            (State::Reporting, Done::Ok) => State::Journaling,
            (State::Journaling, Done::Ok) => self.keeping(0),
            (State::Keeping(stage), Done::Kept { kept, failure }) => {
                self.kept.extend(kept);
                match failure {
                    None => self.keeping(stage + 1),
                    Some((instance, refusal)) => State::Burying(Failure {
                        stage: "resume",
                        instance: Some(instance),
                        refusal,
                    }),
                }
            }
            (State::Awaiting, Done::Ok) => State::Publishing,
            (State::Publishing | State::Burying(_), Done::NameIsCheckpoint) => State::Recording,
            (State::Publishing, Done::NameIsTombstone) => State::Discarding(Failure {
                stage: "publish",
                instance: None,
                refusal: Refusal::new(
                    Reason::RunAbandoned,
                    "a tombstone already stands at the checkpoint's name: another coordinator has abandoned it",
                ),
            }),
            // Published is published: a journal that cannot take it learns it from the name at its next start.
            (State::Recording, Done::Ok | Done::Failed { .. }) => State::Settling,
            (State::Settling, Done::Ok) => State::Ended,
            (State::Burying(failure), Done::NameIsTombstone) => State::Discarding(failure),
            (State::Abandoning(failure) | State::Discarding(failure), _) => {
                return Step::End(Ending::Abandoned(failure));
            }
            (State::Ended, _) => State::Ended,
            (State::Burying(failure), _) => State::Discarding(failure),
            (state, Done::Failed { instance, refusal }) => self.failed(state, instance, refusal),
            (state, done) => {
                let message = format!("a run of checkpoint in {state:?} was told {done:?}");
                self.failed(state, None, Refusal::new(Reason::Internal, message))
            }
        };
        self.step()
    }

    fn failed(&self, state: State, instance: Option<Instance>, refusal: Refusal) -> State {
        let failure = |stage| Failure {
            stage,
            instance,
            refusal,
        };
        match state {
            State::Preparing(_) => State::Abandoning(failure("prepare")),
            State::Cutting | State::Committing(_) => State::Abandoning(failure("commit")),
            State::Reporting => State::Abandoning(failure("hold")),
            State::Journaling => State::Abandoning(failure("journal")),
            State::Keeping(_) => State::Burying(failure("resume")),
            State::Awaiting => State::Burying(failure("await")),
            // The link may have been made all the same: only the name can tell, and a tombstone there settles it.
            State::Publishing => State::Burying(failure("publish")),
            State::Recording | State::Settling => State::Ended,
            State::Abandoning(f) => State::Abandoning(f),
            State::Burying(f) | State::Discarding(f) => State::Discarding(f),
            State::Ended => State::Ended,
        }
    }

    /// The episode's rollout is asked for.
    fn takes(&self, episode: &Episode) -> bool {
        self.listed.is_empty() || self.listed.contains(&episode.rollout)
    }

    fn policy_models(&self) -> Vec<Instance> {
        self.members
            .iter()
            .filter(|m| m.kind == crate::ids::Kind::PolicyModel)
            .cloned()
            .collect()
    }

    fn committing(&mut self, stage: usize) -> State {
        if stage < self.commit.len() {
            return State::Committing(stage);
        }
        self.closure = close(&self.captures, &self.restarts);
        let asked: Vec<Restart> = self
            .restarts
            .iter()
            .filter(|r| self.takes(&r.episode))
            .cloned()
            .collect();
        let listed_by = std::mem::take(&mut self.listed_by);
        self.partition = partition::merge(listed_by, self.at_door, &asked, &self.closure);
        State::Reporting
    }

    fn take_captures(&mut self, replies: Vec<(Instance, Committed)>) {
        for (instance, reply) in replies {
            self.restarts.extend(reply.restarts);
            self.captured_roots
                .extend(reply.parts.iter().filter(|p| p.root).map(|p| p.episode.clone()));
            self.captures.push((instance.clone(), reply.parts));
            if !reply.partition.is_empty() {
                self.listed_by.push((instance, reply.partition));
            }
            self.at_door += reply.at_door;
        }
        for restart in &self.restarts {
            self.captured_roots.remove(&restart.episode);
        }
    }

    fn keeping(&self, stage: usize) -> State {
        if stage < self.resume.len() {
            State::Keeping(stage)
        } else {
            State::Awaiting
        }
    }

    fn scope(&self, stage: usize) -> Vec<Episode> {
        if stage > 0 {
            return self.captured_roots.iter().cloned().collect();
        }
        let restarts: BTreeSet<&Episode> = self.restarts.iter().map(|r| &r.episode).collect();
        self.roots
            .iter()
            .filter(|e| !restarts.contains(e))
            .filter(|e| self.takes(e))
            .cloned()
            .collect()
    }

    fn step(&self) -> Step {
        let all = || self.members.clone();
        match &self.state {
            State::Preparing(stage) => match self.prepare.get(*stage) {
                Some(on) => Step::Prepare {
                    on: on.clone(),
                    restarts: self.restarts.clone(),
                },
                None => Step::Report,
            },
            State::Cutting => Step::Cuts {
                on: self.policy_models(),
            },
            State::Committing(stage) => Step::Commit {
                on: self.commit[*stage].clone(),
                scope: self.scope(*stage),
            },
            State::Reporting => Step::Report,
            State::Journaling => Step::Journal,
            State::Keeping(stage) => Step::Keep {
                on: self.resume[*stage].clone(),
            },
            State::Awaiting => Step::Await { on: all() },
            State::Publishing => Step::Publish,
            State::Recording => Step::Record,
            State::Settling => Step::Settle {
                on: all(),
                drop: self.partition.dropped(),
            },
            State::Abandoning(_) => Step::Abandon { on: all() },
            State::Burying(failure) => Step::Bury { why: failure.clone() },
            State::Discarding(_) => Step::Discard {
                on: all(),
                abandon_first: self
                    .members
                    .iter()
                    .filter(|m| !self.kept.contains(m))
                    .cloned()
                    .collect(),
            },
            State::Ended => Step::End(Ending::Published),
        }
    }
}
