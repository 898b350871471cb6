//! The members of the mesh, and what each was last seen to be.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use belay_core::{
    coordinator::opening::Seen,
    ids::{Incarnation, Instance, RolloutId},
    refusal::{Reason, Refusal},
};
use belay_mesh::wire::ToWire as _;
use belay_mesh::{
    channel::Channels,
    members::{Member, Members},
};
use belay_proto::checkpoint as pb;
use futures_util::future::join_all;

use crate::{
    peer::{self, Peer},
    superseded::Superseded,
};

/// What a member was last seen to be.
#[derive(Clone, Debug)]
pub enum View {
    /// It answered.
    Here {
        /// As which process.
        incarnation: Incarnation,
        /// What it said.
        status: Arc<pb::StatusResponse>,
    },
    /// It did not.
    Silent(Refusal),
}

/// The mesh. Cheap to clone.
#[derive(Clone)]
pub struct Mesh(Arc<Inner>);

struct Inner {
    channels: Channels,
    epoch: u64,
    superseded: Superseded,
    roster: Mutex<Roster>,
    views: Mutex<BTreeMap<Instance, View>>,
}

struct Roster {
    version: u64,
    members: Vec<Member>,
    placement: Members,
}

impl Roster {
    fn new(version: u64, mut members: Vec<Member>) -> Self {
        members.sort_by(|a, b| a.instance.cmp(&b.instance));
        let placement = Members::default();
        placement.install(version, members.clone());
        Self {
            version,
            members,
            placement,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mesh {
    /// These members, called under this epoch.
    pub fn new(
        channels: Channels,
        epoch: u64,
        superseded: Superseded,
        version: u64,
        members: Vec<Member>,
    ) -> Self {
        Self(Arc::new(Inner {
            channels,
            epoch,
            superseded,
            roster: Mutex::new(Roster::new(version, members)),
            views: Mutex::default(),
        }))
    }

    /// All members, in order.
    pub fn members(&self) -> Vec<Member> {
        locked(&self.0.roster).members.clone()
    }

    /// All instances, in order.
    pub fn instances(&self) -> Vec<Instance> {
        locked(&self.0.roster)
            .members
            .iter()
            .map(|m| m.instance.clone())
            .collect()
    }

    /// The list that Join brings.
    pub fn member_list(&self) -> pb::MemberList {
        let roster = locked(&self.0.roster);
        pb::MemberList {
            version: roster.version,
            members: roster.members.iter().map(|m| m.to_wire()).collect(),
        }
    }

    /// Version of the member list.
    pub fn version(&self) -> u64 {
        locked(&self.0.roster).version
    }

    /// Takes an instance out; the list's version is given.
    pub fn remove(&self, instance: &Instance, version: u64) {
        let mut roster = locked(&self.0.roster);
        let members = roster
            .members
            .iter()
            .filter(|m| m.instance != *instance)
            .cloned()
            .collect();
        *roster = Roster::new(version, members);
        drop(roster);
        locked(&self.0.views).remove(instance);
    }

    /// The replica of the same server that a rollout belongs to now.
    pub fn place(&self, server: &Instance, rollout: &RolloutId) -> Option<Instance> {
        locked(&self.0.roster)
            .placement
            .place(server.kind, &server.name, rollout)
    }

    /// Asks every member for its status at once, for at most `bound`, and remembers the answers.
    pub async fn refresh(&self, max_blockers: u32, bound: Duration) -> BTreeMap<Instance, View> {
        let seen = join_all(self.members().into_iter().map(|member| async move {
            let client = peer::client(self.0.channels.control(&member.control));
            let view = match peer::status(&member.instance, client, max_blockers, bound).await {
                Ok(status) => read(&member.instance, status),
                Err(refusal) => View::Silent(refusal),
            };
            (member.instance, view)
        }))
        .await;
        let members = self.instances();
        let mut views = locked(&self.0.views);
        *views = seen
            .into_iter()
            .filter(|(instance, _)| members.contains(instance))
            .collect();
        views.clone()
    }

    /// What the members were last seen to be.
    pub fn views(&self) -> BTreeMap<Instance, View> {
        locked(&self.0.views).clone()
    }

    /// The processes that answered, as these views have them.
    pub fn processes(&self, views: &BTreeMap<Instance, View>) -> BTreeMap<Instance, Peer> {
        views
            .iter()
            .filter_map(|(instance, view)| match view {
                View::Here { incarnation, .. } => {
                    Some((instance.clone(), self.process(instance, *incarnation)?))
                }
                View::Silent(_) => None,
            })
            .collect()
    }

    /// The process that was last seen; `None` when it was silent.
    pub fn peer(&self, instance: &Instance) -> Option<Peer> {
        let View::Here { incarnation, .. } = locked(&self.0.views).get(instance)?.clone() else {
            return None;
        };
        self.process(instance, incarnation)
    }

    /// A given process of a member.
    pub fn process(&self, instance: &Instance, incarnation: Incarnation) -> Option<Peer> {
        let member = locked(&self.0.roster)
            .members
            .iter()
            .find(|m| m.instance == *instance)?
            .clone();
        let client = peer::client(self.0.channels.control(&member.control));
        let superseded = self.0.superseded.clone();
        Some(Peer::new(
            member.instance,
            incarnation,
            self.0.epoch,
            client,
            superseded,
        ))
    }
}

/// A status that is what it should be: a server that answers under another's name is as good as silent.
fn read(instance: &Instance, status: pb::StatusResponse) -> View {
    let who = belay_mesh::wire::instance(status.instance.clone());
    match (who, status.incarnation.parse::<Incarnation>()) {
        (Ok(who), Ok(incarnation)) if who == *instance => View::Here {
            incarnation,
            status: Arc::new(status),
        },
        (Ok(who), Ok(_)) => View::Silent(
            Refusal::new(
                Reason::PeerUnreachable,
                format!("at the address of {instance} answers {who}: correct the addresses in mesh.toml"),
            )
            .instance(instance),
        ),
        (Err(refusal), _) | (_, Err(refusal)) => View::Silent(refusal),
    }
}

/// The views as the rule of opening sees them.
pub fn seen(views: &BTreeMap<Instance, View>) -> BTreeMap<Instance, Seen> {
    views
        .iter()
        .map(|(instance, view)| {
            let seen = match view {
                View::Here { incarnation, .. } => Seen::Alive(*incarnation),
                View::Silent(_) => Seen::Silent,
            };
            (instance.clone(), seen)
        })
        .collect()
}
