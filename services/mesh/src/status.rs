//! A refusal on the wire and back: gRPC code, `google.rpc.ErrorInfo`, `PreconditionFailure`, `RetryInfo` (protocol 3.3).

use std::{borrow::Cow, collections::HashMap, time::Duration};

use belay_core::{
    ids::{Episode, RolloutId},
    refusal::{Blocker, Reason, Refusal},
};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, PreconditionViolation, StatusExt as _};

/// The domain of every `ErrorInfo`.
pub const DOMAIN: &str = "belay";

/// The type of a blocker among the precondition violations.
const BLOCKER: &str = "BLOCKER";

/// A status travels in HTTP/2 trailers, and some clients (Python's) take no more than 8 KiB of them: what is longer is cut, so
/// that the reason always arrives. The message travels twice, plain and in the details.
const MAX_MESSAGE_BYTES: usize = 1_000;
const MAX_METADATA_BYTES: usize = 200;
/// Of all blockers together: the head of the list; Status and the coordinator's stream have more.
const MAX_BLOCKER_BYTES: usize = 2_000;

/// The gRPC code of a reason.
pub fn code(reason: Reason) -> Code {
    use Reason as R;
    match reason {
        R::StaleCheckpoint
        | R::InvalidPhase
        | R::StaleCoordinator
        | R::OtherIncarnation
        | R::StaleAttempt
        | R::AttemptLive
        | R::StaleExecution
        | R::EpisodeUnknown
        | R::OperationPast
        | R::OperationMismatch
        | R::WrongReplica
        | R::TaskMismatch
        | R::NotRestored
        | R::RestartInScope
        | R::RetireIncomplete
        | R::RolloutLive
        | R::StorageReadonly => Code::FailedPrecondition,
        R::CheckpointConflict | R::RunAbandoned => Code::Aborted,
        R::InDoubt | R::NotJoined | R::StorageIo | R::EngineFailed | R::PeerUnreachable => Code::Unavailable,
        R::AdmissionFull | R::RecordTooLarge | R::StorageFull => Code::ResourceExhausted,
        R::StorageDenied | R::RoleDenied => Code::PermissionDenied,
        R::DeadlinePassed => Code::DeadlineExceeded,
        R::InvalidCheckpoint => Code::DataLoss,
        R::InvalidId | R::InvalidRequest => Code::InvalidArgument,
        R::UnauthenticatedPeer => Code::Unauthenticated,
        R::Internal => Code::Internal,
    }
}

/// The refusal as a status: grpcurl prints all of it.
pub fn to_status(refusal: &Refusal) -> Status {
    let metadata: HashMap<String, String> = refusal
        .metadata
        .iter()
        .map(|(key, value)| (key.to_string(), cut(value, MAX_METADATA_BYTES)))
        .collect();
    let mut details = ErrorDetails::with_error_info(refusal.reason.as_str(), DOMAIN, metadata);
    let blockers = head(&refusal.blockers);
    if !blockers.is_empty() {
        details.set_precondition_failure(blockers);
    }
    if let Some(after) = refusal.retry_after {
        details.set_retry_info(Some(after));
    }
    let message = cut(&refusal.message, MAX_MESSAGE_BYTES);
    Status::with_error_details(code(refusal.reason), message, details)
}

/// As many blockers as fit.
fn head(blockers: &[Blocker]) -> Vec<PreconditionViolation> {
    let mut bytes = 0;
    let fits = |violation: &PreconditionViolation| {
        bytes += violation.r#type.len() + violation.subject.len() + violation.description.len();
        bytes <= MAX_BLOCKER_BYTES
    };
    blockers.iter().map(violation).take_while(fits).collect()
}

/// At most so many bytes, with an ellipsis where something is missing.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let ellipsis = '…';
    let end = text.floor_char_boundary(most - ellipsis.len_utf8());
    format!("{}{ellipsis}", &text[..end])
}

/// A status as a refusal, when it carries an `ErrorInfo` of domain `belay`; `None` for a transport's own errors.
pub fn from_status(status: &Status) -> Option<Refusal> {
    let details = status.get_error_details();
    let info = details.error_info().filter(|info| info.domain == DOMAIN)?;
    let reason = Reason::from_name(&info.reason)?;
    let mut refusal = Refusal::new(reason, status.message());
    refusal.metadata = info
        .metadata
        .iter()
        .map(|(k, v)| (Cow::Owned(k.clone()), v.clone()))
        .collect();
    refusal.metadata.sort();
    if let Some(failure) = details.precondition_failure() {
        refusal.blockers = failure.violations.iter().filter_map(blocker).collect();
    }
    refusal.retry_after = details.retry_info().and_then(|retry| retry.retry_delay);
    Some(refusal)
}

/// Gives a status's refusal, or makes one of what the transport says.
pub trait IntoRefusal {
    /// The refusal that the peer sent, or PEER_UNREACHABLE or INTERNAL with the transport's words.
    fn into_refusal(self) -> Refusal;
}

impl IntoRefusal for Status {
    fn into_refusal(self) -> Refusal {
        from_status(&self).unwrap_or_else(|| {
            let reason = if is_transport(&self) {
                Reason::PeerUnreachable
            } else {
                Reason::Internal
            };
            Refusal::new(reason, describe(&self))
        })
    }
}

/// True when the call may have met nobody, or a process that went away: it says nothing about what a server decided.
///
/// A status with a source was made on this side, of an error of the connection: what a peer sends has none. Unavailable and
/// Cancelled also come from what stands between two servers, and from a peer that goes away in the middle of a call.
pub fn is_transport(status: &Status) -> bool {
    use std::error::Error as _;
    from_status(status).is_none()
        && (matches!(status.code(), Code::Unavailable | Code::Cancelled) || status.source().is_some())
}

/// The status with the innermost reason that the transport gives: "Connection refused" says more than "transport error".
pub fn describe(status: &Status) -> String {
    let mut text = if status.message().is_empty() {
        status.code().description().to_owned()
    } else {
        status.message().to_owned()
    };
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    text
}

/// Written so that it reads on a terminal, and reads back: the subject is `rollout/attempt@instance`.
fn violation(blocker: &Blocker) -> PreconditionViolation {
    PreconditionViolation::new(
        BLOCKER,
        format!(
            "{}/{}@{}",
            blocker.episode.rollout, blocker.episode.attempt, blocker.instance
        ),
        format!(
            "in {} for {} ms: {}",
            blocker.step,
            blocker.age.as_millis(),
            blocker.reason
        ),
    )
}

fn blocker(violation: &PreconditionViolation) -> Option<Blocker> {
    if violation.r#type != BLOCKER {
        return None;
    }
    let (episode, instance) = violation.subject.split_once('@')?;
    let (rollout, attempt) = episode.split_once('/')?;
    let (place, reason) = violation.description.strip_prefix("in ")?.split_once(" ms: ")?;
    let (step, age) = place.rsplit_once(" for ")?;
    Some(Blocker {
        episode: Episode::new(RolloutId::new(rollout).ok()?, attempt.parse().ok()?),
        instance: instance.parse().ok()?,
        step: Cow::Owned(step.to_owned()),
        age: Duration::from_millis(age.parse().ok()?),
        reason: Cow::Owned(reason.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_comes_back_from_the_wire() {
        for &reason in Reason::ALL {
            let blocker = Blocker {
                episode: Episode::new(RolloutId::new("a-1").unwrap(), 3),
                instance: "resources/counter/0".parse().unwrap(),
                step: "tool increment for all".into(),
                age: Duration::from_millis(1_234),
                reason: "a tool call is waited for".into(),
            };
            let mut refusal = Refusal::new(reason, "what, where, what to do")
                .with("next_attempt", 4)
                .retry(Duration::from_millis(50));
            refusal.blockers.push(blocker);
            let status = to_status(&refusal);
            assert_eq!(status.code(), code(reason));
            assert_ne!(status.code(), Code::Ok);
            assert_eq!(from_status(&status), Some(refusal.clone()), "{reason}");
            assert_eq!(status.into_refusal(), refusal);
        }
    }

    #[test]
    fn what_is_too_long_for_trailers_is_cut_and_the_reason_arrives() {
        let blocker = Blocker {
            episode: Episode::new(RolloutId::new(&"r".repeat(128)).unwrap(), u32::MAX),
            instance: "resources/counter/0".parse().unwrap(),
            step: "verify".into(),
            age: Duration::from_secs(9),
            reason: "it is waited for".into(),
        };
        let mut refusal =
            Refusal::new(Reason::DeadlinePassed, "ä".repeat(5_000)).with("instance", "x".repeat(5_000));
        refusal.blockers = vec![blocker.clone(); 10_000];
        let status = to_status(&refusal);
        let headers = status.clone().into_http::<()>().headers().clone();
        let bytes: usize = headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum();
        assert!(bytes < 8 * 1024, "{bytes} bytes of trailers");
        let arrived = from_status(&status).unwrap();
        assert_eq!(arrived.reason, Reason::DeadlinePassed);
        assert!(arrived.message.ends_with("ä…") && arrived.message.len() <= MAX_MESSAGE_BYTES);
        assert!(!arrived.blockers.is_empty() && arrived.blockers.iter().all(|b| *b == blocker));
    }

    #[test]
    fn a_connection_that_ended_is_told_from_what_a_peer_decided() {
        let ended = Status::from_error("h2 protocol error".into());
        assert_eq!(ended.code(), Code::Unknown);
        assert!(is_transport(&ended));
        assert_eq!(describe(&ended), "h2 protocol error");
        for decided in [
            Status::internal("x"),
            Status::unimplemented("x"),
            Status::out_of_range("x"),
        ] {
            assert!(!is_transport(&decided), "{decided}");
            assert_eq!(decided.into_refusal().reason, Reason::Internal);
        }
    }

    #[test]
    fn a_transport_error_is_no_refusal() {
        let status = Status::unavailable("tcp connect error");
        assert_eq!(from_status(&status), None);
        assert!(is_transport(&status));
        assert_eq!(status.into_refusal().reason, Reason::PeerUnreachable);
        assert!(!is_transport(&Status::not_found("x")));
        assert!(!is_transport(&to_status(&Refusal::new(Reason::NotJoined, "x"))));
    }
}
