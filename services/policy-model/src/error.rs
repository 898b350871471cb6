//! What can go wrong here, in the words of a policy model.

use std::time::Duration;

use belay_core::refusal::{Reason, Refusal};

use crate::chat::ChatError;

/// Every error of this server.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PolicyError {
    /// The request is not one that an engine can be asked.
    #[error("the request cannot be asked of an engine: {0}")]
    Request(ChatError),
    /// The engine's address is none.
    #[error(
        "the engine's base URL {engine:?} is not an http or https address, for example http://127.0.0.1:8000/v1"
    )]
    BadAddress {
        /// As configured.
        engine: String,
    },
    /// The engine was not there for as long as the server is patient.
    #[error(
        "the engine at {engine} could not be reached for {} s ({what}: {last}); start it, or mend its address in the policy model's configuration",
        patience.as_secs_f32()
    )]
    Unreachable {
        /// Its address.
        engine: String,
        /// Which call.
        what: &'static str,
        /// The last attempt's error.
        last: String,
        /// For how long it was tried.
        patience: Duration,
    },
    /// The engine says that it cannot do it.
    #[error("the engine at {engine} refuses {what}: {message}; see the engine's log")]
    Failed {
        /// Its address.
        engine: String,
        /// Which call.
        what: &'static str,
        /// What it said.
        message: String,
    },
    /// The engine does not have what it should have kept.
    #[error("the engine at {engine} does not have what {what} names: {message}")]
    Missing {
        /// Its address.
        engine: String,
        /// Which call.
        what: &'static str,
        /// What it said.
        message: String,
    },
    /// The engine's answer breaks its contract.
    #[error("the engine at {engine} answered {what} with what cannot be used: {message}")]
    BadAnswer {
        /// Its address.
        engine: String,
        /// Which call.
        what: &'static str,
        /// What is wrong.
        message: String,
    },
    /// Refused by a rule of the protocol, here or at a worker.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<PolicyError> for Refusal {
    fn from(error: PolicyError) -> Self {
        let message = error.to_string();
        match error {
            PolicyError::Request(at) => Refusal::new(Reason::InvalidRequest, message).with("field", at.field),
            PolicyError::BadAddress { engine }
            | PolicyError::Unreachable { engine, .. }
            | PolicyError::Failed { engine, .. }
            | PolicyError::Missing { engine, .. }
            | PolicyError::BadAnswer { engine, .. } => {
                Refusal::new(Reason::EngineFailed, message).with("engine", engine)
            }
            PolicyError::Refused(refusal) => refusal,
        }
    }
}
