//! A machine with its clock and its coordinator's fence, and short words for what tests say.

use std::time::Duration;

use belay_core::{
    ids::{CheckpointId, Episode, ExecutionId, Incarnation, Instance, RolloutId},
    participant::{
        Admit, Captured, Commit, CommitReport, CommitTurn, Decision, Durable, Effect, Fence, Join, Machine,
        MachineOptions, MarkList, Outcome, PermitId, Phase, Prepare, PrepareProgress, PrepareReport, Restore,
        RestoreReport, ResumeTurn, Resumed, Settle, SettleTurn,
    },
    parts::{Cursor, Mark, PartSummary, PlannedEpisode, Restart},
    refusal::{Reason, Refusal},
};
use uuid::Uuid;

pub const GRACE: Duration = Duration::from_secs(60);
pub const LIMIT: u64 = 1000;

pub fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub fn id(sequence: u64) -> CheckpointId {
    CheckpointId { epoch: 1, sequence }
}

pub fn rollout(name: &str) -> RolloutId {
    RolloutId::new(name).unwrap()
}

pub fn episode(name: &str, attempt: u32) -> Episode {
    Episode::new(rollout(name), attempt)
}

pub fn mark(name: &str, attempt: u32) -> Mark {
    Mark {
        rollout: rollout(name),
        attempt,
    }
}

pub fn marks(version: u64, marks: &[Mark]) -> MarkList {
    MarkList {
        version,
        marks: marks.to_vec(),
    }
}

pub fn instance() -> Instance {
    "resources/counter/0".parse().unwrap()
}

pub fn restart(name: &str) -> Restart {
    Restart {
        episode: episode(name, 0),
        instance: "agent/default/0".parse().unwrap(),
        reason: "cannot be saved".into(),
    }
}

pub fn part(name: &str) -> PartSummary {
    PartSummary {
        episode: episode(name, 0),
        execution: ExecutionId(Uuid::nil()),
        root: false,
        cursor: Cursor::default(),
        needs: Vec::new(),
        ledger: None,
        revision: 0,
        boundary: String::new(),
        task: None,
        finished: false,
    }
}

pub fn durable() -> Durable {
    Durable {
        manifest: "resources/counter/0/manifest.json".into(),
        digest: [7; 32],
        bytes: 10,
        records: 1,
        took: s(1),
    }
}

pub fn prepare(id: CheckpointId) -> Prepare {
    Prepare {
        id,
        grace: GRACE,
        soft_limit: None,
        restarts: Vec::new(),
    }
}

pub fn commit(id: CheckpointId, names: &[&str]) -> Commit {
    Commit {
        id,
        scope: names.iter().map(|name| episode(name, 0)).collect(),
    }
}

pub fn settle(id: CheckpointId, outcome: Outcome) -> Settle {
    Settle {
        id,
        outcome,
        drop: MarkList::default(),
    }
}

pub fn restore(id: CheckpointId, names: &[(&str, u32)]) -> Restore {
    let planned = |(name, attempt): &(&str, u32)| PlannedEpisode {
        saved: episode(name, 0),
        attempt: *attempt,
        execution: ExecutionId(Uuid::nil()),
        placement: vec![instance()],
    };
    Restore {
        id,
        source: CheckpointId {
            epoch: 0,
            sequence: 1,
        },
        marks: MarkList::default(),
        plan: names.iter().map(planned).collect(),
        shards: Vec::new(),
    }
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T, Refusal>, reason: Reason) -> Refusal {
    let refusal = result.expect_err("must be refused");
    assert_eq!(refusal.reason, reason, "{refusal}");
    assert!(!refusal.message.contains('\n'), "one line: {refusal}");
    refusal
}

#[derive(Clone)]
pub struct Rig {
    pub machine: Machine,
    pub now: Duration,
    pub fence: Fence,
}

impl Rig {
    pub fn joining() -> Self {
        let incarnation = Incarnation(Uuid::from_u128(1));
        Self {
            machine: Machine::new(MachineOptions {
                instance: instance(),
                incarnation,
                standalone: false,
                door: 2,
                record_limit: LIMIT,
                shares_state: false,
            }),
            now: s(1),
            fence: Fence {
                epoch: 1,
                incarnation,
            },
        }
    }

    pub fn idle() -> Self {
        let mut rig = Self::joining();
        rig.join(true, MarkList::default()).unwrap();
        rig.effects();
        rig
    }

    pub fn prepared(id: CheckpointId) -> Self {
        let mut rig = Self::idle();
        rig.prepare(&prepare(id)).unwrap();
        rig.report(id, &[]);
        rig.effects();
        rig
    }

    pub fn committed(id: CheckpointId) -> Self {
        let mut rig = Self::prepared(id);
        rig.commit(&commit(id, &["a"])).unwrap();
        rig.effects();
        rig
    }

    pub fn unsettled(id: CheckpointId) -> Self {
        let mut rig = Self::committed(id);
        rig.machine.persisted(id, Ok(durable()));
        rig.keep(id).unwrap();
        rig.effects();
        rig
    }

    pub fn effects(&mut self) -> Vec<Effect> {
        self.machine.take_effects()
    }

    pub fn phase(&self) -> Phase {
        self.machine.phase()
    }

    pub fn work(&mut self, name: &str) -> PermitId {
        let admit = self.machine.admit(self.now, &episode(name, 0), "tool".into());
        match admit.unwrap() {
            Admit::Admitted(permit) => permit,
            Admit::Closed => panic!("closed in {}", self.phase()),
        }
    }

    pub fn release(&mut self, permit: PermitId) {
        self.machine.release(self.now, permit);
    }

    pub fn join(&mut self, open: bool, marks: MarkList) -> Result<Phase, Refusal> {
        self.machine.join(self.now, &self.fence, &Join { marks, open })
    }

    pub fn prepare(&mut self, call: &Prepare) -> Result<bool, Refusal> {
        self.machine.prepare(self.now, &self.fence, call)
    }

    pub fn report(&mut self, id: CheckpointId, found: &[Restart]) {
        self.machine
            .report(self.now, id, found.to_vec(), vec![episode("root", 0)]);
    }

    pub fn reported(&self, id: CheckpointId) -> PrepareReport {
        match self.machine.prepare_progress(self.now, id, 10).unwrap() {
            PrepareProgress::Reported(report) => report,
            other => panic!("not reported: {other:?}"),
        }
    }

    pub fn blockers(&self, id: CheckpointId) -> u64 {
        match self.machine.prepare_progress(self.now, id, 10).unwrap() {
            PrepareProgress::Waiting(waiting) => waiting.count,
            _ => 0,
        }
    }

    /// As a driver does it: with an owner that holds one part of ten bytes.
    pub fn commit(&mut self, call: &Commit) -> Result<CommitReport, Refusal> {
        self.commit_with(call, vec![(part("a"), 10)])
    }

    pub fn commit_with(
        &mut self,
        call: &Commit,
        parts: Vec<(PartSummary, u64)>,
    ) -> Result<CommitReport, Refusal> {
        match self.machine.commit(self.now, &self.fence, call)? {
            CommitTurn::Recorded(report) => Ok(report),
            CommitTurn::Capture { .. } => {
                let captured = Captured {
                    parts,
                    ..Captured::default()
                };
                self.machine.captured(self.now, call, captured)
            }
        }
    }

    pub fn keep(&mut self, id: CheckpointId) -> Result<Resumed, Refusal> {
        let turn = self.machine.resume(self.now, &self.fence, id, Decision::Keep)?;
        match turn {
            ResumeTurn::Done(resumed) => Ok(resumed),
            ResumeTurn::Activate { .. } => self.machine.activated(self.now, id, 1),
        }
    }

    pub fn abandon(&mut self, id: CheckpointId) -> Result<Resumed, Refusal> {
        let turn = self
            .machine
            .resume(self.now, &self.fence, id, Decision::Abandon)?;
        match turn {
            ResumeTurn::Done(resumed) => Ok(resumed),
            ResumeTurn::Activate { .. } => panic!("ABANDON makes nothing live"),
        }
    }

    pub fn settle(&mut self, call: &Settle) -> Result<u64, Refusal> {
        match self.machine.settle(self.now, &self.fence, call)? {
            SettleTurn::Done(dropped) => Ok(dropped),
            SettleTurn::Drop => {
                let dropped = call.drop.marks.len() as u64;
                self.machine.settled(call, dropped);
                Ok(dropped)
            }
        }
    }

    pub fn staged(&mut self, id: CheckpointId) -> Option<RestoreReport> {
        let report = RestoreReport {
            staged: 1,
            ..RestoreReport::default()
        };
        self.machine.staged(self.now, id, report)
    }
}
