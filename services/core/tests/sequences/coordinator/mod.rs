//! The coordinator: the real runs of checkpoint and restore, driven one message at a time. A message may be lost on its way, and
//! so may its reply.

mod checkpointing;
mod restoring;

use std::collections::{BTreeMap, BTreeSet};

use belay_core::{
    coordinator::{
        attempts::{AttemptBook, Why},
        checkpoint_run::{self as check, CheckpointRun, Step},
        opening::{Seen, waits_for_restore},
        orders,
        plan::{self, Plan, Saved, Scope},
        restore_run::{self as back, KeepAnswer, RestoreRun},
    },
    ids::{CheckpointId, Episode, ExecutionId, Incarnation, Instance, Kind, RolloutId},
    invariants::Invariant,
    participant::{Commit, Decision, Fence, Join, MarkList, Outcome, Phase, Prepare, Restore, Settle},
    parts::Mark,
    refusal::{Reason, Refusal},
};

use checkpointing::Checkpointing;
use restoring::Restoring;

use crate::{
    Mutation,
    servers::{Control, Reply},
    world::{Checked, GRACE, Published, World, broken, instance},
};

/// What is sent, each once more until it is answered.
#[derive(Clone, Debug)]
pub struct Duty {
    pub id: CheckpointId,
    pub kind: Kind,
    pub at: Incarnation,
    pub call: Control,
}

/// A Retire or a Forget, in the order of protocol 4.
#[derive(Clone, Debug)]
pub struct Chore {
    pub call: Control,
    pub left: Vec<Kind>,
    pub rollout: RolloutId,
}

pub enum Run {
    Checkpoint(Box<Checkpointing>),
    Restore(Box<Restoring>),
}

/// What was written down of a run before it was decided.
#[derive(Clone)]
pub enum InDoubt {
    Checkpoint {
        id: CheckpointId,
        drop: Vec<Mark>,
        pinned: BTreeMap<Kind, Incarnation>,
    },
    Restore {
        id: CheckpointId,
        source: CheckpointId,
        plan: Plan,
        marks: MarkList,
    },
}

#[derive(Default)]
pub struct Coordinator {
    // The journal.
    pub epoch: u64,
    pub book: AttemptBook,
    pub opened: BTreeMap<Instance, Incarnation>,
    pub in_doubt: Option<InDoubt>,
    pub duties: Vec<Duty>,
    pub chores: Vec<Chore>,
    sequence: u64,
    // What dies with the process.
    pub run: Option<Run>,
}

fn members() -> Vec<Instance> {
    Kind::ALL.into_iter().map(instance).collect()
}

fn next_unanswered<T>(on: &[Instance], answers: &BTreeMap<Kind, T>) -> Option<Kind> {
    on.iter().map(|i| i.kind).find(|kind| !answers.contains_key(kind))
}

impl World {
    fn next_id(&mut self) -> CheckpointId {
        self.coordinator.sequence += 1;
        CheckpointId {
            epoch: self.coordinator.epoch,
            sequence: self.coordinator.sequence,
        }
    }

    /// Sends a control call. `None`: it was lost, or its reply was.
    fn send(&mut self, kind: Kind, at: Incarnation, call: &Control) -> Option<Result<Reply, Refusal>> {
        if self.faults && self.dice.one_in(12) {
            return None;
        }
        let fence = Fence {
            epoch: self.coordinator.epoch,
            incarnation: at,
        };
        let reply = if self.machine(kind).incarnation() == at {
            self.control(kind, &fence, call)
        } else {
            Err(Refusal::new(
                Reason::PeerUnreachable,
                "another process is there by now",
            ))
        };
        (!self.faults || !self.dice.one_in(12)).then_some(reply)
    }

    fn send_now(&mut self, kind: Kind, call: &Control) -> Option<Result<Reply, Refusal>> {
        let at = self.machine(kind).incarnation();
        self.send(kind, at, call)
    }

    fn being_forgotten(&self) -> BTreeSet<RolloutId> {
        let forgets = |chore: &&Chore| matches!(chore.call, Control::Forget(..));
        let chores = self.coordinator.chores.iter().filter(forgets);
        chores.map(|chore| chore.rollout.clone()).collect()
    }

    fn mark_list(&self) -> MarkList {
        MarkList {
            version: self.next_version() - 1,
            marks: self.coordinator.book.marks(&self.being_forgotten()),
        }
    }

    /// A version above all that was promised.
    fn next_version(&self) -> u64 {
        let promised = self.coordinator.chores.iter().map(|chore| match &chore.call {
            Control::MayForget(_, version) | Control::Forget(_, version) => *version,
            _ => 0,
        });
        1 + promised
            .max()
            .unwrap_or_default()
            .max(self.coordinator.book.version)
    }

    pub fn raise(&mut self, marks: &[Mark], why: Why) {
        let version = self.next_version();
        let book = &mut self.coordinator.book;
        let rows = book.raised(marks, why);
        book.rollouts.extend(rows);
        book.version = version;
    }

    /// No process that ran episodes is left, and there is a checkpoint.
    pub fn waits(&self) -> bool {
        let seen = |kind: Kind| {
            (
                instance(kind),
                Seen::Alive(self.servers[&kind].machine.incarnation()),
            )
        };
        let seen = Kind::ALL.map(seen).into();
        waits_for_restore(!self.disk.published.is_empty(), &seen, &self.coordinator.opened)
    }

    /// The coordinator does a little.
    pub fn coordinator_step(&mut self) -> Checked {
        let joining = Kind::ALL
            .into_iter()
            .filter(|kind| self.servers[kind].machine.phase() == Phase::Joining);
        let joining: Vec<Kind> = joining.collect();
        match self.dice.below(5) {
            0 if !joining.is_empty() => self.join(joining),
            1 if !self.coordinator.duties.is_empty() => self.duty(),
            2 if self.coordinator.run.is_some() => self.renew(),
            _ => match self.coordinator.run.take() {
                Some(Run::Checkpoint(run)) => return self.checkpoint_step(*run),
                Some(Run::Restore(run)) => return self.restore_step(*run),
                None if !self.coordinator.chores.is_empty() => self.chore(),
                None => self.duty(),
            },
        }
        Ok(())
    }

    fn join(&mut self, joining: Vec<Kind>) {
        let open = self.coordinator.run.is_none()
            && !matches!(self.coordinator.in_doubt, Some(InDoubt::Restore { .. }))
            && !self.waits();
        let Some(kind) = self.dice.pick(joining) else {
            return;
        };
        let call = Control::Join(Join {
            marks: self.mark_list(),
            open,
        });
        if open {
            // Written down before it is sent: what may have opened counts as opened.
            let at = self.machine(kind).incarnation();
            self.coordinator.opened.insert(instance(kind), at);
        }
        self.send_now(kind, &call);
    }

    fn duty(&mut self) {
        if self.coordinator.duties.is_empty() {
            return;
        }
        // Of one server in the order in which they were asked for.
        let at = self.dice.below(self.coordinator.duties.len());
        let kind = self.coordinator.duties[at].kind;
        let first = self
            .coordinator
            .duties
            .iter()
            .position(|duty| duty.kind == kind)
            .expect("at least that one");
        let mut duty = self.coordinator.duties[first].clone();
        if let Control::Settle(settle) = &mut duty.call {
            settle.drop.version = self.next_version() - 1;
        }
        let over = self.machine(kind).incarnation() != duty.at;
        if !over && self.send(kind, duty.at, &duty.call).is_none() {
            return;
        }
        self.coordinator.duties.remove(first);
        let owed = self.coordinator.duties.iter().any(|other| other.id == duty.id);
        if !owed && !self.disk.published.contains_key(&duty.id) {
            self.disk.swept.insert(duty.id);
            self.disk.shards.retain(|(id, _), _| *id != duty.id);
        }
    }

    fn chore(&mut self) {
        let mut chore = self.coordinator.chores[0].clone();
        if let Control::Retire(list) = &mut chore.call {
            list.version = self.next_version() - 1;
        }
        let Some(kind) = chore.left.first() else {
            return self.chore_done(&chore);
        };
        let reply = self.send_now(*kind, &chore.call);
        match (&chore.call, reply) {
            (_, Some(Ok(_))) => {
                self.coordinator.chores[0].left.remove(0);
            }
            // Something of it lives: nothing is forgotten.
            (Control::MayForget(..), Some(Err(_))) => drop(self.coordinator.chores.remove(0)),
            _ => {}
        }
    }

    fn chore_done(&mut self, chore: &Chore) {
        self.coordinator.chores.remove(0);
        match &chore.call {
            Control::Retire(list) => {
                self.tally.retires += 1;
                for mark in &list.marks {
                    let attempt = self.retired.entry(mark.rollout.clone()).or_default();
                    *attempt = mark.attempt.max(*attempt);
                }
            }
            Control::MayForget(rollouts, version) => {
                let left = orders::stages(orders::FORGET, &members()).concat();
                let call = Control::Forget(rollouts.clone(), *version);
                let left = left.into_iter().map(|i| i.kind).collect();
                self.coordinator.chores.insert(
                    0,
                    Chore {
                        call,
                        left,
                        rollout: chore.rollout.clone(),
                    },
                );
            }
            Control::Forget(_, version) => {
                self.tally.forgets += 1;
                let newest = self.disk.published.last_key_value().map(|(id, _)| *id);
                let book = &mut self.coordinator.book;
                book.version = book.version.max(*version);
                book.rollouts.remove(&chore.rollout);
                book.forgotten
                    .extend(newest.map(|until| (chore.rollout.clone(), until)));
                self.retired.remove(&chore.rollout);
                self.handed_out.retain(|episode| episode.rollout != chore.rollout);
            }
            other => unreachable!("no chore: {other:?}"),
        }
    }

    /// Asks for a Retire, or a Forget.
    pub fn ask_retire(&mut self, mark: Mark) {
        self.raise(std::slice::from_ref(&mark), Why::Retired);
        let rollout = mark.rollout.clone();
        let call = Control::Retire(MarkList {
            version: self.coordinator.book.version,
            marks: vec![mark],
        });
        let left = orders::stages(orders::RETIRE, &members())
            .concat()
            .into_iter()
            .map(|i| i.kind)
            .collect();
        self.coordinator.chores.push(Chore { call, left, rollout });
    }

    pub fn ask_forget(&mut self, rollout: RolloutId) {
        let version = self.next_version();
        let call = Control::MayForget(vec![rollout.clone()], version);
        self.coordinator.chores.push(Chore {
            call,
            left: Kind::ALL.to_vec(),
            rollout,
        });
    }

    fn renew(&mut self) {
        if let Some(Run::Checkpoint(run)) = &self.coordinator.run {
            let (id, pinned) = (run.id, run.pinned.clone());
            for (kind, at) in pinned {
                self.send(kind, at, &Control::Renew(id));
            }
        }
    }

    fn owe(&mut self, id: CheckpointId, at: &BTreeMap<Kind, Incarnation>, call: &Control) {
        let duty = |(kind, at): (&Kind, &Incarnation)| Duty {
            id,
            kind: *kind,
            at: *at,
            call: call.clone(),
        };
        self.coordinator.duties.extend(at.iter().map(duty));
    }

    fn owe_settle(
        &mut self,
        id: CheckpointId,
        at: &BTreeMap<Kind, Incarnation>,
        outcome: Outcome,
        drop: &[Mark],
    ) {
        let drop = MarkList {
            version: self.coordinator.book.version,
            marks: drop.to_vec(),
        };
        self.owe(id, at, &Control::Settle(Settle { id, outcome, drop }));
    }

    /// False: it is published.
    fn bury(&mut self, id: CheckpointId) -> bool {
        let published = self.disk.published.contains_key(&id);
        if !published {
            self.disk.tombstones.insert(id);
        }
        !published
    }

    fn record_published(&mut self, drop: &[Mark]) {
        self.raise(drop, Why::Retired);
    }

    /// The process dies and comes back; what it had written down it goes on with, all else it sweeps.
    pub fn coordinator_crash(&mut self) {
        self.coordinator.epoch += 1;
        let run = self.coordinator.run.take();
        match self.coordinator.in_doubt.clone() {
            Some(InDoubt::Checkpoint { id, drop, pinned }) => {
                self.coordinator.in_doubt = None;
                if self.bury(id) {
                    self.owe_settle(id, &pinned, Outcome::Discarded, &[]);
                } else {
                    self.record_published(&drop);
                    self.owe_settle(id, &pinned, Outcome::Published, &drop);
                }
            }
            Some(InDoubt::Restore {
                id,
                source,
                plan,
                marks,
            }) => {
                let resumed = RestoreRun::resume(members());
                self.coordinator.run = Some(Run::restore(id, source, plan, marks, resumed));
            }
            None => {
                let id = match run {
                    Some(Run::Checkpoint(run)) => run.id,
                    Some(Run::Restore(run)) => run.id,
                    None => return,
                };
                let now = Kind::ALL
                    .into_iter()
                    .map(|kind| (kind, self.machine(kind).incarnation()))
                    .collect();
                self.owe(id, &now, &Control::Resume(id, Decision::Abandon));
            }
        }
    }
}
