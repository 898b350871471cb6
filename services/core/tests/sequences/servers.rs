//! The servers' side of the control calls: what the participant's driver and the owners do around the machines.

use std::{sync::Arc, time::Duration};

use belay_core::{
    agent,
    calls::{CutAnswer, CutOutcome, Restored as RestoredCalls},
    coordinator::checkpoint_run::{Committed, Prepared},
    episode::Restored,
    ids::{CheckpointId, Episode, Kind, RolloutId},
    ledger::{TokenSpan, WeightSpan},
    participant::{
        Captured, Commit, CommitTurn, Decision, Durable, Effect, Fence, Join, MarkList, Phase, Prepare,
        PrepareProgress, Restore, RestoreReport, RestoreTurn, ResumeTurn, Settle, SettleTurn,
    },
    parts::{Mark, PartSummary, Restart},
    refusal::{Reason, Refusal},
    sessions::RestoredSession,
};

use crate::{
    Mutation,
    world::{Log, Record, Sampled, World},
};

#[derive(Clone, Debug)]
pub enum Control {
    Join(Join),
    Prepare(Prepare),
    Renew(CheckpointId),
    Commit(Commit),
    Resume(CheckpointId, Decision),
    Await(CheckpointId),
    Settle(Settle),
    Restore(Restore),
    Retire(MarkList),
    MayForget(Vec<RolloutId>, u64),
    Forget(Vec<RolloutId>, u64),
}

#[derive(Clone, Debug)]
pub enum Reply {
    Done,
    /// It is not done yet: ask again.
    Waiting,
    Prepared(Prepared),
    Committed(Committed),
}

impl World {
    /// A control call arrives at a server.
    pub fn control(&mut self, kind: Kind, fence: &Fence, call: &Control) -> Result<Reply, Refusal> {
        let reply = self.handle(kind, fence, call);
        self.effects(kind);
        if reply.is_ok() {
            let now = self.now;
            self.servers.get_mut(&kind).expect("there").heard = now;
        }
        reply
    }

    fn handle(&mut self, kind: Kind, fence: &Fence, call: &Control) -> Result<Reply, Refusal> {
        let now = self.now;
        match call {
            Control::Join(join) => self.machine(kind).join(now, fence, join).map(|_| Reply::Done),
            Control::Renew(id) => self.machine(kind).renew(now, fence, *id).map(|_| Reply::Done),
            Control::Prepare(prepare) => self.prepare(kind, fence, prepare),
            Control::Commit(commit) => self.commit(kind, fence, commit),
            Control::Await(id) => {
                self.machine(kind).begin_await(now, fence, *id)?;
                let durable = self.machine(kind).durable(*id)?;
                Ok(if durable.is_some() {
                    Reply::Done
                } else {
                    Reply::Waiting
                })
            }
            Control::Resume(id, decision) => {
                if let ResumeTurn::Activate { superseded } =
                    self.machine(kind).resume(now, fence, *id, *decision)?
                {
                    self.activate(kind, &superseded);
                    self.machine(kind).activated(now, *id, 0)?;
                }
                Ok(Reply::Done)
            }
            Control::Settle(settle) => {
                if self.machine(kind).settle(now, fence, settle)? == SettleTurn::Drop {
                    let dropped = match kind {
                        Kind::Environment => self.episodes.drop_unclaimed(&settle.drop.marks),
                        _ => {
                            settle.drop.marks.iter().for_each(|mark| self.retire(kind, mark));
                            0
                        }
                    };
                    self.machine(kind).settled(settle, dropped);
                }
                Ok(Reply::Done)
            }
            Control::Restore(restore) => self.stage(kind, fence, restore),
            Control::Retire(list) => {
                for mark in self.machine(kind).retire(now, fence, list)? {
                    self.retire(kind, &mark);
                }
                Ok(Reply::Done)
            }
            Control::MayForget(rollouts, version) => {
                let concerned = self.machine(kind).may_forget(now, fence, rollouts, *version)?;
                for rollout in &concerned {
                    match kind {
                        Kind::Environment => self.episodes.may_forget(rollout)?,
                        Kind::Agent => self.agents.may_forget(rollout)?,
                        Kind::Resources => self.sessions.may_forget(rollout)?,
                        Kind::PolicyModel => {}
                    }
                }
                Ok(Reply::Done)
            }
            Control::Forget(rollouts, version) => {
                for rollout in self.machine(kind).may_forget(now, fence, rollouts, *version)? {
                    match kind {
                        Kind::Environment => {
                            self.episodes.forget(&rollout);
                            self.admitted.retain(|e| e.rollout != rollout);
                        }
                        Kind::Agent => self.agents.forget(&rollout),
                        Kind::Resources => self.sessions.forget(&rollout),
                        Kind::PolicyModel => self.calls.forget(&rollout),
                    }
                }
                self.machine(kind).forget(rollouts, *version);
                Ok(Reply::Done)
            }
        }
    }

    fn restarts(&self, kind: Kind) -> Vec<Restart> {
        match kind {
            Kind::Environment => self.episodes.restarts(),
            Kind::Agent => self.agents.restarts(),
            _ => Vec::new(),
        }
    }

    fn prepare(&mut self, kind: Kind, fence: &Fence, call: &Prepare) -> Result<Reply, Refusal> {
        let (now, restarts) = (self.now, self.restarts(kind));
        if self.machine(kind).prepare(now, fence, call)? {
            self.machine(kind).found(now, call.id, restarts.clone());
        }
        let progress = self.machine(kind).prepare_progress(now, call.id, 10)?;
        if progress == PrepareProgress::Ready {
            let roots = match kind {
                Kind::Environment => self.episodes.roots(),
                _ => Vec::new(),
            };
            self.machine(kind).report(now, call.id, restarts, roots);
        }
        Ok(match self.machine(kind).prepare_progress(now, call.id, 10)? {
            PrepareProgress::Reported(report) => Reply::Prepared(Prepared {
                restarts: report.restarts,
                roots: report.roots,
            }),
            _ => Reply::Waiting,
        })
    }

    fn commit(&mut self, kind: Kind, fence: &Fence, call: &Commit) -> Result<Reply, Refusal> {
        let now = self.now;
        let report = match self.machine(kind).commit(now, fence, call)? {
            CommitTurn::Recorded(report) => report,
            CommitTurn::Capture { restarts } => {
                let (captured, records) = self.capture(kind, call, &restarts);
                self.servers.get_mut(&kind).expect("there").capture = Some((call.id, records));
                self.machine(kind).captured(now, call, captured)?
            }
        };
        Ok(Reply::Committed(Committed {
            parts: report.parts,
            restarts: report.restarts,
            partition: report.partition,
            at_door: report.at_door,
        }))
    }

    fn capture(
        &mut self,
        kind: Kind,
        call: &Commit,
        restarts: &[Restart],
    ) -> (Captured, Vec<(Episode, Record)>) {
        let mut captured = Captured::default();
        let mut records = Vec::new();
        let mut add = |summary: PartSummary, record: Record| {
            records.push((summary.episode.clone(), record));
            captured.parts.push((summary, 1));
        };
        match kind {
            Kind::Environment => {
                let snapshot = self.episodes.snapshot(&call.scope, restarts, self.now);
                for saved in snapshot.saved {
                    add(saved.summary.clone(), Record::Environment(saved));
                }
                self.admitted_at_capture = self.admitted.clone();
                captured.partition = snapshot.partition;
            }
            Kind::PolicyModel => {
                for episode in self.calls.capture(call.id, &call.scope) {
                    let mut summary = PartSummary::new(episode.episode.clone(), episode.execution);
                    summary.ledger = episode.ledger.tip();
                    let log = self.surviving(&episode.episode, episode.execution);
                    add(summary, Record::Model(episode, log));
                }
                self.cut.clear();
            }
            Kind::Agent => {
                for (summary, session) in self.agents.snapshot(&call.scope) {
                    add(summary.clone(), Record::Agent(session));
                }
            }
            Kind::Resources => {
                for view in call.scope.iter().filter_map(|episode| self.sessions.get(episode)) {
                    let mut summary = PartSummary::new(view.episode.clone(), view.execution);
                    summary.revision = view.revision;
                    add(summary, Record::Resources(view));
                }
            }
        }
        (captured, records)
    }

    /// What of a life's samplings is in a capture that is made now.
    fn surviving(&self, episode: &Episode, execution: belay_core::ids::ExecutionId) -> Log {
        let cut = |operation| {
            self.cut.iter().any(|key| {
                key.episode == *episode && key.execution == execution && key.operation == operation
            })
        };
        let log = self.logs.get(&execution).into_iter().flatten();
        log.filter_map(|(operation, sampled)| match sampled {
            Sampled::Running => cut(*operation).then_some((*operation, Sampled::Cut)),
            kept => Some((*operation, *kept)),
        })
        .collect()
    }

    /// The engine's receipt for the calls that were listed: some with a prefix, some without an answer, some twice.
    pub fn receipt(&mut self, id: CheckpointId) {
        let mut answers = Vec::new();
        for key in std::mem::take(&mut self.listed) {
            let times = self.dice.below(4).min(2);
            let span = TokenSpan {
                coordinate: None,
                tokens: 1,
                digest: [1; 32],
                weights: vec![WeightSpan {
                    tokens: 1,
                    version: String::new(),
                }],
            };
            let answer = CutAnswer {
                key: key.clone(),
                outcome: CutOutcome::Staged(span),
            };
            answers.extend(std::iter::repeat_n(answer, times));
            if times == 1 {
                self.cut.insert(key);
            }
        }
        self.calls.receipt(id, answers);
    }

    fn stage(&mut self, kind: Kind, fence: &Fence, call: &Restore) -> Result<Reply, Refusal> {
        let now = self.now;
        if self.machine(kind).restore(now, fence, call)? != RestoreTurn::Stage {
            return Ok(Reply::Done);
        }
        if self.faults && self.dice.one_in(12) {
            self.machine(kind).stage_failed(call.id);
            return Err(Refusal::new(Reason::StorageIo, "the shard could not be read"));
        }
        let shard = self
            .disk
            .shards
            .get(&(call.source, kind))
            .cloned()
            .unwrap_or_default();
        let mut staged = Vec::new();
        for planned in &call.plan {
            let record = shard.iter().find(|(episode, _)| *episode == planned.saved);
            staged.extend(record.map(|(_, record)| (planned.clone(), record.clone())));
        }
        self.servers.get_mut(&kind).expect("there").staged = staged;
        self.machine(kind).staged(now, call.id, RestoreReport::default());
        Ok(Reply::Done)
    }

    /// What is staged goes live.
    fn activate(&mut self, kind: Kind, superseded: &[Mark]) {
        let staged = std::mem::take(&mut self.servers.get_mut(&kind).expect("there").staged);
        for mark in superseded {
            self.retire(kind, mark);
        }
        for (planned, record) in staged {
            let (episode, execution) = (planned.episode(), planned.execution);
            if self.machine(kind).marks().refuses(&episode) {
                continue;
            }
            match record {
                Record::Environment(saved) => {
                    self.admitted.insert(episode.clone());
                    let stop = self.episodes.activate(vec![Restored {
                        episode,
                        execution,
                        work: saved.work,
                        boundary: saved.boundary,
                        deadline: saved.deadline_left.into(),
                    }]);
                    stop.into_iter().for_each(|execution| self.stop_task(execution));
                }
                Record::Model(captured, log) => {
                    let rows = captured
                        .ledger
                        .rows()
                        .iter()
                        .map(|row| row.as_ref().clone())
                        .collect::<Vec<_>>();
                    let tip = rows
                        .last()
                        .map(|row| (row.entry.operation, row.entry.request_digest));
                    let kept = tip
                        .zip(captured.last)
                        .map(|((o, d), reply)| (o, d, reply.as_ref().clone()));
                    let kept = kept.filter(|_| self.mutation != Some(Mutation::KeptReplyDropped));
                    let restored =
                        RestoredCalls::new(rows, kept, captured.in_flight).expect("as it was captured");
                    self.logs.insert(execution, log);
                    self.calls.install(episode, execution, restored);
                }
                Record::Agent(session) => {
                    let session =
                        agent::Session::from_parts(session.parts().clone()).expect("as it was captured");
                    let stop = self.agents.activate_restored(&episode, execution, session);
                    stop.into_iter().for_each(|execution| self.stop_loop(execution));
                }
                Record::Resources(view) => {
                    let restored = RestoredSession {
                        episode,
                        execution,
                        task: view.task,
                        state: view.state,
                        revision: view.revision,
                        replies: Arc::unwrap_or_clone(view.replies),
                        time_left: None,
                    };
                    self.sessions.activate(restored, Duration::ZERO);
                }
            }
        }
    }

    fn retire(&mut self, kind: Kind, mark: &Mark) {
        match kind {
            Kind::Environment => {
                for execution in self.episodes.retire(mark) {
                    self.stop_task(execution);
                }
            }
            Kind::Agent => {
                for execution in self.agents.retire(mark) {
                    self.stop_loop(execution);
                }
            }
            Kind::PolicyModel => drop(self.calls.retire(&mark.rollout, mark.attempt)),
            Kind::Resources => drop(self.sessions.retire(&mark.rollout, mark.attempt)),
        }
    }

    /// What a machine asks of its driver.
    pub fn effects(&mut self, kind: Kind) {
        for effect in self.machine(kind).take_effects() {
            match effect {
                Effect::Phase(_) | Effect::Timer | Effect::Discarded(_) => {}
                Effect::Closing(id) if kind == Kind::PolicyModel => {
                    self.listed = self.calls.begin_cut(id);
                    self.cut.clear();
                }
                Effect::Over(id) if kind == Kind::PolicyModel => {
                    self.calls.end_cut(id);
                    self.listed.clear();
                }
                Effect::Closing(_) | Effect::Over(_) => {}
                Effect::StartPersist(_) => self.servers.get_mut(&kind).expect("there").writing = true,
                Effect::StopPersist(_) => self.servers.get_mut(&kind).expect("there").writing = false,
                Effect::FreeCapture(_) => self.servers.get_mut(&kind).expect("there").capture = None,
                Effect::DiscardStaged(_) => self.servers.get_mut(&kind).expect("there").staged.clear(),
            }
        }
    }

    /// The write of a capture ends, in one way or the other.
    pub fn write(&mut self, kind: Kind) {
        let fails = self.faults && self.dice.one_in(8);
        let server = self.servers.get_mut(&kind).expect("there");
        let Some((id, records)) = server.capture.as_ref().filter(|_| server.writing) else {
            return;
        };
        let id = *id;
        let result = if fails {
            Err(Refusal::new(Reason::StorageFull, "no space is left"))
        } else {
            self.disk.shards.insert((id, kind), records.clone());
            Ok(Durable {
                manifest: "manifest.json".into(),
                digest: [0; 32],
                bytes: 1,
                records: records.len() as u64,
                took: std::time::Duration::ZERO,
            })
        };
        server.writing = false;
        server.machine.persisted(id, result);
    }

    /// Time passes, and what is due happens everywhere.
    pub fn pass(&mut self, seconds: u64) {
        self.now += std::time::Duration::from_secs(seconds);
        for kind in Kind::ALL {
            let (now, closed) = (self.now, self.machine(kind).phase().is_closed());
            self.machine(kind).tick(now);
            self.tally.lapses += u64::from(closed && self.machine(kind).phase() == Phase::Idle);
            self.effects(kind);
        }
    }
}
