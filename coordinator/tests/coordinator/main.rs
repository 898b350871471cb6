//! The coordinator against real participants with toy owners: checkpoints, restores, crashes of everybody at every stage.

#![allow(clippy::unwrap_used)]

mod checkpoints;
mod coordinators;
mod marks;
mod restores;
mod support;

use std::time::Duration;

use belay_proto::checkpoint as pb;
use belay_store::Decided;

use support::Mesh;

fn all() -> pb::CheckpointRequest {
    pb::CheckpointRequest::default()
}

fn newest() -> pb::CoordinatorRestoreRequest {
    pb::CoordinatorRestoreRequest::default()
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn millis(millis: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: 0,
        nanos: millis * 1_000_000,
    })
}

/// The condition comes to hold.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} does not come");
}

fn is_tombstone(mesh: &Mesh, id: &str) -> bool {
    matches!(
        mesh.store().decided(id.parse().unwrap()).unwrap(),
        Some(Decided::Tombstone { .. })
    )
}
