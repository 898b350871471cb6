//! What a mesh of processes is to be.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use belay_core::ids::{Instance, Kind};
use belay_mesh::config::{Engine, MeshConfig};

use crate::{error::LocalMeshError, process::Launch};

/// What a mesh of processes is to be.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The `belay` binary.
    pub program: PathBuf,
    /// Where `mesh.json`, the processes' configuration and their logs go.
    pub dir: PathBuf,
    /// The mesh.
    pub config: MeshConfig,
    /// Added to every process's environment.
    pub env: Vec<(String, String)>,
    /// Added to the built-in engine's arguments.
    pub backend_args: Vec<String>,
    /// How long each process may take to be ready.
    pub ready_bound: Duration,
}

/// The labels of the processes that are no servers of the mesh.
pub(crate) const COORDINATOR: &str = "coordinator";
pub(crate) const BACKEND: &str = "fake-backend";

impl Spec {
    /// A mesh with its files in `dir`; checkpoints and journal go where the configuration says.
    pub fn new(program: impl Into<PathBuf>, dir: impl Into<PathBuf>, config: MeshConfig) -> Self {
        Self {
            program: program.into(),
            dir: dir.into(),
            config,
            env: Vec::new(),
            backend_args: Vec::new(),
            ready_bound: Duration::from_secs(20),
        }
    }

    /// The file that says where the mesh is.
    pub fn mesh_file(&self) -> PathBuf {
        self.dir.join("mesh.json")
    }

    /// The configuration that the processes read.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.dir.join("processes.toml")
    }

    /// With paths that mean the same from any directory: other commands read them in `mesh.json`.
    pub(crate) fn with_absolute_paths(mut self) -> Result<Self, LocalMeshError> {
        let tables = self
            .config
            .servers
            .iter_mut()
            .filter_map(|server| server.tables.as_mut());
        let paths = [&mut self.dir, &mut self.config.root, &mut self.config.state];
        for path in paths.into_iter().chain(tables) {
            *path = absolute(path)?;
        }
        Ok(self)
    }

    /// Writes the configuration for the processes, with the built-in engine's address.
    pub(crate) fn write_config(&self, backend: Option<&str>) -> Result<(), LocalMeshError> {
        let mut config = self.config.clone();
        if let Some(address) = backend {
            config.engine = Engine::StagingWorker {
                address: address.into(),
                model: None,
            };
            if config.faults.work_asks.as_deref() == Some("engine") {
                config.faults.work_asks = Some(format!("http://{address}/_ctl/steps"));
            }
            for server in config.servers.iter_mut().filter(|s| s.kind == Kind::Resources) {
                server
                    .effect_log
                    .get_or_insert_with(|| format!("http://{address}/_ctl/effects"));
            }
        }
        config
            .write(&self.config_file())
            .map_err(|error| LocalMeshError::Config(error.to_string()))
    }

    /// How a server is started; `at` are the addresses that it had before.
    pub(crate) fn server(&self, instance: &Instance, at: Option<&(String, String)>) -> Launch {
        let mut args = vec![
            "serve".into(),
            instance.kind.to_string(),
            "--name".into(),
            instance.name.to_string(),
        ];
        args.extend(["--replica".into(), instance.replica.to_string()]);
        if let Some((data, control)) = at {
            args.extend(["--data".into(), data.clone(), "--control".into(), control.clone()]);
        }
        self.launch(&instance.to_string(), args)
    }

    /// How the coordinator is started.
    pub(crate) fn coordinator(&self, at: Option<&str>) -> Launch {
        let mut args = vec!["serve".into(), COORDINATOR.into()];
        args.extend(["--mesh".into(), self.mesh_file().to_string_lossy().into_owned()]);
        if let Some(control) = at {
            args.extend(["--control".into(), control.into()]);
        }
        self.launch(COORDINATOR, args)
    }

    /// How the built-in engine is started.
    pub(crate) fn backend(&self, at: Option<&str>) -> Launch {
        let mut args = vec!["serve".into(), BACKEND.into()];
        if let Some(listen) = at {
            args.extend(["--listen".into(), listen.into()]);
        }
        args.extend(self.backend_args.clone());
        self.launch(BACKEND, args)
    }

    fn launch(&self, label: &str, mut args: Vec<String>) -> Launch {
        if label != BACKEND {
            args.extend([
                "--mesh-config".into(),
                self.config_file().to_string_lossy().into_owned(),
            ]);
        }
        args.push("--exit-with-stdin".into());
        Launch {
            label: label.into(),
            program: self.program.clone(),
            args,
            env: self.env.clone(),
            log: self
                .dir
                .join("logs")
                .join(format!("{}.log", label.replace('/', "-"))),
            ready_bound: self.ready_bound,
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, LocalMeshError> {
    std::path::absolute(path).map_err(|source| LocalMeshError::Write {
        path: path.into(),
        source,
    })
}
