//! `belay retire`.

use crate::show::say;
use std::{process::ExitCode, time::Duration};

use anyhow::Context as _;
use belay_proto::checkpoint::{CoordinatorRetireRequest, Mark};
use clap::Args;
use serde_json::json;

use super::checkpoint::show_blocker;
use crate::{
    connect::{self, MeshArg},
    show,
};

/// Stop rollouts for good: their attempts are refused until `belay forget`.
#[derive(Args)]
pub struct RetireArgs {
    /// ROLLOUT or ROLLOUT:ATTEMPT; the attempt and all earlier ones are retired. Attempt 0 if left out.
    #[arg(required = true, value_name = "ROLLOUT[:ATTEMPT]")]
    rollouts: Vec<String>,
    #[command(flatten)]
    mesh: MeshArg,
    /// How long to wait for what still runs.
    #[arg(long, default_value = "30s", value_parser = connect::duration)]
    timeout: Duration,
    /// Print one JSON object instead.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(args: RetireArgs) -> anyhow::Result<ExitCode> {
    let marks = args
        .rollouts
        .iter()
        .map(|text| mark(text))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut coordinator = args.mesh.coordinator()?;
    let request = CoordinatorRetireRequest {
        marks,
        timeout: Some(connect::wire_duration(args.timeout)?),
    };
    let reply = coordinator.client.retire(request).await;
    let reply = reply.map_err(|status| coordinator.explain(status))?.into_inner();
    if args.json {
        say!(
            "{}",
            json!({
                "next": reply.next.iter()
                    .map(|e| json!({"rollout_id": e.rollout_id, "attempt": e.attempt})).collect::<Vec<_>>(),
                "unfinished": reply.unfinished.iter().map(show_blocker).collect::<Vec<_>>(),
            })
        );
    } else {
        for next in &reply.next {
            say!(
                "{} is retired; its next attempt is {}",
                next.rollout_id,
                next.attempt
            );
        }
        for blocker in &reply.unfinished {
            say!("still stopping: {}", show_blocker(blocker));
        }
        say!("retired: {}", show::count(reply.next.len() as u64, "rollout"));
    }
    Ok(ExitCode::SUCCESS)
}

/// `ROLLOUT` or `ROLLOUT:ATTEMPT`. A rollout id has no colon.
fn mark(text: &str) -> anyhow::Result<Mark> {
    let (rollout, attempt) = match text.split_once(':') {
        None => (text, 0),
        Some((rollout, attempt)) => (
            rollout,
            attempt
                .parse()
                .with_context(|| format!("{text:?}: the attempt after ':' is not a number"))?,
        ),
    };
    Ok(Mark {
        rollout_id: belay_core::ids::RolloutId::new(rollout)?.into(),
        attempt,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_and_bad_ones_refused() {
        assert_eq!(
            mark("a-1").unwrap(),
            Mark {
                rollout_id: "a-1".into(),
                attempt: 0
            }
        );
        assert_eq!(
            mark("a:7").unwrap(),
            Mark {
                rollout_id: "a".into(),
                attempt: 7
            }
        );
        for bad in ["", ":1", "a:", "a:x", "a b", "a:1:2"] {
            assert!(mark(bad).is_err(), "{bad:?}");
        }
    }
}
