//! `belay checkpoint`.

use crate::show::say;
use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::anyhow;
use belay_proto::checkpoint::{
    Abandoned, CheckpointRequest, Partition, Published, Standing, checkpoint_response::Event,
};
use clap::Args;
use serde_json::{Value, json};

use crate::{
    connect::{self, MeshArg},
    show,
};

/// Take a checkpoint of all rollouts in flight.
#[derive(Args)]
pub struct CheckpointArgs {
    #[command(flatten)]
    mesh: MeshArg,
    /// Only these rollouts; all others go on unsaved.
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    rollouts: Vec<String>,
    /// The budget of the whole run.
    #[arg(long, default_value = "60s", value_parser = connect::duration)]
    timeout: Duration,
    /// After this, episodes in a step that cannot be cut become restarts instead of being waited for.
    #[arg(long, value_parser = connect::duration)]
    soft_limit: Option<Duration>,
    /// Print one JSON object instead.
    #[arg(long)]
    json: bool,
}

/// What the stream told, gathered.
#[derive(Default)]
struct Story {
    id: String,
    stages: Vec<Value>,
    standings: BTreeMap<&'static str, u64>,
    restarts: Vec<Value>,
    at_door: u64,
}

/// Runs the command.
pub async fn run(args: CheckpointArgs) -> anyhow::Result<ExitCode> {
    let mut coordinator = args.mesh.coordinator()?;
    let request = CheckpointRequest {
        rollout_ids: args.rollouts.clone(),
        timeout: Some(connect::wire_duration(args.timeout)?),
        soft_limit: args.soft_limit.map(connect::wire_duration).transpose()?,
        ..Default::default()
    };
    let started = coordinator.client.checkpoint(request).await;
    let mut events = started
        .map_err(|status| coordinator.explain(status))?
        .into_inner();
    let mut story = Story::default();
    while let Some(message) = events
        .message()
        .await
        .map_err(|status| coordinator.explain(status))?
    {
        story.id = message.checkpoint_id;
        match message.event {
            Some(Event::Stage(stage)) => {
                let took = show::from_wire(stage.took);
                if !args.json {
                    let name = format!("{} {}", stage.stage, stage.kind);
                    say!("{name:<28} {:>10}  {}", show::duration(took), stage.detail);
                }
                story.stages.push(json!({
                    "stage": stage.stage, "kind": stage.kind, "ms": show::millis(took), "detail": stage.detail,
                }));
            }
            Some(Event::Waiting(waiting)) if !args.json => {
                if let Some(blocker) = waiting.blockers.first() {
                    say!(
                        "{:<28} waits for {}: {}",
                        waiting.stage,
                        show::count(waiting.blocker_count, "episode"),
                        show_blocker(blocker)
                    );
                }
            }
            Some(Event::Partition(partition)) => story.take(partition),
            Some(Event::Published(published)) => return Ok(report_published(&args, &story, &published)),
            Some(Event::Abandoned(abandoned)) => return report_abandoned(&args, &story, &abandoned),
            Some(Event::Waiting(_) | Event::Held(_)) | None => {}
        }
    }
    Err(anyhow!(
        "the coordinator at {} went away during checkpoint {}; the next one completes or abandons it: see `belay status`",
        coordinator.address,
        story.id
    ))
}

/// A line for each reason, with the first of its episodes.
fn not_saved(restarts: &[Value]) -> Vec<String> {
    const NAMED: usize = 5;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for restart in restarts {
        let episode = format!("{} attempt {}", text(&restart["rollout_id"]), restart["attempt"]);
        by_reason
            .entry(text(&restart["reason"]))
            .or_default()
            .push(episode);
    }
    let line = |(reason, episodes): (String, Vec<String>)| {
        let named = episodes
            .iter()
            .take(NAMED)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        let more = match episodes.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more (--json names all)"),
        };
        format!("not saved, {reason}: {named}{more}")
    };
    by_reason.into_iter().map(line).collect()
}

impl Story {
    fn take(&mut self, partition: Partition) {
        for entry in &partition.entries {
            *self.standings.entry(standing_name(entry.standing())).or_default() += 1;
        }
        for restart in partition.restarts {
            let episode = restart.episode.unwrap_or_default();
            self.restarts.push(json!({
                "rollout_id": episode.rollout_id, "attempt": episode.attempt,
                "instance": restart.instance.map(show_instance), "reason": restart.reason,
            }));
        }
        self.at_door += partition.at_door;
    }
}

fn report_published(args: &CheckpointArgs, story: &Story, published: &Published) -> ExitCode {
    let (stall, total) = (show::from_wire(published.stall), show::from_wire(published.total));
    if args.json {
        say!(
            "{}",
            json!({
                "outcome": "published", "checkpoint_id": story.id, "episodes": published.episodes,
                "restarts": story.restarts, "partition": story.standings, "at_door": story.at_door,
                "bytes": published.bytes, "stall_ms": show::millis(stall), "total_ms": show::millis(total),
                "cut_generations": published.cut_generations, "cut_tokens": published.cut_tokens,
                "path": published.path, "stages": story.stages,
            })
        );
    } else {
        for line in not_saved(&story.restarts) {
            say!("{line}");
        }
        say!(
            "checkpoint {}: {} saved, {} not saved, {}; the mesh stood still for {}, {} in all\n{}",
            story.id,
            show::count(published.episodes, "episode"),
            published.restarts,
            show::bytes(published.bytes),
            show::duration(stall),
            show::duration(total),
            published.path
        );
    }
    ExitCode::SUCCESS
}

fn report_abandoned(args: &CheckpointArgs, story: &Story, abandoned: &Abandoned) -> anyhow::Result<ExitCode> {
    if args.json {
        say!(
            "{}",
            json!({
                "outcome": "abandoned", "checkpoint_id": story.id, "reason": abandoned.reason,
                "message": abandoned.message, "stage": abandoned.stage, "stages": story.stages,
                "blockers": abandoned.blockers.iter().map(show_blocker).collect::<Vec<_>>(),
            })
        );
        return Ok(ExitCode::FAILURE);
    }
    for blocker in &abandoned.blockers {
        say!("waited for {}", show_blocker(blocker));
    }
    Err(anyhow!(
        "checkpoint {} was abandoned: {}: {}",
        story.id,
        abandoned.reason,
        abandoned.message
    ))
}

/// `rollout-7 attempt 0 in verify on resources/counter/0 for 3.2 s (reason)`.
pub fn show_blocker(blocker: &belay_proto::checkpoint::Blocker) -> String {
    let episode = blocker.episode.clone().unwrap_or_default();
    format!(
        "{} attempt {} in {} on {} for {} ({})",
        episode.rollout_id,
        episode.attempt,
        blocker.step,
        blocker
            .instance
            .clone()
            .map_or_else(|| "an unnamed instance".into(), show_instance),
        show::duration(show::from_wire(blocker.age)),
        blocker.reason
    )
}

/// `kind/name/replica`.
pub fn show_instance(instance: belay_proto::episode::Instance) -> String {
    belay_mesh::wire::instance(Some(instance.clone())).map_or_else(
        |_| format!("{}/{}", instance.name, instance.replica),
        |i| i.to_string(),
    )
}

fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Unspecified => "unspecified",
        Standing::Acknowledged => "acknowledged",
        Standing::SavedRunning => "saved_running",
        Standing::SavedFinished => "saved_finished",
        Standing::Restart => "restart",
        Standing::LeftOut => "left_out",
        Standing::Retired => "retired",
        Standing::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_saved_is_told_by_reason() {
        let restart =
            |n: u32, reason: &str| json!({"rollout_id": format!("r{n}"), "attempt": 0, "reason": reason});
        let restarts: Vec<Value> = (0..7).map(|n| restart(n, "b")).chain([restart(9, "a")]).collect();
        let lines = not_saved(&restarts);
        assert_eq!(lines[0], "not saved, a: r9 attempt 0");
        assert!(
            lines[1].ends_with("r4 attempt 0 and 2 more (--json names all)"),
            "{}",
            lines[1]
        );
        assert_eq!(lines.len(), 2);
    }
}
