//! `belay rollout`: a task file in, a results file out.

pub mod client;
pub mod locate;
mod output;
mod progress;
mod tasks;

use crate::show::say;
use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use belay_core::ids::{Episode, RolloutId};
use belay_proto::episode::{RunResponse, TrajectoryRow};
use clap::Args;
use serde_json::json;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};

use self::{
    client::{Patience, RolloutClient, RolloutSpec},
    locate::Locate,
    output::{Existing, Results},
    progress::Progress,
    tasks::Task,
};
use crate::{
    connect::{self, MeshArg},
    show,
};

/// Run a task file against a mesh.
#[derive(Args)]
pub struct RolloutArgs {
    /// The task file: a JSON object a line, with `responses_create_params` and the environment's own fields.
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// Where results go, a line per finished rollout.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The environment of rows that name none.
    #[arg(long, value_name = "NAME")]
    environment: Option<String>,
    /// Rollouts in flight at once.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    concurrency: u32,
    /// At most this many model calls in an episode; 0: the agent's own limit.
    #[arg(long, default_value_t = 0)]
    max_steps: u32,
    /// Run each row so many times, as ID.1, ID.2 and so on.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Write each model call's tokens, logprobs and weight versions too.
    #[arg(long)]
    trajectories: bool,
    /// Skip rollouts that are in the results file, and go on after its last line.
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Write the results file anew.
    #[arg(long)]
    overwrite: bool,
    /// How long a mesh may not answer: one that was killed comes back by `belay up` and `belay restore`.
    #[arg(long, default_value = "10m", value_parser = connect::duration)]
    patience: Duration,
    /// Attempts of a rollout that may fail before it is given up.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
    /// Let the mesh remember the rollouts when they are over: their ids stay used up until `belay forget`.
    #[arg(long)]
    no_forget: bool,
    #[command(flatten)]
    mesh: MeshArg,
    /// Print one JSON object at the end, and no progress.
    #[arg(long)]
    json: bool,
}

/// Results that are acknowledged together.
const ACKNOWLEDGE_BATCH: usize = 64;

type Ended = (
    Arc<Task>,
    Result<(RunResponse, Option<Vec<TrajectoryRow>>), String>,
);

/// Runs the command.
pub async fn run(args: RolloutArgs) -> anyhow::Result<ExitCode> {
    let patience = Patience {
        mesh: args.patience,
        attempts: args.attempts,
    };
    let client = RolloutClient::new(Locate(args.mesh.clone()), patience);
    let known = client.environments().await?;
    let file = tasks::read(&args.tasks, args.environment.as_deref(), &known)?;
    for bad in &file.bad {
        eprintln!("{} line {}: {}", args.tasks.display(), bad.line, bad.problem);
    }
    if file.rows.is_empty() {
        return Err(anyhow!("{} has no row that can be run", args.tasks.display()));
    }
    let existing = match (args.resume, args.overwrite) {
        (true, _) => Existing::Resume,
        (_, true) => Existing::Overwrite,
        _ => Existing::Refuse,
    };
    let mut results = Results::open(&args.out, existing)?;
    let bad_rows = file.bad.len();
    let tasks = file.named(&results.run, args.repeat)?;
    let all = tasks.len();
    let todo: Vec<_> = tasks
        .into_iter()
        .filter(|task| !results.done.contains(task.rollout.as_str()))
        .collect();
    let skipped = all - todo.len();
    let mut progress = Progress::new(todo.len() as u64, args.json);
    let (interrupted, over) = drive(&args, &client, todo, &mut results, &mut progress).await?;
    progress.end();
    if !args.no_forget
        && let Err(failure) = client.forget(&over).await
    {
        eprintln!("the mesh still remembers the rollouts ({failure}); `belay forget` drops them");
    }

    let (finished, failed) = progress.counts();
    let mean = progress.mean_reward();
    if args.json {
        say!(
            "{}",
            json!({
                "rows": all + bad_rows, "finished": finished, "failed": failed, "bad_rows": bad_rows,
                "skipped": skipped, "mean_reward": mean, "per_second": progress.rate(), "interrupted": interrupted,
            })
        );
    } else {
        let mean = mean.map_or_else(|| "none".into(), |mean| format!("{mean:.3}"));
        let mut text = format!(
            "{}, mean reward {mean}, {:.1}/s",
            show::count(finished, "result"),
            progress.rate()
        );
        for (n, what) in [(skipped as u64, "skipped"), (failed, "failed")] {
            if n > 0 {
                text += &format!(", {n} {what}");
            }
        }
        if bad_rows > 0 {
            text += &format!(", {}", show::count(bad_rows as u64, "bad row"));
        }
        say!("{text}; in {}", args.out.display());
        if interrupted {
            say!(
                "interrupted: the mesh goes on with what was in flight; the same command with --resume collects it"
            );
        }
    }
    let good = failed == 0 && bad_rows == 0 && !interrupted;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the tasks, and writes each result as it comes. Replies whether Ctrl-C ended it early, and which rollouts are over.
async fn drive(
    args: &RolloutArgs,
    client: &RolloutClient,
    todo: Vec<Task>,
    results: &mut Results,
    progress: &mut Progress,
) -> anyhow::Result<(bool, Vec<RolloutId>)> {
    let (ended, mut arrivals) = mpsc::channel::<Ended>(ACKNOWLEDGE_BATCH);
    let in_flight = Arc::new(Semaphore::new(args.concurrency as usize));
    let mut running = JoinSet::new();
    for task in todo {
        let (client, ended, in_flight) = (client.clone(), ended.clone(), in_flight.clone());
        let (max_steps, trajectories) = (args.max_steps, args.trajectories);
        running.spawn(async move {
            let Ok(_slot) = in_flight.acquire_owned().await else {
                return;
            };
            let outcome = one(&client, &task, max_steps, trajectories).await;
            // Nobody listens any more after Ctrl-C.
            let _ = ended.send((Arc::new(task), outcome)).await;
        });
    }
    drop(ended);
    let mut to_acknowledge = Vec::new();
    let mut over = Vec::new();
    let interrupted = loop {
        let arrived = tokio::select! {
            arrived = arrivals.recv() => arrived,
            stop = tokio::signal::ctrl_c() => {
                stop.context("Ctrl-C cannot be listened for")?;
                break true;
            }
        };
        let Some((task, outcome)) = arrived else {
            break false;
        };
        match outcome {
            Ok((result, trajectory)) => {
                results.add(&task, &result, trajectory)?;
                progress.finished(result.reward);
                let attempt = result.episode.map_or(0, |episode| episode.attempt);
                over.push(task.rollout.clone());
                to_acknowledge.push(Episode::new(task.rollout.clone(), attempt));
            }
            Err(why) => progress.failed(&format!(
                "{} line {}: {}: {why}",
                args.tasks.display(),
                task.line,
                task.rollout
            )),
        }
        if to_acknowledge.len() >= ACKNOWLEDGE_BATCH || arrivals.is_empty() {
            acknowledge(client, std::mem::take(&mut to_acknowledge)).await;
        }
    };
    acknowledge(client, to_acknowledge).await;
    running.abort_all();
    Ok((interrupted, over))
}

async fn one(
    client: &RolloutClient,
    task: &Task,
    max_steps: u32,
    trajectories: bool,
) -> Result<(RunResponse, Option<Vec<TrajectoryRow>>), String> {
    let spec = RolloutSpec {
        rollout: task.rollout.clone(),
        environment: task.environment.clone(),
        task: task.row.clone(),
        max_steps,
    };
    let ran = if trajectories {
        client
            .run_to_trajectory(&spec)
            .await
            .map(|(result, rows)| (result, Some(rows)))
    } else {
        client.run_to_end(&spec).await.map(|result| (result, None))
    };
    ran.map_err(|failure| failure.to_string())
}

async fn acknowledge(client: &RolloutClient, episodes: Vec<Episode>) {
    if episodes.is_empty() {
        return;
    }
    let n = episodes.len() as u64;
    if let Err(status) = client.acknowledge(episodes).await {
        let why = belay_mesh::status::describe(&status);
        eprintln!(
            "{} could not be acknowledged ({why}); the mesh keeps them until it is told",
            show::count(n, "result")
        );
    }
}
