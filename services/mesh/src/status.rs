//! A refusal on the wire and back: gRPC code, `google.rpc.ErrorInfo`, `PreconditionFailure`, `RetryInfo` (protocol 3.3).

use belay_core::refusal::Refusal;

/// The refusal as a status: grpcurl prints all of it.
pub fn to_status(_refusal: &Refusal) -> tonic::Status {
    todo!()
}

/// A status as a refusal, when it carries an `ErrorInfo` of domain `belay`; `None` for a transport's own errors.
pub fn from_status(_status: &tonic::Status) -> Option<Refusal> {
    todo!()
}
