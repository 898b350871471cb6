//! Waiting for a mesh, by what its coordinator says.

use std::time::{Duration, Instant};

use belay_mesh::status::describe;
use belay_proto::checkpoint::{
    CoordinatorStatusRequest, CoordinatorStatusResponse, ParticipantStatus, Phase,
};

use super::LocalMesh;
use crate::error::LocalMeshError;

/// Between two looks: at first, and at most. Each look asks every server.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

impl LocalMesh {
    /// Waits until the coordinator has joined every server: the mesh is open, or waits to be restored.
    pub async fn wait_joined(&self, bound: Duration) -> Result<CoordinatorStatusResponse, LocalMeshError> {
        self.wait("join", bound, |status| {
            status.waits_for_restore || is_open(status)
        })
        .await
    }

    /// Waits until every server is open.
    pub async fn wait_open(&self, bound: Duration) -> Result<CoordinatorStatusResponse, LocalMeshError> {
        self.wait("open", bound, is_open).await
    }

    async fn wait(
        &self,
        what: &str,
        bound: Duration,
        reached: impl Fn(&CoordinatorStatusResponse) -> bool,
    ) -> Result<CoordinatorStatusResponse, LocalMeshError> {
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut last = format!("waiting to {what}");
        loop {
            let left = bound.saturating_sub(started.elapsed());
            let mut coordinator = self.coordinator()?;
            let answer = coordinator.status(CoordinatorStatusRequest {});
            last = match tokio::time::timeout(left, answer).await {
                Ok(Ok(status)) => {
                    let status = status.into_inner();
                    if reached(&status) {
                        return Ok(status);
                    }
                    format!("waiting to {what}; {}", phases(&status))
                }
                Ok(Err(error)) => format!("the coordinator does not answer: {}", describe(&error)),
                Err(_) => {
                    let tail = self.coordinator_process()?.process.tail();
                    return Err(LocalMeshError::NotOpen { bound, last, tail });
                }
            };
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn is_open(status: &CoordinatorStatusResponse) -> bool {
    !status.participants.is_empty()
        && status
            .participants
            .iter()
            .all(|p| p.status.as_ref().is_some_and(|s| s.phase() == Phase::Idle))
}

fn phases(status: &CoordinatorStatusResponse) -> String {
    let phase = |p: &ParticipantStatus| {
        let name = p
            .member
            .as_ref()
            .and_then(|m| m.instance.as_ref())
            .map_or("?", |i| i.name.as_str());
        match &p.status {
            Some(s) => format!("{name} {}", s.phase().as_str_name()),
            None => format!("{name} does not answer ({})", p.unreachable),
        }
    };
    status
        .participants
        .iter()
        .map(phase)
        .collect::<Vec<_>>()
        .join(", ")
}
