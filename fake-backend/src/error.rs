//! What can go wrong in the engine, in its own words; the edges turn it into a gRPC status or an OpenAI error.

use std::{borrow::Cow, time::Duration};

use belay_core::{
    ids::{CheckpointId, Episode, ExecutionId, Operation},
    refusal::{Reason, Refusal},
};

/// When a call that failed for the moment may be made again.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Why the engine does not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// A field breaks a rule.
    #[error("{field} {rule}")]
    Bad {
        /// The field.
        field: Cow<'static, str>,
        /// What is wrong, and what would be right.
        rule: Cow<'static, str>,
    },
    /// A name breaks its rule.
    #[error("{}", .0.message)]
    Name(Refusal),
    /// The model is not served here.
    #[error("model {asked:?} is not served here; this engine serves {served:?}")]
    UnknownModel {
        /// As it was asked for.
        asked: String,
        /// What there is.
        served: String,
    },
    /// A higher attempt of the rollout has spoken.
    #[error("{episode} is over: attempt {spoken} has spoken")]
    StaleAttempt {
        /// The one that came late.
        episode: Episode,
        /// The one that is served.
        spoken: u32,
    },
    /// Another life of the episode was first, or this one was freed.
    #[error("execution {execution} of {episode} is not served: {why}")]
    StaleExecution {
        /// Which.
        episode: Episode,
        /// Which life.
        execution: ExecutionId,
        /// Why.
        why: Cow<'static, str>,
    },
    /// The key was used for another request.
    #[error("operation {operation} of {episode} was asked for with another request before")]
    OperationMismatch {
        /// Which.
        episode: Episode,
        /// Where.
        operation: Operation,
    },
    /// The call was cancelled, or dropped for a later life.
    #[error("operation {operation} of {episode} was stopped: {why}")]
    Stopped {
        /// Which.
        episode: Episode,
        /// Where.
        operation: Operation,
        /// Why.
        why: Cow<'static, str>,
    },
    /// No such row, or it is another store's.
    #[error(
        "row {row:?} of store {store:?} is not here; ask CheckCoordinates first, and generate without the prefix"
    )]
    RowMissing {
        /// The store named.
        store: String,
        /// The row named.
        row: String,
    },
    /// The checkpoint was released.
    #[error("checkpoint {0} was released here: nothing is staged under it any more")]
    Released(CheckpointId),
    /// The same cut with another list.
    #[error("checkpoint {0} was cut for this client before, with another list of calls")]
    OtherCut(CheckpointId),
    /// A fault that was ordered.
    #[error("a fault that was ordered at /_ctl/faults: status {0}")]
    Ordered(u16),
    /// The process ends.
    #[error("the engine is stopping")]
    Stopping,
}

impl BackendError {
    /// A field that breaks a rule.
    pub fn bad(field: impl Into<Cow<'static, str>>, rule: impl Into<Cow<'static, str>>) -> Self {
        Self::Bad {
            field: field.into(),
            rule: rule.into(),
        }
    }
}

impl From<Refusal> for BackendError {
    fn from(refusal: Refusal) -> Self {
        Self::Name(refusal)
    }
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        let message = error.to_string();
        let new = |reason| Self::new(reason, message.clone());
        match &error {
            BackendError::Name(refusal) => refusal.clone(),
            BackendError::Bad { field, .. } => new(Reason::InvalidRequest).with("field", field),
            BackendError::UnknownModel { .. } => new(Reason::InvalidRequest).with("field", "model"),
            BackendError::StaleAttempt { episode, .. } => new(Reason::StaleAttempt).episode(episode),
            BackendError::StaleExecution { episode, .. } => new(Reason::StaleExecution).episode(episode),
            BackendError::OperationMismatch { episode, .. } => {
                new(Reason::OperationMismatch).episode(episode)
            }
            BackendError::Stopped { episode, .. } => new(Reason::StaleExecution).episode(episode),
            BackendError::RowMissing { row, .. } => new(Reason::InvalidRequest)
                .with("field", "coordinate")
                .with("row", row),
            BackendError::Released(id) => new(Reason::StaleCheckpoint).with("checkpoint_id", id),
            BackendError::OtherCut(id) => new(Reason::CheckpointConflict).with("checkpoint_id", id),
            BackendError::Ordered(..500) => new(Reason::EngineFailed),
            BackendError::Ordered(_) | BackendError::Stopping => new(Reason::EngineFailed).retry(RETRY_AFTER),
        }
    }
}
