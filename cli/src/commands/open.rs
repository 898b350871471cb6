//! `belay open`.

use crate::show::say;
use std::process::ExitCode;

use belay_proto::checkpoint::OpenRequest;
use clap::Args;
use serde_json::json;

use crate::{connect::MeshArg, show};

/// Open the mesh with nothing, although a checkpoint could be restored.
#[derive(Args)]
pub struct OpenArgs {
    #[command(flatten)]
    mesh: MeshArg,
    /// Print one JSON object instead.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(args: OpenArgs) -> anyhow::Result<ExitCode> {
    let mut coordinator = args.mesh.coordinator()?;
    let reply = coordinator.client.open(OpenRequest {}).await;
    let opened = reply
        .map_err(|status| coordinator.explain(status))?
        .into_inner()
        .opened;
    if args.json {
        say!("{}", json!({"opened": opened}));
    } else {
        say!("the mesh is open: {}", show::count(opened.into(), "server"));
    }
    Ok(ExitCode::SUCCESS)
}
