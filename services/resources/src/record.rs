//! A session on disk: `belay.record.v1.ResourcesSession`.

use std::{sync::Arc, time::Duration};

use belay_core::sessions::{KeptReply, SessionView};
use belay_mesh::wire::{self, ToWire as _};
use belay_proto::record as pb;
use bytes::Bytes;
use prost::Message as _;

use crate::environment::Environment;

/// Bytes of a record beside the task, the state and the outputs, about.
const ENVELOPE: u64 = 64;

/// A session as it was saved.
pub(crate) struct SavedSession<S> {
    pub(crate) task: Bytes,
    pub(crate) state: Arc<S>,
    pub(crate) revision: u64,
    pub(crate) replies: Vec<KeptReply>,
    pub(crate) time_left: Option<Duration>,
}

/// `time_left` is as of the capture: the record is made later.
pub(crate) fn encode<E: Environment>(
    environment: &E,
    session: &SessionView<Arc<E::State>>,
    time_left: Option<Duration>,
) -> Bytes {
    let record = pb::ResourcesSession {
        environment: environment.name().to_owned(),
        task: session.task.clone(),
        state: environment.export(&session.state),
        revision: session.revision,
        replies: session.replies.iter().map(reply_to_wire).collect(),
        time_left: time_left.map(|left| left.to_wire()),
    };
    record.encode_to_vec().into()
}

/// About as many bytes as `encode` makes.
pub(crate) fn size<E: Environment>(environment: &E, session: &SessionView<Arc<E::State>>) -> u64 {
    let outputs: usize = session.replies.iter().map(|reply| reply.output.len() + 64).sum();
    ENVELOPE + (session.task.len() + outputs) as u64 + environment.export_size(&session.state)
}

/// The error says what does not read.
pub(crate) fn decode<E: Environment>(
    environment: &E,
    payload: Bytes,
) -> Result<SavedSession<E::State>, String> {
    let record = pb::ResourcesSession::decode(payload).map_err(|error| error.to_string())?;
    if record.environment != environment.name() {
        return Err(format!(
            "it is of environment {:?}, this server is {:?}",
            record.environment,
            environment.name()
        ));
    }
    let replies: Result<_, String> = record.replies.into_iter().map(reply_from_wire).collect();
    Ok(SavedSession {
        state: Arc::new(environment.import(&record.task, &record.state)?),
        task: record.task,
        revision: record.revision,
        replies: replies?,
        time_left: wire::duration("time_left", record.time_left).map_err(|refusal| refusal.message)?,
    })
}

fn reply_to_wire(reply: &KeptReply) -> pb::KeptToolReply {
    pb::KeptToolReply {
        operation: Some(reply.operation.to_wire()),
        digest: wire::digest_to_wire(&reply.digest),
        output: reply.output.clone(),
        is_error: reply.is_error,
        revision: reply.revision,
    }
}

fn reply_from_wire(reply: pb::KeptToolReply) -> Result<KeptReply, String> {
    Ok(KeptReply {
        operation: wire::operation(reply.operation).map_err(|refusal| refusal.message)?,
        digest: wire::digest("digest", &reply.digest).map_err(|refusal| refusal.message)?,
        output: reply.output,
        is_error: reply.is_error,
        revision: reply.revision,
    })
}

#[cfg(test)]
mod tests {
    use belay_core::ids::{Episode, ExecutionId, Operation, RolloutId};

    use super::*;
    use crate::environments::{Counter, Weather};

    const LEFT: Option<Duration> = Some(Duration::from_millis(1_500));

    fn session() -> SessionView<Arc<i64>> {
        let reply = |index, is_error| KeptReply {
            operation: Operation { turn: 3, index },
            digest: [7; 32],
            output: Bytes::from_static(b"{\"b\":1e400}"),
            is_error,
            revision: 8 + u64::from(index),
        };
        SessionView {
            episode: Episode::new(RolloutId::new("r").unwrap(), 2),
            execution: ExecutionId(uuid::Uuid::from_u128(5)),
            task: Bytes::from_static(br#"{"initial_count": 1, "expected_count": 2, "x": "\ud800"}"#),
            state: Arc::new(-42),
            revision: 10,
            replies: Arc::new(vec![reply(1, false), reply(2, true)]),
            ends: None,
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was() {
        let session = session();
        let saved = decode(&Counter, encode(&Counter, &session, LEFT)).unwrap();
        assert_eq!(
            (saved.task, *saved.state, saved.revision, &saved.replies),
            (session.task.clone(), -42, 10, session.replies.as_ref())
        );
        assert_eq!(saved.time_left, LEFT);
    }

    #[test]
    fn a_record_that_says_nothing_of_time_reads() {
        let saved = decode(&Counter, encode(&Counter, &session(), None)).unwrap();
        assert_eq!(saved.time_left, None);
    }

    #[test]
    fn the_size_is_about_right() {
        let session = session();
        let size = size(&Counter, &session);
        let encoded = encode(&Counter, &session, LEFT).len() as u64;
        assert!(
            encoded <= size && size < 2 * encoded + 200,
            "{size} for {encoded}"
        );
    }

    #[test]
    fn records_that_do_not_read_say_why() {
        let good = encode(&Counter, &session(), LEFT);
        let why = |outcome: Result<SavedSession<i64>, String>| outcome.err().expect("refused");
        assert!(decode(&Weather, good.clone()).err().unwrap().contains("weather"));
        why(decode(&Counter, good.slice(..good.len() - 1)));
        let mut record = pb::ResourcesSession::decode(good).unwrap();
        record.replies[0].digest = Bytes::from_static(b"short");
        assert!(why(decode(&Counter, record.encode_to_vec().into())).contains("digest"));
        record.replies.clear();
        record.time_left = Some(prost_types::Duration {
            seconds: -1,
            nanos: 0,
        });
        assert!(why(decode(&Counter, record.encode_to_vec().into())).contains("time_left"));
        record.time_left = None;
        record.state = Bytes::from_static(b"many");
        assert!(why(decode(&Counter, record.encode_to_vec().into())).contains("decimal"));
    }
}
