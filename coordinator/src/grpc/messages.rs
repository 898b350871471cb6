//! What runs tell, as messages; what grows with the rollouts goes out in pieces.

use belay_core::ids::CheckpointId;
use belay_mesh::wire::ToWire as _;
use belay_proto::checkpoint as pb;

use crate::events::{CheckpointEvent, PublishedReport, RestoreEvent, StageReport};

/// Entries in one message of a partition or a plan.
const PIECE: usize = 5_000;

pub(super) fn stage_to_wire(report: StageReport) -> pb::StageReport {
    pb::StageReport {
        stage: report.stage.into(),
        kind: report.kind,
        took: Some(report.took.to_wire()),
        detail: report.detail,
    }
}

pub(super) fn published_to_wire(report: &PublishedReport) -> pb::Published {
    pb::Published {
        episodes: report.episodes,
        restarts: report.restarts,
        bytes: report.bytes,
        stall: Some(report.stall.to_wire()),
        total: Some(report.total.to_wire()),
        path: report.path.clone(),
        cut_generations: report.cut_generations,
        cut_tokens: report.cut_tokens,
    }
}

pub(super) fn abandoned_to_wire(failure: belay_core::coordinator::checkpoint_run::Failure) -> pb::Abandoned {
    let place = failure.instance.map(|i| format!(" on {i}")).unwrap_or_default();
    pb::Abandoned {
        reason: failure.refusal.reason.as_str().into(),
        message: format!(
            "stage {} failed{place}: {}",
            failure.stage, failure.refusal.message
        ),
        stage: failure.stage.into(),
        blockers: failure.refusal.blockers.iter().map(|b| b.to_wire()).collect(),
    }
}

pub(super) fn checkpoint_messages(id: CheckpointId, event: CheckpointEvent) -> Vec<pb::CheckpointResponse> {
    use pb::checkpoint_response::Event;
    let events = match event {
        CheckpointEvent::Stage(report) => vec![Event::Stage(stage_to_wire(report))],
        CheckpointEvent::Waiting {
            stage,
            blockers,
            count,
        } => vec![Event::Waiting(pb::StageWaiting {
            stage: stage.into(),
            blockers: blockers.iter().map(|b| b.to_wire()).collect(),
            blocker_count: count,
        })],
        CheckpointEvent::Partition(partition) => {
            let mut pieces: Vec<pb::Partition> = partition
                .entries
                .chunks(PIECE)
                .map(|entries| pb::Partition {
                    entries: entries.iter().map(|e| e.to_wire()).collect(),
                    ..Default::default()
                })
                .collect();
            pieces.extend(partition.restarts.chunks(PIECE).map(|restarts| pb::Partition {
                restarts: restarts.iter().map(|r| r.to_wire()).collect(),
                ..Default::default()
            }));
            let mut last = pieces.pop().unwrap_or_default();
            (last.at_door, last.last) = (partition.at_door, true);
            pieces.push(last);
            pieces.into_iter().map(Event::Partition).collect()
        }
        CheckpointEvent::Held(hold) => vec![Event::Held(pb::Held {
            hold_timeout: Some(hold.to_wire()),
        })],
        CheckpointEvent::Published(report) => vec![Event::Published(published_to_wire(&report))],
        CheckpointEvent::Abandoned(failure) => vec![Event::Abandoned(abandoned_to_wire(failure))],
    };
    events
        .into_iter()
        .map(|event| pb::CheckpointResponse {
            checkpoint_id: id.to_string(),
            event: Some(event),
        })
        .collect()
}

pub(super) fn restore_messages(id: CheckpointId, event: RestoreEvent) -> Vec<pb::CoordinatorRestoreResponse> {
    use pb::coordinator_restore_response::Event;
    let events = match event {
        RestoreEvent::Stage(report) => vec![Event::Stage(stage_to_wire(report))],
        RestoreEvent::Plan {
            source,
            episodes,
            retired,
        } => {
            let mut pieces: Vec<pb::RestorePlan> = episodes
                .chunks(PIECE)
                .map(|episodes| pb::RestorePlan {
                    source: source.to_string(),
                    episodes: episodes.iter().map(|e| e.to_wire()).collect(),
                    ..Default::default()
                })
                .collect();
            let mut last = pieces.pop().unwrap_or_else(|| pb::RestorePlan {
                source: source.to_string(),
                ..Default::default()
            });
            last.retired = retired.iter().map(|r| r.as_str().into()).collect();
            last.last = true;
            pieces.push(last);
            pieces.into_iter().map(Event::Plan).collect()
        }
        RestoreEvent::InDoubt { missing, since } => vec![Event::InDoubt(pb::InDoubt {
            instances: missing.iter().map(|i| i.to_wire()).collect(),
            since: Some(since.to_wire()),
        })],
        RestoreEvent::Restored {
            source,
            episodes,
            total,
            prefixes_lost,
        } => {
            vec![Event::Restored(pb::Restored {
                source: source.to_string(),
                episodes,
                total: Some(total.to_wire()),
                prefixes_lost,
            })]
        }
        RestoreEvent::Abandoned(failure) => vec![Event::Abandoned(abandoned_to_wire(failure))],
    };
    events
        .into_iter()
        .map(|event| pb::CoordinatorRestoreResponse {
            run_id: id.to_string(),
            event: Some(event),
        })
        .collect()
}
