//! The names of things (protocol section 1): rollouts, episodes, executions, operations, instances, checkpoints.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::refusal::{Reason, Refusal};

/// What the controller asks for: one task, one result. 1 to 128 characters, `[A-Za-z0-9][A-Za-z0-9._-]*`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RolloutId(Arc<str>);

impl RolloutId {
    /// The longest rollout id, in characters.
    pub const MAX_LEN: usize = 128;

    /// Checks the rule and takes the id. `INVALID_ID` says which rule is broken.
    pub fn new(id: &str) -> Result<Self, Refusal> {
        let rule = "1 to 128 characters, a letter or digit first, then letters, digits, '.', '_' or '-'";
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if id.is_empty()
            || id.len() > Self::MAX_LEN
            || !id.starts_with(|c: char| c.is_ascii_alphanumeric())
            || !id.chars().all(legal)
        {
            let shown: String = id.chars().take(140).collect();
            return Err(Refusal::new(
                Reason::InvalidId,
                format!("rollout_id {shown:?} is not a rollout id: {rule}"),
            )
            .with("field", "rollout_id"));
        }
        Ok(Self(id.into()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RolloutId {
    type Error = Refusal;
    fn try_from(id: String) -> Result<Self, Refusal> {
        Self::new(&id)
    }
}

impl From<RolloutId> for String {
    fn from(id: RolloutId) -> Self {
        id.0.as_ref().into()
    }
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One physical try of a rollout, from 0.
pub type Attempt = u32;

/// One attempt of one rollout.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Episode {
    /// The rollout.
    pub rollout: RolloutId,
    /// The attempt.
    pub attempt: Attempt,
}

impl Episode {
    /// The pair.
    pub fn new(rollout: RolloutId, attempt: Attempt) -> Self {
        Self { rollout, attempt }
    }
}

impl fmt::Display for Episode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} attempt {}", self.rollout, self.attempt)
    }
}

impl fmt::Debug for Episode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.rollout, self.attempt)
    }
}

macro_rules! uuid_newtype {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub Uuid);

        impl TryFrom<String> for $name {
            type Error = Refusal;
            fn try_from(text: String) -> Result<Self, Refusal> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }

        impl FromStr for $name {
            type Err = Refusal;
            fn from_str(text: &str) -> Result<Self, Refusal> {
                Uuid::parse_str(text).map(Self).map_err(|_| {
                    Refusal::new(
                        Reason::InvalidId,
                        format!(concat!($what, " {:?} is not a UUID"), text),
                    )
                    .with("field", $what)
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_newtype!(
    /// One life of an episode: a UUIDv7 made when the environment admits it, or by the coordinator when it is restored.
    ExecutionId,
    "execution"
);
uuid_newtype!(
    /// One life of a server process: a UUIDv7 made at its start.
    Incarnation,
    "incarnation"
);

/// One model call or one tool call of a rollout, named by its place. Ordered by turn, then index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// The agent's turn, from 0.
    pub turn: u32,
    /// 0 is the turn's model call; 1, 2, ... are the tool calls of its reply.
    pub index: u32,
}

impl Operation {
    /// The first operation of every ledger.
    pub const FIRST: Self = Self { turn: 0, index: 0 };

    /// The model call of a turn.
    pub fn model_call(turn: u32) -> Self {
        Self { turn, index: 0 }
    }

    /// The tool call at `position` (from 0) in the reply of a turn's model call.
    pub fn tool_call(turn: u32, position: u32) -> Self {
        Self {
            turn,
            index: position + 1,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.turn, self.index)
    }
}

/// The four kinds of server that take part in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Runs episodes.
    Environment,
    /// Serves model calls.
    PolicyModel,
    /// Owns the loop.
    Agent,
    /// Owns sessions.
    Resources,
}

impl Kind {
    /// All of them, in the order of prepare.
    pub const ALL: [Self; 4] = [Self::Environment, Self::PolicyModel, Self::Agent, Self::Resources];

    /// As it is written in names, paths and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::PolicyModel => "policy-model",
            Self::Agent => "agent",
            Self::Resources => "resources",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| {
                Refusal::new(
                    Reason::InvalidId,
                    format!("kind {text:?} is none of environment, policy-model, agent, resources"),
                )
                .with("field", "kind")
            })
    }
}

/// One server of the mesh, stable over restarts: `kind/name/replica`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Instance {
    /// What the server does.
    pub kind: Kind,
    /// A mesh can have several servers of a kind.
    pub name: Arc<str>,
    /// From 0.
    pub replica: u32,
}

impl Instance {
    /// Checks the name (the rule of rollout ids) and takes it.
    pub fn new(kind: Kind, name: &str, replica: u32) -> Result<Self, Refusal> {
        RolloutId::new(name).map_err(|_| {
            Refusal::new(
                Reason::InvalidId,
                format!("{name:?} is not a server's name: letters, digits, '.', '_' or '-', a letter or digit first"),
            )
            .with("field", "name")
        })?;
        Ok(Self {
            kind,
            name: name.into(),
            replica,
        })
    }

    /// True when both are replicas of one server.
    pub fn same_server(&self, other: &Self) -> bool {
        self.kind == other.kind && self.name == other.name
    }
}

impl FromStr for Instance {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let wrong = || {
            Refusal::new(
                Reason::InvalidId,
                format!(
                    "instance {text:?} is not of the form kind/name/replica, for example resources/counter/0"
                ),
            )
            .with("field", "instance")
        };
        let mut parts = text.split('/');
        let (Some(kind), Some(name), Some(replica), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        Self::new(kind.parse()?, name, replica.parse().map_err(|_| wrong())?)
    }
}

impl TryFrom<String> for Instance {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        text.parse()
    }
}

impl From<Instance> for String {
    fn from(instance: Instance) -> Self {
        instance.to_string()
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.name, self.replica)
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Names and fences one run of checkpoint or restore. Ordered by epoch, then sequence; written `EEEEEEEE-SSSSSSSS` in
/// decimal, so that names sort as the ids do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CheckpointId {
    /// The coordinator's epoch.
    pub epoch: u64,
    /// From 1 within the epoch.
    pub sequence: u64,
}

impl FromStr for CheckpointId {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        let digits = |part: &str| -> Option<u64> {
            (part.len() >= 8 && part.bytes().all(|b| b.is_ascii_digit()))
                .then(|| part.parse().ok())
                .flatten()
        };
        text.split_once('-')
            .and_then(|(epoch, sequence)| {
                Some(Self {
                    epoch: digits(epoch)?,
                    sequence: digits(sequence)?,
                })
            })
            .filter(|id| id.to_string() == text)
            .ok_or_else(|| {
                Refusal::new(
                    Reason::InvalidId,
                    format!("checkpoint id {text:?} is not of the form EEEEEEEE-SSSSSSSS, for example 00000001-00000003"),
                )
                .with("field", "checkpoint_id")
            })
    }
}

impl TryFrom<String> for CheckpointId {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        text.parse()
    }
}

impl From<CheckpointId> for String {
    fn from(id: CheckpointId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08}-{:08}", self.epoch, self.sequence)
    }
}

impl fmt::Debug for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// BLAKE3, 32 bytes.
pub type Digest = [u8; 32];

/// A digest as lower-case hexadecimal.
pub fn hex(digest: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(digest.len() * 2);
    for byte in digest {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollout_ids_follow_the_rule() {
        for good in ["a", "0", "a.b_c-d", &"x".repeat(128)] {
            assert_eq!(RolloutId::new(good).expect("legal").as_str(), good);
        }
        for bad in ["", ".a", "-a", "_a", "a b", "a/b", "ä", "a\n", &"x".repeat(129)] {
            let refusal = RolloutId::new(bad).expect_err("illegal");
            assert_eq!(refusal.reason, Reason::InvalidId, "{bad:?}");
        }
    }

    #[test]
    fn instances_and_checkpoint_ids_read_back_as_written() {
        for text in [
            "environment/default/0",
            "policy-model/a.b/7",
            "resources/counter/12",
        ] {
            assert_eq!(text.parse::<Instance>().expect("legal").to_string(), text);
        }
        for bad in [
            "",
            "x/y/0",
            "agent/default",
            "agent//0",
            "agent/a/b",
            "agent/a/0/1",
        ] {
            assert!(bad.parse::<Instance>().is_err(), "{bad}");
        }
        for text in ["00000001-00000002", "123456789-00000001"] {
            assert_eq!(text.parse::<CheckpointId>().expect("legal").to_string(), text);
        }
        for bad in [
            "",
            "1-1",
            "00000001",
            "00000001-0000000x",
            "000000001-00000002",
            "../../etc",
        ] {
            assert!(bad.parse::<CheckpointId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn operations_are_ordered_by_place() {
        let mut ops = [
            Operation::model_call(1),
            Operation::tool_call(0, 1),
            Operation::FIRST,
            Operation::tool_call(0, 0),
        ];
        ops.sort();
        assert_eq!(ops.map(|o| (o.turn, o.index)), [(0, 0), (0, 1), (0, 2), (1, 0)]);
    }
}
