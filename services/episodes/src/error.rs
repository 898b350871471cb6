//! What can go wrong here, in the words of an episode.

use belay_core::{
    episode::Step,
    ids::{Episode, Instance},
    refusal::{Reason, Refusal},
};

/// Every error of running an episode.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EpisodeError {
    /// A field of a Run breaks its rule.
    #[error("{field} {what}")]
    Field {
        /// Which.
        field: &'static str,
        /// Which rule, and what to do.
        what: String,
    },
    /// No server of that name is in the mesh.
    #[error("{field} {name:?} is not in the mesh; {}", known_names(known))]
    NoSuchServer {
        /// `environment` or `agent`.
        field: &'static str,
        /// As it was asked for.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// Another replica owns the rollout.
    #[error("{episode} belongs to {owner}; send it there")]
    WrongReplica {
        /// Which episode.
        episode: Episode,
        /// Who owns it.
        owner: Instance,
    },
    /// A step was refused by another server: the attempt is over.
    #[error("step {step} of {episode} failed: {}", refusal.message)]
    Step {
        /// Which episode.
        episode: Episode,
        /// Which step.
        step: Step,
        /// What that server said; it names itself.
        refusal: Refusal,
    },
    /// The episode has run for as long as it may.
    #[error(
        "{episode} ran into its deadline in step {step}; retire it and send the next attempt with more time"
    )]
    Deadline {
        /// Which episode.
        episode: Episode,
        /// In which step.
        step: Step,
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
    #[error("the task of {episode} ended without an outcome; this is a defect, see this server's log")]
    Lost {
        /// Which episode.
        episode: Episode,
    },
    /// Refused by a rule of the protocol.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

fn known_names(known: &[String]) -> String {
    match known {
        [] => "it has none".to_owned(),
        known => format!("it has {}", known.join(", ")),
    }
}

impl From<EpisodeError> for Refusal {
    fn from(error: EpisodeError) -> Self {
        let message = error.to_string();
        match error {
            EpisodeError::Field { field, .. } | EpisodeError::NoSuchServer { field, .. } => {
                Refusal::new(Reason::InvalidRequest, message).with("field", field)
            }
            EpisodeError::WrongReplica { episode, owner } => Refusal::new(Reason::WrongReplica, message)
                .episode(&episode)
                .with("owner", owner),
            EpisodeError::Step {
                episode,
                step,
                mut refusal,
            } => {
                refusal.message = message;
                if refusal.get("rollout_id").is_none() {
                    refusal = refusal.episode(&episode);
                }
                // The attempt is over: to send it again brings the same refusal.
                refusal.retry_after = None;
                refusal.with("step", step)
            }
            EpisodeError::Deadline { episode, step } => Refusal::new(Reason::DeadlinePassed, message)
                .episode(&episode)
                .with("step", step),
            EpisodeError::BadAnswer { instance, .. } => {
                Refusal::new(Reason::Internal, message).instance(&instance)
            }
            EpisodeError::Lost { episode } => Refusal::new(Reason::Internal, message).episode(&episode),
            EpisodeError::Refused(refusal) => refusal,
        }
    }
}
