//! `belay demo`: the story in one command, on real processes.

mod report;
mod story;
mod tasks;

use crate::show::say;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use self::{report::Account, story::Told};
use crate::show;

/// The whole story on this machine: rollouts in flight, a checkpoint, every server killed, a restore, all finish.
#[derive(Args)]
pub struct DemoArgs {
    /// How many rollouts.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=20_000))]
    rollouts: u32,
    /// Print one JSON object at the end, and no stages.
    #[arg(long)]
    json: bool,
    /// Keep the mesh's directory (checkpoints, journal, logs), and say where it is.
    #[arg(long)]
    keep: bool,
}

/// Runs the command. The status is 0 only if nothing was lost or repeated.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let told = story::tell(&args).await?;
    if args.json {
        print_json(&told);
    } else {
        print_table(&told);
    }
    Ok(if told.account.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print_json(told: &Told) {
    let Account {
        rollouts,
        finished_before,
        continued,
        lost,
        done_twice,
        model_calls_repeated,
        tool_effects_repeated,
        tokens_saved,
    } = told.account;
    say!(
        "{}",
        json!({
            "rollouts": rollouts, "finished_before": finished_before, "continued": continued, "lost": lost,
            "done_twice": done_twice, "model_calls_repeated": model_calls_repeated,
            "tool_effects_repeated": tool_effects_repeated, "tokens_saved": tokens_saved,
            "stall_ms": show::millis(told.stall), "restore_ms": show::millis(told.restore), "killed": told.killed,
            "checkpoint_id": told.checkpoint, "mean_reward": told.mean_reward,
        })
    );
}

fn print_table(told: &Told) {
    let account = &told.account;
    let mut table = show::table(["", ""]);
    for (what, n) in [
        ("rollouts", account.rollouts),
        ("finished before the checkpoint", account.finished_before),
        ("continued after the crash", account.continued),
        ("lost", account.lost),
        ("done twice", account.done_twice),
        ("model calls repeated", account.model_calls_repeated),
        ("tool effects repeated", account.tool_effects_repeated),
        ("tokens saved", account.tokens_saved),
    ] {
        table.add_row([what.to_owned(), n.to_string()]);
    }
    table.add_row(["mean reward".to_owned(), format!("{:.3}", told.mean_reward)]);
    table.add_row(["the mesh stood still for".to_owned(), show::duration(told.stall)]);
    table.add_row(["the restore took".to_owned(), show::duration(told.restore)]);
    say!("{}", table.trim_fmt());
    if account.is_clean() {
        say!("\nnothing was lost, nothing was done twice");
    } else {
        say!("\nnot as it should be: {account:?}");
    }
    if let Some(kept) = &told.kept {
        say!("kept: {}", kept.display());
    }
}
