//! Who is in the mesh, and where (protocol 2, placement).

use std::sync::Arc;

use belay_core::{
    ids::{Instance, Kind, RolloutId},
    placement,
};
use tokio::sync::watch;

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
#[derive(Clone)]
pub struct Members {
    list: Arc<watch::Sender<MemberList>>,
}

#[derive(Clone, Default)]
struct MemberList {
    version: u64,
    members: Arc<Vec<Member>>,
}

impl Default for Members {
    fn default() -> Self {
        Self {
            list: Arc::new(watch::Sender::new(MemberList::default())),
        }
    }
}

impl Members {
    /// Takes a list if its version is not below the one held.
    pub fn install(&self, version: u64, mut members: Vec<Member>) {
        members.sort_by(|a, b| a.instance.cmp(&b.instance));
        self.list.send_if_modified(|held| {
            let newer = version >= held.version && *held.members != members;
            if version >= held.version {
                *held = MemberList {
                    version,
                    members: Arc::new(members),
                };
            }
            newer
        });
    }

    /// The version held; 0 before the first list.
    pub fn version(&self) -> u64 {
        self.list.borrow().version
    }

    /// All members, in order.
    pub fn all(&self) -> Vec<Member> {
        self.list.borrow().members.to_vec()
    }

    /// Where an instance is.
    pub fn find(&self, instance: &Instance) -> Option<Member> {
        self.list
            .borrow()
            .members
            .iter()
            .find(|member| member.instance == *instance)
            .cloned()
    }

    /// The names of a kind's servers, each once.
    pub fn names(&self, kind: Kind) -> Vec<String> {
        let list = self.list.borrow();
        let mut names: Vec<_> = list
            .members
            .iter()
            .filter(|m| m.instance.kind == kind)
            .map(|m| m.instance.name.to_string())
            .collect();
        names.dedup();
        names
    }

    /// The replica of a server that a rollout is placed on at its seed (rendezvous hashing). `None`: no such server.
    pub fn place(&self, kind: Kind, name: &str, rollout: &RolloutId) -> Option<Instance> {
        let list = self.list.borrow();
        let replicas = list
            .members
            .iter()
            .map(|m| &m.instance)
            .filter(|i| i.kind == kind && i.name.as_ref() == name);
        placement::place(rollout, replicas).cloned()
    }

    /// A receiver that sees each new list.
    pub fn changes(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut receiver = self.list.subscribe();
        async move {
            // The sender lives as long as any clone of this value; its end is the end of the process.
            let _ = receiver.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(text: &str, port: u16) -> Member {
        Member {
            instance: text.parse().unwrap(),
            data: format!("127.0.0.1:{port}"),
            control: format!("127.0.0.1:{}", port + 1),
        }
    }

    #[test]
    fn an_older_list_is_ignored() {
        let members = Members::default();
        members.install(
            2,
            vec![member("agent/default/0", 10), member("resources/a/0", 20)],
        );
        members.install(1, vec![]);
        assert_eq!((members.version(), members.all().len()), (2, 2));
        members.install(3, vec![member("resources/a/0", 30)]);
        assert_eq!(
            members.find(&"resources/a/0".parse().unwrap()).unwrap().data,
            "127.0.0.1:30"
        );
        assert_eq!(members.find(&"agent/default/0".parse().unwrap()), None);
        let rollout = RolloutId::new("r").unwrap();
        assert_eq!(
            members.place(Kind::Resources, "a", &rollout).unwrap().to_string(),
            "resources/a/0"
        );
        assert_eq!(members.place(Kind::Resources, "b", &rollout), None);
        assert_eq!(members.names(Kind::Resources), ["a"]);
    }
}
