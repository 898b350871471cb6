//! `belay status`.

use crate::show::say;
use std::process::ExitCode;

use belay_proto::checkpoint::{
    CoordinatorStatusRequest, CoordinatorStatusResponse, ParticipantStatus, Phase,
};
use clap::Args;
use serde_json::{Value, json};

use super::checkpoint::{show_blocker, show_instance};
use crate::{connect::MeshArg, show};

/// The mesh as it is.
#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    mesh: MeshArg,
    /// Print one JSON object instead.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let mut coordinator = args.mesh.coordinator()?;
    let reply = coordinator.client.status(CoordinatorStatusRequest {}).await;
    let status = reply.map_err(|status| coordinator.explain(status))?.into_inner();
    if args.json {
        say!("{}", as_json(&status));
    } else {
        print(&status);
    }
    let all_answer = status.participants.iter().all(|p| p.status.is_some());
    Ok(if all_answer {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print(status: &CoordinatorStatusResponse) {
    say!(
        "deployment {}, coordinator epoch {}, checkpoints in {}",
        status.deployment,
        status.epoch,
        status.root
    );
    match status.newest_checkpoint.as_str() {
        "" => say!("no checkpoint is published"),
        id => say!("newest checkpoint {id}, {} in all", status.checkpoints),
    }
    if !status.open_run.is_empty() {
        say!("open run {}: {}", status.open_run, status.open_run_stage);
    }
    if status.waits_for_restore {
        say!(
            "the mesh waits: `belay restore` goes on from the newest checkpoint, `belay open` starts with nothing"
        );
    }
    let mut table = show::table(["instance", "phase", "holds", "at the door", "data", "control"]);
    for participant in &status.participants {
        let member = participant.member.clone().unwrap_or_default();
        let name = member.instance.map(show_instance).unwrap_or_default();
        let (phase, holds, door) = match &participant.status {
            Some(s) => (
                phase_name(s.phase()).to_owned(),
                holds(participant),
                s.at_door.to_string(),
            ),
            None => (
                format!("does not answer: {}", participant.unreachable),
                String::new(),
                String::new(),
            ),
        };
        table.add_row([
            name,
            phase,
            holds,
            door,
            member.data_address,
            member.control_address,
        ]);
    }
    say!("{}", table.trim_fmt());
    for participant in &status.participants {
        let Some(s) = &participant.status else { continue };
        let instance = s.instance.clone().map(show_instance).unwrap_or_default();
        if s.blocker_count > 0 {
            say!(
                "{instance}: a checkpoint would wait for {}",
                show::count(s.blocker_count, "episode")
            );
            for blocker in s.blockers.iter().take(3) {
                say!("  {}", show_blocker(blocker));
            }
        }
        for warning in &s.warnings {
            say!("warning: {instance}: {warning}");
        }
    }
    if status.unfinished_retires > 0 {
        say!("retires that are not done: {}", status.unfinished_retires);
    }
    for warning in &status.warnings {
        say!("warning: {warning}");
    }
}

/// `episodes 12, staged 3`: what is not zero.
fn holds(participant: &ParticipantStatus) -> String {
    let Some(status) = &participant.status else {
        return String::new();
    };
    let mut counts: Vec<_> = status.counts.iter().filter(|(_, n)| **n > 0).collect();
    counts.sort();
    let held: Vec<_> = counts
        .into_iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    if held.is_empty() {
        "nothing".into()
    } else {
        held.join(", ")
    }
}

fn as_json(status: &CoordinatorStatusResponse) -> Value {
    json!({
        "deployment": status.deployment, "epoch": status.epoch, "root": status.root,
        "newest_checkpoint": status.newest_checkpoint, "checkpoints": status.checkpoints,
        "open_run": status.open_run, "open_run_stage": status.open_run_stage,
        "waits_for_restore": status.waits_for_restore, "marks": status.marks,
        "unfinished_retires": status.unfinished_retires, "warnings": status.warnings, "version": status.version,
        "participants": status.participants.iter().map(participant_json).collect::<Vec<_>>(),
    })
}

fn participant_json(participant: &ParticipantStatus) -> Value {
    let member = participant.member.clone().unwrap_or_default();
    let name = member.instance.map(show_instance);
    let Some(s) = &participant.status else {
        return json!({"instance": name, "data": member.data_address, "control": member.control_address,
            "unreachable": participant.unreachable});
    };
    json!({
        "instance": name, "data": member.data_address, "control": member.control_address,
        "incarnation": s.incarnation, "phase": phase_name(s.phase()), "checkpoint_id": s.checkpoint_id,
        "epoch": s.coordinator_epoch, "ready": s.ready, "roots": s.roots, "counts": s.counts,
        "blockers": s.blockers.iter().map(show_blocker).collect::<Vec<_>>(), "blocker_count": s.blocker_count,
        "restarts": s.restarts.len(), "marks": s.marks, "marks_version": s.marks_version, "at_door": s.at_door,
        "unclaimed_restored": s.unclaimed_restored,
        "unsettled": s.unsettled.as_ref().map(|u| json!({
            "checkpoint_id": u.checkpoint_id, "age_ms": show::millis(show::from_wire(u.age)), "durable": u.durable,
        })),
        "warnings": s.warnings, "version": s.version,
    })
}

/// The phase as the protocol writes it.
pub fn phase_name(phase: Phase) -> &'static str {
    phase.as_str_name().trim_start_matches("PHASE_")
}
