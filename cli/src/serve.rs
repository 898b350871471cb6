//! `belay serve`: one server of a mesh in this process.

use crate::show::say;
use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use belay_agent::AgentConfig;
use belay_coordinator::CoordinatorConfig;
use belay_core::{
    ids::{Instance, Kind},
    parts::CheckpointMode,
};
use belay_environment::EnvironmentConfig;
use belay_fake_backend::BackendConfig;
use belay_mesh::{
    channel::{ChannelOptions, Channels},
    config::{Engine, MeshConfig, ResolvedMesh, ServerConfig},
    server::{Listeners, bind},
    shutdown::Shutdown,
    telemetry::Telemetry,
    tls::Tls,
};
use belay_participant::ServerCommon;
use belay_policy_model::{EngineConfig, OpenAiConfig, PolicyModelConfig};
use belay_resources::ResourcesConfig;
use belay_store::{fs::RealFs, testing::FailingFs};
use clap::{Args, Subcommand};
use serde_json::json;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

/// Run one server of a mesh in this process.
///
/// It binds, prints one line of JSON with its addresses on standard output, and serves until SIGTERM or Ctrl-C. Its logs
/// go to standard error.
#[derive(Args)]
pub struct ServeArgs {
    #[command(subcommand)]
    server: Server,
}

#[derive(Subcommand)]
enum Server {
    /// Runs episodes.
    Environment(ParticipantArgs),
    /// Owns the loop.
    Agent(ParticipantArgs),
    /// Serves model calls.
    PolicyModel(ParticipantArgs),
    /// Owns an environment's sessions.
    Resources(ParticipantArgs),
    /// Takes checkpoints and restores them.
    Coordinator(CoordinatorArgs),
    /// The built-in deterministic engine.
    FakeBackend(BackendArgs),
}

#[derive(Args)]
struct Common {
    /// mesh.toml; the built-in mesh where it is left out.
    #[arg(long, env = "BELAY_MESH_CONFIG", value_name = "FILE")]
    mesh_config: Option<PathBuf>,
    /// End when standard input ends: for a process whose parent may be killed.
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
}

#[derive(Args)]
struct ParticipantArgs {
    /// The server's name.
    #[arg(long, default_value = "default")]
    name: String,
    /// Which replica of it.
    #[arg(long, default_value_t = 0)]
    replica: u32,
    /// Where the episode API listens; the configured address, else a free loopback port.
    #[arg(long, value_name = "HOST:PORT")]
    data: Option<String>,
    /// Where the control plane listens; the configured address, else a free loopback port.
    #[arg(long, value_name = "HOST:PORT")]
    control: Option<String>,
    /// Serve from the start, without a coordinator: no checkpoints.
    #[arg(long)]
    standalone: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct CoordinatorArgs {
    /// Where it listens.
    #[arg(long, value_name = "HOST:PORT")]
    control: Option<String>,
    /// The file that says where the servers are; else every server needs addresses in mesh.toml.
    #[arg(long, env = "BELAY_MESH", value_name = "FILE")]
    mesh: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct BackendArgs {
    /// Where it listens: gRPC, OpenAI-compatible HTTP and /_ctl.
    #[arg(long, default_value = "127.0.0.1:0", value_name = "HOST:PORT")]
    listen: String,
    /// How long a token takes.
    #[arg(long, value_parser = crate::connect::duration)]
    token_delay: Option<Duration>,
    #[command(flatten)]
    common: Common,
}

/// Runs the command.
pub async fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    match args.server {
        Server::Environment(args) => participant(Kind::Environment, args).await,
        Server::Agent(args) => participant(Kind::Agent, args).await,
        Server::PolicyModel(args) => participant(Kind::PolicyModel, args).await,
        Server::Resources(args) => participant(Kind::Resources, args).await,
        Server::Coordinator(args) => coordinator(args).await,
        Server::FakeBackend(args) => backend(args).await,
    }?;
    Ok(ExitCode::SUCCESS)
}

impl Common {
    fn config(&self) -> anyhow::Result<MeshConfig> {
        Ok(self
            .mesh_config
            .as_deref()
            .map(MeshConfig::read)
            .transpose()?
            .unwrap_or_default())
    }

    /// Cancelled by SIGTERM, by Ctrl-C, and by the end of standard input where that is asked for.
    fn shutdown(&self) -> anyhow::Result<Shutdown> {
        let shutdown = Shutdown::new();
        let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be listened for")?;
        let token = shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            token.cancel();
        });
        if self.exit_with_stdin {
            let token = shutdown.clone();
            // A thread of its own: the runtime would wait for a blocking read at its end.
            std::thread::spawn(move || {
                let ended = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
                tracing::debug!(?ended, "standard input has ended");
                token.cancel();
            });
        }
        Ok(shutdown)
    }
}

/// The one line on standard output: whoever started the process reads it.
fn print_ready(line: &serde_json::Value) {
    say!("{line}");
}

fn address(listener: &TcpListener) -> anyhow::Result<String> {
    Ok(listener
        .local_addr()
        .context("a bound listener has no address")?
        .to_string())
}

fn tls(config: &MeshConfig) -> anyhow::Result<Option<Tls>> {
    Ok(config.tls.as_ref().map(Tls::load).transpose()?)
}

async fn participant(kind: Kind, args: ParticipantArgs) -> anyhow::Result<()> {
    let config = args.common.config()?;
    let instance = Instance::new(kind, &args.name, args.replica)?;
    let Some(server) = config.server(&instance) else {
        let known: Vec<_> = config
            .instances()
            .iter()
            .filter(|i| i.kind == kind)
            .map(ToString::to_string)
            .collect();
        bail!(
            "{instance} is not in the mesh's configuration; there is {}",
            known.join(", ")
        );
    };
    let _telemetry = Telemetry::start(&instance.to_string(), &config.telemetry)?;
    let shutdown = args.common.shutdown()?;
    let fixed = server.addresses.get(args.replica as usize);
    let free = || "127.0.0.1:0".to_owned();
    let data = args
        .data
        .or_else(|| fixed.map(|a| a.data.clone()))
        .unwrap_or_else(free);
    let control = args
        .control
        .or_else(|| fixed.map(|a| a.control.clone()))
        .unwrap_or_else(free);
    let listeners = Listeners::bind(&data, &control).await?;
    let (data, control) = listeners.addresses().context("a bound listener has no address")?;
    print_ready(&json!({
        "instance": instance, "data": data.to_string(), "control": control.to_string(), "pid": std::process::id(),
    }));
    let mut common = ServerCommon::new(instance, &config.root, config.deployment.clone());
    common.record_limit = config.limits.record_limit;
    common.door = config.limits.door;
    common.standalone = args.standalone;
    common.patience = Duration::from_secs(config.limits.patience_seconds);
    common.tls = tls(&config)?;
    if let Some(full) = config
        .faults
        .full_disk
        .as_ref()
        .filter(|full| full.instance == common.instance)
    {
        common.file_system = Arc::new(FailingFs::full_while(RealFs, &full.while_exists));
    }
    match kind {
        Kind::Environment => {
            let mut environment = EnvironmentConfig::new(common);
            if let Some(most) = server.max_unacknowledged {
                environment.max_unacknowledged = most as usize;
            }
            environment.boundaries = server.mode != Some(CheckpointMode::RestartOnly);
            belay_environment::serve(environment, listeners, shutdown).await?;
        }
        Kind::Agent => {
            let mut agent = AgentConfig::new(common);
            if let Some(steps) = server.max_steps {
                agent.max_steps = steps;
            }
            if let Some(most) = server.max_unacknowledged {
                agent.max_unacknowledged = most as usize;
            }
            if let Some(mode) = server.mode {
                agent.mode = mode;
            }
            belay_agent::serve(agent, listeners, shutdown).await?;
        }
        Kind::PolicyModel => {
            let engine = engine(&config.engine)?;
            let patience = common.patience;
            let mut policy_model = PolicyModelConfig::new(common, engine);
            policy_model.engine_patience = patience;
            belay_policy_model::serve(policy_model, listeners, shutdown).await?;
        }
        Kind::Resources => {
            belay_resources::serve(resources(common, server, &config), listeners, shutdown).await?;
        }
    }
    Ok(())
}

fn resources(common: ServerCommon, server: &ServerConfig, config: &MeshConfig) -> ResourcesConfig {
    let builtin = server.builtin.clone().unwrap_or_else(|| server.name.clone());
    let mut resources = ResourcesConfig::new(common, builtin);
    resources.mode = server.mode;
    resources.verify = server.verify;
    resources.shared = server.shared;
    resources.session_ttl = server
        .session_ttl_seconds
        .map(|seconds| Duration::from_secs(seconds.into()));
    resources.effect_log.clone_from(&server.effect_log);
    resources.tables.clone_from(&server.tables);
    resources.restore_seeds_anew = config.faults.restore_seeds_anew;
    resources.work_asks.clone_from(&config.faults.work_asks);
    resources
}

fn engine(engine: &Engine) -> anyhow::Result<EngineConfig> {
    Ok(match engine.clone() {
        Engine::Fake => bail!(
            "[engine] kind = \"fake\" names no address: `belay up` starts the built-in engine and writes its address; to serve a \
             policy model by itself, set kind = \"staging-worker\" or \"openai\""
        ),
        Engine::StagingWorker { address, model } => EngineConfig::StagingWorker { address, model },
        Engine::Openai {
            base_url,
            model,
            api_key_env,
            token_ids,
            weights,
        } => {
            let key = |name: String| {
                std::env::var(&name)
                    .map_err(|_| anyhow!("[engine] api_key_env = {name:?}, but that variable is not set"))
            };
            EngineConfig::OpenAi(OpenAiConfig {
                model,
                api_key: api_key_env.map(key).transpose()?,
                token_ids,
                weights,
                ..OpenAiConfig::new(base_url)
            })
        }
    })
}

async fn coordinator(args: CoordinatorArgs) -> anyhow::Result<()> {
    let config = args.common.config()?;
    let _telemetry = Telemetry::start("coordinator", &config.telemetry)?;
    let shutdown = args.common.shutdown()?;
    let members = match &args.mesh {
        Some(path) => ResolvedMesh::read(path)?
            .members
            .into_iter()
            .map(Into::into)
            .collect(),
        None => configured_members(&config)?,
    };
    let listen = args.control.unwrap_or_else(|| config.coordinator.address.clone());
    let listener = bind("control", &listen).await?;
    print_ready(&json!({"coordinator": address(&listener)?, "pid": std::process::id()}));
    let tls = tls(&config)?;
    let channels = Channels::new(ChannelOptions {
        tls: tls.as_ref().map(|tls| tls.client.clone()),
    });
    let mut coordinator = CoordinatorConfig::new(config.deployment, config.root, config.state, channels);
    coordinator.members = members;
    coordinator.tls = tls.map(|tls| tls.server);
    belay_coordinator::serve(coordinator, listener, shutdown).await?;
    Ok(())
}

/// Where mesh.toml fixes every server's addresses, nobody has to tell.
fn configured_members(config: &MeshConfig) -> anyhow::Result<Vec<belay_mesh::members::Member>> {
    let member = |instance: Instance| {
        let server = config.server(&instance);
        let at = server.and_then(|server| server.addresses.get(instance.replica as usize)).ok_or_else(|| {
            anyhow!("{instance} has no addresses in mesh.toml; give it some, or name the running mesh with --mesh FILE")
        })?;
        Ok(belay_mesh::members::Member {
            data: at.data.clone(),
            control: at.control.clone(),
            instance,
        })
    };
    config.instances().into_iter().map(member).collect()
}

async fn backend(args: BackendArgs) -> anyhow::Result<()> {
    let config = args.common.config()?;
    let _telemetry = Telemetry::start("fake-backend", &config.telemetry)?;
    let shutdown = args.common.shutdown()?;
    let listener = bind("listen", &args.listen).await?;
    print_ready(&json!({"backend": address(&listener)?, "pid": std::process::id()}));
    let backend = BackendConfig {
        token_delay: args.token_delay,
        ..BackendConfig::default()
    };
    belay_fake_backend::serve(backend, listener, shutdown).await?;
    Ok(())
}
