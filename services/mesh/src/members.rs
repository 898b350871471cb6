//! Who is in the mesh, and where (protocol 2, placement).

use belay_core::ids::{Instance, Kind, RolloutId};

/// One server and its addresses, `host:port`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Which.
    pub instance: Instance,
    /// Its data port.
    pub data: String,
    /// Its control port.
    pub control: String,
}

/// The member list with its version, as Join brings it. Cheap to clone; all clones see the newest.
#[derive(Clone, Default)]
pub struct Members;

impl Members {
    /// Takes a list if its version is not below the one held.
    pub fn install(&self, _version: u64, _members: Vec<Member>) {
        todo!()
    }

    /// The version held; 0 before the first list.
    pub fn version(&self) -> u64 {
        todo!()
    }

    /// All members, in order.
    pub fn all(&self) -> Vec<Member> {
        todo!()
    }

    /// Where an instance is.
    pub fn find(&self, _instance: &Instance) -> Option<Member> {
        todo!()
    }

    /// The replica of a server that a rollout is placed on at its seed (rendezvous hashing).
    pub fn place(&self, _kind: Kind, _name: &str, _rollout: &RolloutId) -> Option<Instance> {
        todo!()
    }
}
