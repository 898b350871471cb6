//! `mesh.toml`. Every key has a default, so an empty file is the built-in mesh.

use std::path::{Path, PathBuf};

use belay_core::{
    ids::{Instance, Kind},
    parts::{CheckpointMode, VerifyMode},
};
use serde::{Deserialize, Serialize};

use super::{rules, write_whole};
use crate::telemetry::TelemetryOptions;

/// Why a configuration cannot be used: one line that names the file, the place and the rule.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: cannot be read ({source})")]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("{path}: cannot be written ({source})")]
    Write {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// It is not TOML, or a key or value is unknown.
    #[error("{path}: {message}")]
    Parse {
        /// Which.
        path: PathBuf,
        /// Line, column and what is wrong.
        message: String,
    },
    /// A rule is broken.
    #[error("{path}: {rule}")]
    Rule {
        /// Which.
        path: PathBuf,
        /// Which rule, and what to do.
        rule: String,
    },
    /// No mesh is up.
    #[error(
        "no mesh is up: {path} is not there; start one with `belay up`, or name one with --mesh FILE or --coordinator ADDRESS"
    )]
    NoMesh {
        /// The file looked for.
        path: PathBuf,
    },
}

/// A mesh as it is configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeshConfig {
    /// Keeps the checkpoints of several meshes under one root apart.
    pub deployment: String,
    /// The checkpoint root: a directory.
    pub root: PathBuf,
    /// The coordinator's journal: a directory of its own, not shared.
    pub state: PathBuf,
    /// Where the coordinator listens.
    pub coordinator: CoordinatorAt,
    /// What the policy models sample with.
    pub engine: Engine,
    /// The servers.
    #[serde(rename = "server", skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<ServerConfig>,
    /// Bounds.
    pub limits: Limits,
    /// Mutual TLS on every port; plain text where it is unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConfig>,
    /// Logs and spans.
    pub telemetry: TelemetryOptions,
    /// Deliberate faults, for tests.
    pub faults: FaultsConfig,
}

impl Default for MeshConfig {
    fn default() -> Self {
        let server = |kind, name: &str| ServerConfig {
            name: name.into(),
            ..ServerConfig::new(kind)
        };
        Self {
            deployment: "local".into(),
            root: ".belay/checkpoints".into(),
            state: ".belay/state".into(),
            coordinator: CoordinatorAt::default(),
            engine: Engine::default(),
            servers: vec![
                server(Kind::Environment, "default"),
                server(Kind::PolicyModel, "default"),
                server(Kind::Agent, "default"),
                server(Kind::Resources, "counter"),
                server(Kind::Resources, "weather"),
                server(Kind::Resources, "synonyms"),
            ],
            limits: Limits::default(),
            tls: None,
            telemetry: TelemetryOptions::default(),
            faults: FaultsConfig::default(),
        }
    }
}

/// Where the coordinator listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CoordinatorAt {
    /// `host:port`; port 0 takes a free one.
    pub address: String,
}

impl Default for CoordinatorAt {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:0".into(),
        }
    }
}

/// What the policy models sample with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Engine {
    /// The built-in deterministic engine; `belay up` starts it.
    #[default]
    Fake,
    /// An inference worker that stages tokens (gRPC, `proto/belay/worker/v1`).
    StagingWorker {
        /// `host:port`.
        address: String,
        /// The model's name in requests; the task's own where it is unset.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    /// An OpenAI-compatible address.
    Openai {
        /// Up to and with `/v1`.
        base_url: String,
        /// The model's name in requests; the task's own where it is unset.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// The environment variable that holds the key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        api_key_env: Option<String>,
        /// Ask for token ids and logprobs, where the engine gives them.
        #[serde(default = "yes")]
        token_ids: bool,
        /// The weights' version, where it is known from outside.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        weights: Option<String>,
    },
}

fn yes() -> bool {
    true
}

fn is_false(value: &bool) -> bool {
    !value
}

fn one() -> u32 {
    1
}

fn default_name() -> String {
    "default".into()
}

/// One server, with its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// What it does.
    pub kind: Kind,
    /// Its name: for a resources server the name of its environment.
    #[serde(default = "default_name")]
    pub name: String,
    /// How many.
    #[serde(default = "one")]
    pub replicas: u32,
    /// Fixed addresses, one for each replica; free loopback ports where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<ReplicaAddress>,
    /// Resources: the built-in environment; the server's name where it is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builtin: Option<String>,
    /// Whether its part of an episode can be saved: exported or restart_only, at a resources server stateless too and instead of
    /// what the built-in says. restart_only at an environment: its episodes have no boundaries to go on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<CheckpointMode>,
    /// Resources: replay or wait, instead of what the built-in says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verify: Option<VerifyMode>,
    /// Resources: its sessions share state with each other; a soft limit waits for its calls.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared: bool,
    /// Resources: a session that is not called for so many seconds ends. Time for which the mesh is closed or down is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_ttl_seconds: Option<u32>,
    /// Resources: where applied tool calls are reported to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect_log: Option<String>,
    /// Resources: for `workplace`, the directory of the tables that its sessions begin with; its own small set where it is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tables: Option<PathBuf>,
    /// Agent: at most this many model calls in an episode, where the task does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Environment, or an agent that Runs are sent to: at most this many finished results that nobody has acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unacknowledged: Option<u32>,
}

impl ServerConfig {
    /// One replica, named `default`.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            name: default_name(),
            replicas: 1,
            addresses: Vec::new(),
            builtin: None,
            mode: None,
            verify: None,
            shared: false,
            session_ttl_seconds: None,
            effect_log: None,
            tables: None,
            max_steps: None,
            max_unacknowledged: None,
        }
    }
}

/// Where one replica listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaAddress {
    /// The episode API, `host:port`.
    pub data: String,
    /// The control plane, `host:port`.
    pub control: String,
}

/// Bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// A record over this many bytes makes its episode a restart.
    pub record_limit: u64,
    /// Calls that wait at a server's door.
    pub door: usize,
    /// For how many seconds a server tries to reach another one before the episode fails.
    pub patience_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            record_limit: 256 * 1024 * 1024,
            door: 100_000,
            patience_seconds: 60,
        }
    }
}

/// Certificates, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Whose signature counts.
    pub ca: PathBuf,
    /// This process's certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Deliberate faults, for the negative controls of tests. All off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultsConfig {
    /// Resources servers restore a session as it was seeded, without its saved state and replies.
    pub restore_seeds_anew: bool,
    /// A URL that resources servers ask before each tool call and each verify, and whose answer they wait for; `engine`: the
    /// built-in engine's `/_ctl/steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_asks: Option<String>,
    /// A server's disk is full while a path exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_disk: Option<FullDisk>,
}

/// A deliberate fault: writes of one server's checkpoints fail for want of space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullDisk {
    /// The server: `kind/name/replica`.
    pub instance: Instance,
    /// As long as this exists.
    pub while_exists: PathBuf,
}

impl MeshConfig {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
        let config: Self = toml::from_str(&text).map_err(|error| ConfigError::Parse {
            path: path.into(),
            message: one_line(&text, &error),
        })?;
        let config = if config.servers.is_empty() {
            Self {
                servers: Self::default().servers,
                ..config
            }
        } else {
            config
        };
        rules::check(&config).map_err(|rule| ConfigError::Rule {
            path: path.into(),
            rule,
        })?;
        Ok(config)
    }

    /// Writes it, so that each process of a mesh can read it.
    pub fn write(&self, path: &Path) -> Result<(), ConfigError> {
        let text = toml::to_string(self).map_err(|error| ConfigError::Parse {
            path: path.into(),
            message: error.to_string(),
        })?;
        write_whole(path, text.as_bytes())
    }

    /// Every instance, in order.
    pub fn instances(&self) -> Vec<Instance> {
        let replicas = |server: &ServerConfig| {
            let (kind, name) = (server.kind, server.name.clone());
            (0..server.replicas)
                .filter_map(move |replica| Instance::new(kind, &name, replica).ok())
                .collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.servers.iter().flat_map(replicas).collect();
        all.sort();
        all
    }

    /// The configuration of an instance's server.
    pub fn server(&self, instance: &Instance) -> Option<&ServerConfig> {
        self.servers
            .iter()
            .find(|s| s.kind == instance.kind && s.name == *instance.name && instance.replica < s.replicas)
    }
}

/// `line 3: unknown field ...`: toml's own message is a picture of several lines.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    match error.span() {
        Some(span) => {
            let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
            format!("line {line}: {message}")
        }
        None => message,
    }
}
