//! The mesh as one value: the real machines and tables of four servers, a disk, a controller, and the truth to hold them
//! against.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use belay_core::{
    agent,
    calls::{CallKey, Calls, CapturedEpisode},
    episode::{Boundary, Episodes, SavedEpisode, Work},
    ids::{CheckpointId, Episode, ExecutionId, Incarnation, Instance, Kind, Operation, RolloutId},
    invariants::{Invariant, Violation},
    participant::{Machine, MachineOptions, PermitId},
    parts::PlannedEpisode,
    refusal::Refusal,
    sessions::{SessionView, Sessions},
};
use uuid::Uuid;

use crate::{Mutation, coordinator::Coordinator, dice::Dice};

/// The state of a resources session: the tool calls that were applied, in order.
pub type Applied = Arc<Vec<Operation>>;
pub type Checked<T = ()> = Result<T, Violation>;

pub const GRACE: Duration = Duration::from_secs(60);

pub fn broken<T>(invariant: Invariant, what: impl Into<String>) -> Checked<T> {
    Err(Violation {
        invariant,
        what: what.into(),
    })
}

pub fn instance(kind: Kind) -> Instance {
    Instance::new(kind, "x", 0).expect("a legal name")
}

/// One record of a shard.
#[derive(Clone)]
pub enum Record {
    Environment(SavedEpisode),
    Model(CapturedEpisode, Log),
    Agent(Arc<agent::Session>),
    Resources(SessionView<Applied>),
}

/// What became of the sampling of an operation, in the history that its life goes on from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sampled {
    Running,
    /// A prefix is in the checkpoint.
    Cut,
    /// As this sampling, of all.
    Done(u64),
}

pub type Log = BTreeMap<Operation, Sampled>;

pub struct Server {
    pub machine: Machine,
    /// The capture that is held, and whether it is being written.
    pub capture: Option<(CheckpointId, Vec<(Episode, Record)>)>,
    pub writing: bool,
    pub staged: Vec<(PlannedEpisode, Record)>,
    /// When the last call of the open run was accepted.
    pub heard: Duration,
}

/// The run of an episode at its environment.
pub struct Task {
    pub episode: Episode,
    pub work: Arc<Work>,
    pub boundary: Boundary,
    pub permit: Option<PermitId>,
}

/// The loop of a session at its agent.
pub struct Loop {
    pub episode: Episode,
    pub session: Arc<agent::Session>,
    /// Counted work while a tool call is made.
    pub permit: Option<PermitId>,
    pub tool: Option<RunningTool>,
}

/// A tool call that a resources server works on.
pub struct RunningTool {
    pub permit: PermitId,
    pub at: Incarnation,
    pub state: Applied,
}

#[derive(Default)]
pub struct Disk {
    pub shards: BTreeMap<(CheckpointId, Kind), Vec<(Episode, Record)>>,
    pub published: BTreeMap<CheckpointId, Published>,
    pub tombstones: BTreeSet<CheckpointId>,
    /// Abandoned, answered by all, and cleared away.
    pub swept: BTreeSet<CheckpointId>,
}

#[derive(Clone)]
pub struct Published {
    pub episodes: Vec<belay_core::coordinator::plan::Saved>,
}

/// What the controller knows of a rollout.
#[derive(Clone, Default, Debug)]
pub struct Asked {
    pub attempt: u32,
    pub result: Option<Episode>,
    pub acknowledged: bool,
    pub forgotten: bool,
}

#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    pub checkpoints: u64,
    pub abandoned: u64,
    pub restores: u64,
    pub results: u64,
    pub claimed: u64,
    pub kept: u64,
    pub continued: u64,
    pub crashes: u64,
    pub lapses: u64,
    pub retires: u64,
    pub forgets: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.checkpoints += other.checkpoints;
        self.abandoned += other.abandoned;
        self.restores += other.restores;
        self.results += other.results;
        self.claimed += other.claimed;
        self.kept += other.kept;
        self.continued += other.continued;
        self.crashes += other.crashes;
        self.lapses += other.lapses;
        self.retires += other.retires;
        self.forgets += other.forgets;
    }

    /// A test in which nothing happened shows nothing.
    pub fn has_seen_enough(&self, histories: u64) {
        let each = [
            self.checkpoints,
            self.abandoned,
            self.restores,
            self.claimed,
            self.retires,
        ];
        assert!(
            each.iter().all(|n| *n >= histories),
            "fewer than one a history: {self:?}"
        );
        let some = [self.lapses * 4, self.forgets * 20, self.continued * 50];
        assert!(some.iter().all(|n| *n >= histories), "too few: {self:?}");
    }
}

pub struct World {
    pub dice: Dice,
    pub mutation: Option<Mutation>,
    pub now: Duration,
    pub faults: bool,
    pub servers: BTreeMap<Kind, Server>,
    pub episodes: Episodes,
    pub calls: Calls,
    pub agents: agent::Sessions,
    pub sessions: Sessions<Applied>,
    pub tasks: BTreeMap<ExecutionId, Task>,
    pub loops: BTreeMap<ExecutionId, Loop>,
    /// What an Invoke came to that did not go well.
    pub broken_loops: BTreeMap<ExecutionId, Refusal>,
    pub engine: Vec<CallKey>,
    pub listed: Vec<CallKey>,
    pub cut: BTreeSet<CallKey>,
    pub disk: Disk,
    pub coordinator: Coordinator,
    pub rollouts: BTreeMap<RolloutId, Asked>,
    // The truth.
    pub logs: BTreeMap<ExecutionId, Log>,
    /// How many crashes there had been when a life began.
    pub born: BTreeMap<ExecutionId, u64>,
    /// Admitted by the environment that runs now, and not forgotten.
    pub admitted: BTreeSet<Episode>,
    pub admitted_at_capture: BTreeSet<Episode>,
    /// Retired everywhere.
    pub retired: BTreeMap<RolloutId, u32>,
    /// Every attempt that a restore has handed out.
    pub handed_out: BTreeSet<Episode>,
    pub tally: Tally,
    ids: u128,
    pub samplings: u64,
}

impl World {
    pub fn new(seed: u64, rollouts: usize, mutation: Option<Mutation>) -> Self {
        let mut world = Self {
            dice: Dice(seed),
            mutation,
            now: Duration::from_secs(1),
            faults: true,
            servers: BTreeMap::new(),
            episodes: Episodes::new(instance(Kind::Environment), 100),
            calls: Calls::default(),
            agents: agent::Sessions::new(instance(Kind::Agent)),
            sessions: Sessions::new(instance(Kind::Resources)),
            tasks: BTreeMap::new(),
            loops: BTreeMap::new(),
            broken_loops: BTreeMap::new(),
            engine: Vec::new(),
            listed: Vec::new(),
            cut: BTreeSet::new(),
            disk: Disk::default(),
            coordinator: Coordinator::default(),
            rollouts: (0..rollouts)
                .map(|n| (RolloutId::new(&format!("r{n}")).expect("legal"), Asked::default()))
                .collect(),
            logs: BTreeMap::new(),
            born: BTreeMap::new(),
            admitted: BTreeSet::new(),
            admitted_at_capture: BTreeSet::new(),
            retired: BTreeMap::new(),
            handed_out: BTreeSet::new(),
            tally: Tally::default(),
            ids: 0,
            samplings: 0,
        };
        for kind in Kind::ALL {
            world.start(kind);
        }
        world
    }

    pub fn fresh(&mut self) -> Uuid {
        self.ids += 1;
        Uuid::from_u128(self.ids)
    }

    /// A process begins, with nothing.
    fn start(&mut self, kind: Kind) {
        let machine = Machine::new(MachineOptions {
            instance: instance(kind),
            incarnation: Incarnation(self.fresh()),
            standalone: false,
            door: 100,
            record_limit: u64::MAX,
            shares_state: false,
        });
        let server = Server {
            machine,
            capture: None,
            writing: false,
            staged: Vec::new(),
            heard: self.now,
        };
        self.servers.insert(kind, server);
    }

    /// A process dies, and comes back as another one.
    pub fn crash(&mut self, kind: Kind) {
        self.tally.crashes += 1;
        // A machine's clock begins with its process; here all share one, which only makes open time longer.
        self.start(kind);
        match kind {
            Kind::Environment => {
                self.episodes = Episodes::new(instance(kind), 100);
                self.tasks.clear();
                self.admitted.clear();
            }
            Kind::PolicyModel => {
                self.calls = Calls::default();
                self.engine.clear();
                // What it had sampled is not in the history that goes on.
                self.logs.clear();
            }
            Kind::Agent => {
                self.agents = agent::Sessions::new(instance(kind));
                self.loops.clear();
                self.broken_loops.clear();
            }
            Kind::Resources => self.sessions = Sessions::new(instance(kind)),
        }
    }

    pub fn machine(&mut self, kind: Kind) -> &mut Machine {
        &mut self.servers.get_mut(&kind).expect("all kinds are there").machine
    }

    pub fn release(&mut self, kind: Kind, permit: PermitId) {
        let now = self.now;
        self.machine(kind).release(now, permit);
    }

    /// The run of an episode at its environment ends here, wherever it is.
    pub fn stop_task(&mut self, execution: ExecutionId) {
        if let Some(task) = self.tasks.remove(&execution) {
            if let Some(permit) = task.permit {
                self.release(Kind::Environment, permit);
            }
            self.episodes.ended(&task.episode, execution);
        }
    }

    /// The loop of a session ends; a tool call that it made goes on without it, to no avail.
    pub fn stop_loop(&mut self, execution: ExecutionId) {
        let Some(ended) = self.loops.remove(&execution) else {
            return;
        };
        if let Some(permit) = ended.permit {
            self.release(Kind::Agent, permit);
        }
        if let Some(tool) = ended.tool
            && tool.at == self.machine(Kind::Resources).incarnation()
        {
            if let agent::Next::CallTool { operation, .. } = ended.session.next() {
                self.sessions.abort(&ended.episode, execution, operation);
            }
            self.release(Kind::Resources, tool.permit);
        }
        self.agents.ended(&ended.episode, execution);
    }
}
