//! `belay restore`.

use crate::show::say;
use std::{process::ExitCode, time::Duration};

use anyhow::anyhow;
use belay_proto::checkpoint::{CoordinatorRestoreRequest, coordinator_restore_response::Event};
use clap::Args;
use serde_json::{Value, json};

use super::checkpoint::show_instance;
use crate::{
    connect::{self, MeshArg},
    show,
};

/// Restore a checkpoint into fresh servers, and open the mesh.
#[derive(Args)]
pub struct RestoreArgs {
    /// The checkpoint; the newest complete one if left out.
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: Option<String>,
    /// The one before the newest.
    #[arg(long, conflicts_with = "checkpoint")]
    previous: bool,
    #[command(flatten)]
    mesh: MeshArg,
    /// Only these rollouts.
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    rollouts: Vec<String>,
    /// Not these rollouts: their results are already durable elsewhere.
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    leave_out: Vec<String>,
    /// The budget of the whole run.
    #[arg(long, default_value = "10m", value_parser = connect::duration)]
    timeout: Duration,
    /// Print one JSON object instead.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(args: RestoreArgs) -> anyhow::Result<ExitCode> {
    let mut coordinator = args.mesh.coordinator()?;
    let request = CoordinatorRestoreRequest {
        checkpoint_id: args.checkpoint.clone().unwrap_or_default(),
        previous: args.previous,
        rollout_ids: args.rollouts.clone(),
        leave_out: args.leave_out.clone(),
        timeout: Some(connect::wire_duration(args.timeout)?),
    };
    let started = coordinator.client.restore(request).await;
    let mut events = started
        .map_err(|status| coordinator.explain(status))?
        .into_inner();
    let (mut run_id, mut stages, mut episodes) = (String::new(), Vec::<Value>::new(), Vec::<Value>::new());
    let mut retired = Vec::new();
    while let Some(message) = events
        .message()
        .await
        .map_err(|status| coordinator.explain(status))?
    {
        run_id = message.run_id;
        match message.event {
            Some(Event::Stage(stage)) => {
                let took = show::from_wire(stage.took);
                if !args.json {
                    let name = format!("{} {}", stage.stage, stage.kind);
                    say!("{name:<28} {:>10}  {}", show::duration(took), stage.detail);
                }
                stages.push(json!({"stage": stage.stage, "kind": stage.kind, "ms": show::millis(took), "detail": stage.detail}));
            }
            Some(Event::Plan(plan)) => {
                for planned in plan.episodes {
                    let saved = planned.saved.unwrap_or_default();
                    episodes.push(json!({
                        "rollout_id": saved.rollout_id, "saved_attempt": saved.attempt,
                        "attempt": planned.attempt, "execution": planned.execution,
                    }));
                }
                retired.extend(plan.retired);
            }
            Some(Event::InDoubt(doubt)) => {
                let names: Vec<_> = doubt.instances.into_iter().map(show_instance).collect();
                eprintln!(
                    "the restore is decided, but {} has not answered for {}; still trying (a lost instance can be removed \
                     with the coordinator's RemoveInstance)",
                    names.join(", "),
                    show::duration(show::from_wire(doubt.since))
                );
            }
            Some(Event::Restored(restored)) => {
                let total = show::from_wire(restored.total);
                if args.json {
                    say!(
                        "{}",
                        json!({
                            "outcome": "restored", "run_id": run_id, "source": restored.source, "episodes": episodes,
                            "retired": retired, "total_ms": show::millis(total),
                            "prefixes_lost": restored.prefixes_lost, "stages": stages,
                        })
                    );
                } else {
                    say!(
                        "checkpoint {} is restored: {} wait for their next Run, in {}",
                        restored.source,
                        show::count(restored.episodes, "episode"),
                        show::duration(total)
                    );
                }
                return Ok(ExitCode::SUCCESS);
            }
            Some(Event::Abandoned(abandoned)) => {
                if args.json {
                    say!(
                        "{}",
                        json!({
                            "outcome": "abandoned", "run_id": run_id, "reason": abandoned.reason,
                            "message": abandoned.message, "stage": abandoned.stage, "stages": stages,
                        })
                    );
                    return Ok(ExitCode::FAILURE);
                }
                return Err(anyhow!(
                    "nothing was restored: {}: {}",
                    abandoned.reason,
                    abandoned.message
                ));
            }
            None => {}
        }
    }
    Err(anyhow!(
        "the coordinator at {} went away during restore {run_id}; the next one completes or abandons it: see `belay status`",
        coordinator.address
    ))
}
