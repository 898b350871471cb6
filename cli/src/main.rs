//! `belay`: the whole of Belay in one binary.

mod commands;
mod connect;
mod demo;
mod rollout;
mod serve;
mod show;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checkpoints for language-model rollouts in flight.
#[derive(Parser)]
#[command(name = "belay", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The whole story on this machine: rollouts in flight, a checkpoint, every server killed, a restore, all finish.
    Demo(demo::DemoArgs),
    /// Bring a mesh up on this machine, each server a process.
    Up(up::UpArgs),
    /// Run a task file against a mesh.
    Rollout(rollout::RolloutArgs),
    /// Take a checkpoint of all rollouts in flight.
    Checkpoint(commands::checkpoint::CheckpointArgs),
    /// Restore a checkpoint into fresh servers, and open the mesh.
    Restore(commands::restore::RestoreArgs),
    /// Open the mesh with nothing, although a checkpoint could be restored.
    Open(commands::open::OpenArgs),
    /// Stop rollouts for good.
    Retire(commands::retire::RetireArgs),
    /// Drop what is remembered of rollouts that are over.
    Forget(commands::forget::ForgetArgs),
    /// The mesh as it is.
    Status(commands::status::StatusArgs),
    /// Run one server of a mesh in this process.
    Serve(serve::ServeArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = belay_mesh::limits::raise_open_files() {
        eprintln!("belay: the limit of open files could not be raised: {error}");
    }
    belay_mesh::telemetry::install_crypto();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("belay: the runtime could not be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(run(cli.command));
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("belay: {}", show::causes(&error));
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::run(args).await,
        Command::Up(args) => up::run(args).await,
        Command::Rollout(args) => rollout::run(args).await,
        Command::Checkpoint(args) => commands::checkpoint::run(args).await,
        Command::Restore(args) => commands::restore::run(args).await,
        Command::Open(args) => commands::open::run(args).await,
        Command::Retire(args) => commands::retire::run(args).await,
        Command::Forget(args) => commands::forget::run(args).await,
        Command::Status(args) => commands::status::run(args).await,
        Command::Serve(args) => serve::run(args).await,
    }
}
