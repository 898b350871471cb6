//! `belay forget`.

use crate::show::say;
use std::process::ExitCode;

use belay_proto::checkpoint::CoordinatorForgetRequest;
use clap::Args;
use serde_json::json;

use crate::{connect::MeshArg, show};

/// Drop what is remembered of rollouts that are over.
#[derive(Args)]
pub struct ForgetArgs {
    /// The rollouts.
    #[arg(required = true, value_name = "ROLLOUT")]
    rollouts: Vec<String>,
    #[command(flatten)]
    mesh: MeshArg,
    /// Print one JSON object instead.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(args: ForgetArgs) -> anyhow::Result<ExitCode> {
    let mut coordinator = args.mesh.coordinator()?;
    let request = CoordinatorForgetRequest {
        rollout_ids: args.rollouts.clone(),
    };
    let reply = coordinator.client.forget(request).await;
    let forgotten = reply
        .map_err(|status| coordinator.explain(status))?
        .into_inner()
        .forgotten;
    if args.json {
        say!(
            "{}",
            json!({"rollouts": args.rollouts, "marks_dropped": forgotten})
        );
    } else {
        say!(
            "forgotten: {}, {} dropped",
            show::count(args.rollouts.len() as u64, "rollout"),
            show::count(forgotten, "mark")
        );
    }
    Ok(ExitCode::SUCCESS)
}
