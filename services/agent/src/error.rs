//! What can go wrong here, in the words of an agent.

use belay_core::{
    ids::{Episode, Instance},
    refusal::{Reason, Refusal},
};

/// Every error of this server.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AgentError {
    /// No policy model of the configured name is in the mesh.
    #[error(
        "no policy model named {name:?} is in the mesh; start one, or name another in the agent's configuration"
    )]
    NoPolicyModel {
        /// As it is configured.
        name: String,
    },
    /// A server of the mesh broke its contract.
    #[error("{instance} answered {call} with what cannot be used: {what}")]
    BadAnswer {
        /// Which server.
        instance: Instance,
        /// Which call.
        call: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A defect.
    #[error("the loop of {episode} ended without an outcome; this is a defect, see the agent's log")]
    Lost {
        /// Which episode.
        episode: Episode,
    },
    /// Refused by a rule of the protocol, here or at another server.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<AgentError> for Refusal {
    fn from(error: AgentError) -> Self {
        let message = error.to_string();
        match error {
            AgentError::NoPolicyModel { .. } => Refusal::new(Reason::PeerUnreachable, message),
            AgentError::BadAnswer { instance, .. } => {
                Refusal::new(Reason::Internal, message).instance(&instance)
            }
            AgentError::Lost { episode } => Refusal::new(Reason::Internal, message).episode(&episode),
            AgentError::Refused(refusal) => refusal,
        }
    }
}
