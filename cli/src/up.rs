//! `belay up`: a mesh on this machine, each server a process.

use crate::show::say;
use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use belay_local_mesh::{LocalMesh, LocalMeshError, Spec};
use belay_mesh::{
    channel::Channels,
    config::{MeshConfig, ResolvedMesh},
};
use belay_proto::checkpoint::{
    CoordinatorRestoreRequest, CoordinatorStatusRequest, OpenRequest, coordinator_client::CoordinatorClient,
    coordinator_restore_response::Event,
};
use clap::Args;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;

use crate::{connect, show};

/// Bring a mesh up on this machine, each server a process. Ctrl-C stops all of it.
#[derive(Args)]
pub struct UpArgs {
    /// What the mesh is made of; the built-in mesh where it is left out.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where `mesh.json` and the logs go.
    #[arg(long, default_value = ".belay", value_name = "DIR")]
    dir: PathBuf,
    /// Restore the newest checkpoint as soon as the servers are there.
    #[arg(long, conflicts_with = "fresh")]
    restore: bool,
    /// Open with nothing, although a checkpoint could be restored.
    #[arg(long)]
    fresh: bool,
    /// How long a token takes at the built-in engine.
    #[arg(long, value_parser = connect::duration, value_name = "TIME")]
    token_delay: Option<Duration>,
    /// Print one JSON object when the mesh is up.
    #[arg(long)]
    json: bool,
}

const JOIN_BOUND: Duration = Duration::from_secs(30);

/// Runs the command.
pub async fn run(args: UpArgs) -> anyhow::Result<ExitCode> {
    let config = args
        .config
        .as_deref()
        .map(MeshConfig::read)
        .transpose()?
        .unwrap_or_default();
    let program = std::env::current_exe().context("the path of this program is not known")?;
    let mut spec = Spec::new(program, &args.dir, config);
    if let Some(delay) = args.token_delay {
        spec.backend_args = vec!["--token-delay".into(), format!("{}us", delay.as_micros())];
    }
    refuse_a_second_mesh(&spec).await?;
    let mesh_file = spec.mesh_file();
    let mut mesh = LocalMesh::up(spec).await.map_err(in_one_line)?;
    let mut deaths = mesh.deaths();
    let status = mesh.wait_joined(JOIN_BOUND).await?;
    let waits = if status.waits_for_restore {
        decide(&args, &mesh).await?
    } else {
        false
    };
    announce(&args, &mesh, waits)?;
    loop {
        tokio::select! {
            stop = tokio::signal::ctrl_c() => {
                stop.context("Ctrl-C cannot be listened for")?;
                break;
            }
            died = deaths.recv() => match died {
                Ok(died) if !died.expected => eprintln!(
                    "{} (pid {}) died: {}; the others go on, and `belay status` says what is missing{}",
                    died.label, died.pid, died.exit, died.tail
                ),
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            }
        }
    }
    eprintln!("stopping; once more Ctrl-C ends it at once");
    tokio::select! {
        stopped = mesh.stop() => stopped?,
        _ = tokio::signal::ctrl_c() => drop(mesh),
    }
    // A file that says where a mesh was would send the next command to nobody.
    let _ = std::fs::remove_file(mesh_file);
    Ok(ExitCode::SUCCESS)
}

/// Two meshes on one journal and one `mesh.json` would take each other's place.
async fn refuse_a_second_mesh(spec: &Spec) -> anyhow::Result<()> {
    let Ok(mesh) = ResolvedMesh::read(&spec.mesh_file()) else {
        return Ok(());
    };
    let mut coordinator = CoordinatorClient::new(Channels::default().control(&mesh.coordinator));
    let answer = coordinator.status(CoordinatorStatusRequest {});
    if let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(2), answer).await {
        bail!(
            "a mesh is up already: {} says that its coordinator is at {}, and it answers; stop that one, or choose another --dir \
             (and in mesh.toml another root and state)",
            spec.mesh_file().display(),
            mesh.coordinator
        );
    }
    Ok(())
}

/// What the operator said about a mesh that could go on from a checkpoint. True: nothing was said, it waits.
async fn decide(args: &UpArgs, mesh: &LocalMesh) -> anyhow::Result<bool> {
    let refused = |status: tonic::Status| match belay_mesh::status::from_status(&status) {
        Some(refusal) => anyhow!("{refusal}"),
        None => anyhow!(
            "the coordinator did not answer: {}",
            belay_mesh::status::describe(&status)
        ),
    };
    let mut coordinator = mesh.coordinator()?;
    if args.fresh {
        coordinator.open(OpenRequest {}).await.map_err(refused)?;
        return Ok(false);
    }
    if !args.restore {
        return Ok(true);
    }
    let mut events = coordinator
        .restore(CoordinatorRestoreRequest::default())
        .await
        .map_err(refused)?
        .into_inner();
    while let Some(message) = events.message().await.map_err(refused)? {
        match message.event {
            Some(Event::Restored(restored)) => {
                eprintln!(
                    "checkpoint {} is restored: {} wait for their next Run",
                    restored.source,
                    show::count(restored.episodes, "episode")
                );
                return Ok(false);
            }
            Some(Event::Abandoned(abandoned)) => bail!(
                "nothing was restored: {}: {}",
                abandoned.reason,
                abandoned.message
            ),
            _ => {}
        }
    }
    bail!("the coordinator went away during the restore; `belay status` says how it stands")
}

fn announce(args: &UpArgs, mesh: &LocalMesh, waits: bool) -> anyhow::Result<()> {
    if args.json {
        let servers: Vec<_> = mesh
            .addresses()
            .map(|(instance, data, control)| json!({"instance": instance, "data": data, "control": control}))
            .collect();
        say!(
            "{}",
            json!({
                "coordinator": mesh.coordinator_address()?, "backend": mesh.backend_address(), "servers": servers,
                "mesh_file": mesh.spec().mesh_file(), "waits_for_restore": waits,
            })
        );
        return Ok(());
    }
    let mut table = show::table(["server", "data", "control"]);
    table.add_row(["coordinator", "", mesh.coordinator_address()?]);
    for (instance, data, control) in mesh.addresses() {
        table.add_row([&instance.to_string(), data, control]);
    }
    if let Some(backend) = mesh.backend_address() {
        table.add_row(["engine (built-in)", backend, ""]);
    }
    say!("{}\n", table.trim_fmt());
    say!(
        "checkpoints {}, logs {}",
        mesh.spec().config.root.display(),
        mesh.spec().dir.join("logs").display()
    );
    if waits {
        say!(
            "the mesh waits: `belay restore` goes on from the newest checkpoint, `belay open` starts with nothing"
        );
    } else {
        say!(
            "the mesh is open: `belay rollout --tasks FILE --out FILE` runs tasks, `belay status` looks, Ctrl-C stops"
        );
    }
    Ok(())
}

/// A process that could not start has said why in its last line; that line is the message.
fn in_one_line(error: LocalMeshError) -> anyhow::Error {
    if let LocalMeshError::EndedEarly { label, tail, .. } = &error
        && let Some(why) = tail.lines.last().and_then(|line| line.strip_prefix("belay: "))
    {
        return anyhow!("{label} could not start: {why}");
    }
    error.into()
}
