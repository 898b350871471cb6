//! The mesh: every process of it, by instance, killed and started again on the addresses that it had.

mod wait;

use std::{collections::BTreeMap, time::Duration};

use belay_core::ids::Instance;
use belay_fake_backend::ctl::CtlClient;
use belay_mesh::{
    channel::{ChannelOptions, Channels, MeshChannel},
    config::{ConfigError, Engine, ResolvedMember, ResolvedMesh},
    server::MAX_MESSAGE,
    tls::Tls,
};
use belay_proto::checkpoint::coordinator_client::CoordinatorClient;
use tokio::{sync::broadcast, task::JoinSet};

use crate::{
    error::{LocalMeshError, Tail},
    process::{Died, Exit, Launch, Process},
    ready::Ready,
    spec::{BACKEND, COORDINATOR, Spec},
};

/// Deaths that a listener may be behind: more than a mesh has processes.
const DEATHS: usize = 1024;
/// How long a process may take to end when it is asked to.
const STOP_BOUND: Duration = Duration::from_secs(10);
/// How often a process is started on the addresses that it had. While it was dead, a connection that somebody tried to make
/// to it, or any other, can have got its port for a moment.
const STARTS: u32 = 5;

/// A mesh of processes on this machine. Dropping it kills them all.
pub struct LocalMesh {
    spec: Spec,
    died: broadcast::Sender<Died>,
    channels: Channels,
    backend: Option<Single>,
    coordinator: Option<Single>,
    servers: BTreeMap<Instance, Server>,
}

struct Server {
    process: Process,
    data: String,
    control: String,
}

struct Single {
    process: Process,
    address: String,
}

impl LocalMesh {
    /// Starts every process: the built-in engine, where the mesh has one; then the servers, all at once; then the coordinator.
    pub async fn up(spec: Spec) -> Result<Self, LocalMeshError> {
        std::fs::create_dir_all(&spec.dir).map_err(|source| LocalMeshError::Write {
            path: spec.dir.clone(),
            source,
        })?;
        let config = |error: ConfigError| LocalMeshError::Config(error.to_string());
        let tls = spec
            .config
            .tls
            .as_ref()
            .map(Tls::load)
            .transpose()
            .map_err(config)?;
        let mut mesh = Self {
            spec: spec.with_absolute_paths()?,
            died: broadcast::channel(DEATHS).0,
            channels: Channels::new(ChannelOptions {
                tls: tls.map(|tls| tls.client),
            }),
            backend: None,
            coordinator: None,
            servers: BTreeMap::new(),
        };
        if mesh.spec.config.engine == Engine::Fake {
            mesh.start_backend().await?;
        }
        mesh.start_servers().await?;
        Ok(mesh)
    }

    /// What it was asked to be.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The end of any process, from now on.
    pub fn deaths(&self) -> broadcast::Receiver<Died> {
        self.died.subscribe()
    }

    /// Starts every server that does not run, and the coordinator after them: on the addresses that they had, or on others where
    /// somebody has taken those meanwhile. The coordinator reads where everybody is when it starts.
    pub async fn start_servers(&mut self) -> Result<(), LocalMeshError> {
        self.spec
            .write_config(self.backend.as_ref().map(|b| b.address.as_str()))?;
        let mut starting = JoinSet::new();
        for instance in self.spec.config.instances() {
            let old = self.servers.get(&instance);
            if old.is_some_and(|server| server.process.exit().is_none()) {
                continue;
            }
            let at = old.map(|server| (server.data.clone(), server.control.clone()));
            let there = at.as_ref().map(|at| self.spec.server(&instance, Some(at)));
            let (anywhere, died) = (self.spec.server(&instance, None), self.died.clone());
            starting.spawn(async move { (instance, start_there_or(there, anywhere, died).await) });
        }
        while let Some(started) = starting.join_next().await {
            let (instance, started) = started.map_err(|error| LocalMeshError::Unknown(error.to_string()))?;
            let (process, ready) = started?;
            let Ready::Server { data, control, .. } = ready else {
                return Err(unexpected(&instance.to_string(), &ready, &process));
            };
            self.servers.insert(
                instance,
                Server {
                    process,
                    data,
                    control,
                },
            );
        }
        self.start_coordinator().await
    }

    /// Starts one server again, on the addresses that it had.
    pub async fn start_server(&mut self, instance: &Instance) -> Result<(), LocalMeshError> {
        let old = self.server(instance)?;
        let at = (old.data.clone(), old.control.clone());
        let launch = self.spec.server(instance, Some(&at));
        let (process, _ready) = start(&launch, self.died.clone(), true).await?;
        let (data, control) = at;
        self.servers.insert(
            instance.clone(),
            Server {
                process,
                data,
                control,
            },
        );
        Ok(())
    }

    /// Starts the coordinator, if it does not run, on the address that it had; and says in `mesh.json` where all are.
    pub async fn start_coordinator(&mut self) -> Result<(), LocalMeshError> {
        if self
            .coordinator
            .as_ref()
            .is_some_and(|c| c.process.exit().is_none())
        {
            return Ok(());
        }
        let at = self.coordinator.as_ref().map(|c| c.address.clone());
        self.write_mesh_file(at.clone().unwrap_or_default())?;
        let there = at.as_deref().map(|at| self.spec.coordinator(Some(at)));
        let anywhere = self.spec.coordinator(None);
        let (process, ready) = start_there_or(there, anywhere, self.died.clone()).await?;
        let Ready::Coordinator {
            coordinator: address, ..
        } = ready
        else {
            return Err(unexpected(COORDINATOR, &ready, &process));
        };
        self.write_mesh_file(address.clone())?;
        self.coordinator = Some(Single { process, address });
        Ok(())
    }

    /// Starts the built-in engine, on the address that it had.
    pub async fn start_backend(&mut self) -> Result<(), LocalMeshError> {
        let at = self.backend.as_ref().map(|b| b.address.clone());
        let launch = self.spec.backend(at.as_deref());
        let (process, ready) = start(&launch, self.died.clone(), at.is_some()).await?;
        let Ready::Backend { backend: address, .. } = ready else {
            return Err(unexpected(BACKEND, &ready, &process));
        };
        self.backend = Some(Single { process, address });
        Ok(())
    }

    fn write_mesh_file(&self, coordinator: String) -> Result<(), LocalMeshError> {
        let members = self.servers.iter().map(|(instance, server)| ResolvedMember {
            instance: instance.clone(),
            data: server.data.clone(),
            control: server.control.clone(),
        });
        let mesh = ResolvedMesh {
            deployment: self.spec.config.deployment.clone(),
            root: self.spec.config.root.clone(),
            coordinator,
            backend: self.backend.as_ref().map(|b| b.address.clone()),
            members: members.collect(),
        };
        mesh.write(&self.spec.mesh_file())
            .map_err(|error| LocalMeshError::Config(error.to_string()))
    }

    /// SIGKILL to every server and the coordinator, then their exits are waited for. The engine lives on. Replies who was
    /// killed.
    pub async fn kill_servers(&self) -> Result<Vec<String>, LocalMeshError> {
        let servers = self
            .servers
            .iter()
            .map(|(instance, server)| (instance.to_string(), &server.process));
        let coordinator = self
            .coordinator
            .iter()
            .map(|c| (COORDINATOR.to_owned(), &c.process));
        let running: Vec<_> = servers
            .chain(coordinator)
            .filter(|(_, process)| process.exit().is_none())
            .collect();
        // All are signalled before the first exit is waited for: a crash takes everything at once.
        for (_, process) in &running {
            process.kill_now()?;
        }
        for (_, process) in &running {
            process.kill().await?;
        }
        Ok(running.into_iter().map(|(label, _)| label).collect())
    }

    /// SIGKILL to one server, and its exit.
    pub async fn kill_server(&self, instance: &Instance) -> Result<Exit, LocalMeshError> {
        self.server(instance)?.process.kill().await
    }

    /// SIGKILL to the coordinator, and its exit.
    pub async fn kill_coordinator(&self) -> Result<Exit, LocalMeshError> {
        self.coordinator_process()?.process.kill().await
    }

    /// The process of a server: to pause and resume it.
    pub fn process(&self, instance: &Instance) -> Result<&Process, LocalMeshError> {
        Ok(&self.server(instance)?.process)
    }

    /// SIGTERM to all, the coordinator first and the engine last; what does not end in time is killed.
    pub async fn stop(&mut self) -> Result<(), LocalMeshError> {
        if let Some(coordinator) = &self.coordinator {
            coordinator.process.stop(STOP_BOUND).await?;
        }
        let stops = self
            .servers
            .values()
            .map(|server| server.process.stop(STOP_BOUND));
        for stopped in futures_util::future::join_all(stops).await {
            stopped?;
        }
        if let Some(backend) = &self.backend {
            backend.process.stop(STOP_BOUND).await?;
        }
        Ok(())
    }

    fn server(&self, instance: &Instance) -> Result<&Server, LocalMeshError> {
        self.servers
            .get(instance)
            .ok_or_else(|| LocalMeshError::Unknown(instance.to_string()))
    }

    fn coordinator_process(&self) -> Result<&Single, LocalMeshError> {
        self.coordinator
            .as_ref()
            .ok_or_else(|| LocalMeshError::Unknown(COORDINATOR.into()))
    }

    /// The servers with their data and control addresses, in order.
    pub fn addresses(&self) -> impl Iterator<Item = (&Instance, &str, &str)> {
        self.servers
            .iter()
            .map(|(instance, server)| (instance, server.data.as_str(), server.control.as_str()))
    }

    /// The coordinator's address.
    pub fn coordinator_address(&self) -> Result<&str, LocalMeshError> {
        Ok(&self.coordinator_process()?.address)
    }

    /// The engine's address, where the mesh started one.
    pub fn backend_address(&self) -> Option<&str> {
        self.backend.as_ref().map(|b| b.address.as_str())
    }

    /// A server's data address.
    pub fn data_address(&self, instance: &Instance) -> Result<&str, LocalMeshError> {
        let found = self.servers.iter().find(|(held, _)| *held == instance);
        found
            .map(|(_, server)| server.data.as_str())
            .ok_or_else(|| LocalMeshError::Unknown(instance.to_string()))
    }

    /// The engine's orders and questions.
    pub fn ctl(&self) -> Result<CtlClient, LocalMeshError> {
        self.backend_address()
            .map(CtlClient::new)
            .ok_or_else(|| LocalMeshError::Unknown(BACKEND.into()))
    }

    /// A client of the coordinator.
    pub fn coordinator(&self) -> Result<CoordinatorClient<MeshChannel>, LocalMeshError> {
        let channel = self.channels.control(self.coordinator_address()?);
        Ok(CoordinatorClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE))
    }

    /// The last lines of every process, for a failure's message.
    pub fn tails(&self) -> Vec<(String, Tail)> {
        let servers = self
            .servers
            .iter()
            .map(|(instance, server)| (instance.to_string(), server.process.tail()));
        let coordinator = self
            .coordinator
            .iter()
            .map(|c| (COORDINATOR.to_owned(), c.process.tail()));
        let backend = self
            .backend
            .iter()
            .map(|b| (BACKEND.to_owned(), b.process.tail()));
        servers.chain(coordinator).chain(backend).collect()
    }
}

/// Starts a process; one that is to have its old addresses is tried again when it ends early.
async fn start(
    launch: &Launch,
    died: broadcast::Sender<Died>,
    again: bool,
) -> Result<(Process, Ready), LocalMeshError> {
    let mut tries = if again { STARTS } else { 1 };
    loop {
        tries -= 1;
        match Process::start(launch, died.clone()).await {
            Err(LocalMeshError::EndedEarly { .. }) if tries > 0 => {}
            started => return started,
        }
    }
}

/// Starts a process where it was, or anywhere when it cannot be there.
async fn start_there_or(
    there: Option<Launch>,
    anywhere: Launch,
    died: broadcast::Sender<Died>,
) -> Result<(Process, Ready), LocalMeshError> {
    if let Some(there) = there {
        match start(&there, died.clone(), true).await {
            Err(LocalMeshError::EndedEarly { .. }) => {}
            started => return started,
        }
    }
    start(&anywhere, died, false).await
}

fn unexpected(label: &str, ready: &Ready, process: &Process) -> LocalMeshError {
    LocalMeshError::NoReadyLine {
        label: label.into(),
        line: format!("{ready:?}"),
        why: "it is another kind of process".into(),
        tail: process.tail(),
    }
}
