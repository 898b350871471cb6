//! What an agent holds of an episode, on disk: `belay.record.v1.AgentEpisode`.

use std::sync::Arc;

use belay_core::{
    agent::{Activated, Completed, Params, Parts, Session},
    episode::SavedEpisode,
    ids::RolloutId,
    refusal::Refusal,
};
use belay_episodes::record::{self, usage_from_wire, usage_to_wire};
use belay_mesh::wire::{self, ToWire as _};
use belay_proto::record as rec;
use bytes::Bytes;
use prost::Message as _;

/// What a record holds.
pub(crate) struct Read {
    pub(crate) session: Option<Session>,
    pub(crate) run: Option<record::Read>,
}

pub(crate) fn encode(session: Option<&Session>, run: Option<&SavedEpisode>) -> Bytes {
    let record = rec::AgentEpisode {
        session: session.map(session_to_record),
        run: run.map(record::to_record),
    };
    record.encode_to_vec().into()
}

/// Why a record does not read, in words.
pub(crate) fn decode(rollout: &RolloutId, payload: Bytes) -> Result<Read, String> {
    let record = rec::AgentEpisode::decode(payload).map_err(|error| error.to_string())?;
    if record.session.is_none() && record.run.is_none() {
        return Err("it holds neither a session nor an episode".into());
    }
    Ok(Read {
        session: record
            .session
            .map(|session| session_from_record(rollout, session))
            .transpose()?,
        run: record.run.map(record::from_record).transpose()?,
    })
}

fn session_to_record(session: &Session) -> rec::AgentSession {
    let parts = session.parts();
    let running = parts.running.as_ref();
    rec::AgentSession {
        params: parts.params.raw().clone(),
        items: parts.items.to_vec(),
        usage: Some(usage_to_wire(parts.usage)),
        cursor: Some(parts.cursor.to_wire()),
        resources: Some(parts.resources.to_wire()),
        resources_mode: parts.resources_mode.to_wire(),
        policy_model: Some(parts.policy_model.to_wire()),
        max_steps: parts.max_steps,
        model_calls: parts.model_calls,
        tool_calls: parts.tool_calls,
        activation: parts.activation,
        activation_digest: running
            .map(|running| Bytes::copy_from_slice(&running.digest))
            .unwrap_or_default(),
        activation_start: running.map_or(0, |running| running.start as u32),
        pending_calls: running
            .map(|running| running.pending.iter().map(|at| *at as u32).collect())
            .unwrap_or_default(),
        completed: parts
            .completed
            .as_ref()
            .map(|completed| rec::CompletedActivation {
                activation: completed.activation,
                digest: Bytes::copy_from_slice(&completed.digest),
                response: completed.response.clone(),
            }),
    }
}

fn session_from_record(rollout: &RolloutId, record: rec::AgentSession) -> Result<Session, String> {
    let said = |refusal: Refusal| refusal.message;
    let digest = wire::optional_digest("activation_digest", &record.activation_digest).map_err(said)?;
    let running = digest.map(|digest| Activated {
        digest,
        start: record.activation_start as usize,
        pending: record.pending_calls.iter().map(|at| *at as usize).collect(),
    });
    let completed = record
        .completed
        .map(|completed| {
            Ok(Arc::new(Completed {
                activation: completed.activation,
                digest: wire::digest("completed.digest", &completed.digest)?,
                response: completed.response,
            }))
        })
        .transpose()
        .map_err(said)?;
    let parts = Parts {
        name: rollout.to_string(),
        params: Arc::new(Params::new(record.params).map_err(said)?),
        items: Arc::new(record.items),
        usage: usage_from_wire(record.usage),
        cursor: wire::cursor(record.cursor).map_err(said)?,
        resources: wire::instance(record.resources).map_err(said)?,
        resources_mode: wire::checkpoint_mode(record.resources_mode).map_err(said)?,
        policy_model: wire::instance(record.policy_model).map_err(said)?,
        max_steps: record.max_steps,
        model_calls: record.model_calls,
        tool_calls: record.tool_calls,
        activation: record.activation,
        running,
        completed,
    };
    Session::from_parts(parts).map_err(said)
}

#[cfg(test)]
mod tests {
    use belay_core::{
        agent::{Activation, ModelReply, Next, Sessions, Terms, ToolReply, Usage},
        ids::{Episode, ExecutionId, Operation},
        parts::CheckpointMode,
    };

    use super::*;

    const REPLY: &str = r#"{"output":[
        {"type":"function_call","call_id":"\u0061","name":"add","arguments":"{\"n\": 1e400}"},
        {"type":"function_call","call_id":"b","name":"add","arguments":"{}"}]}"#;

    /// A session at each kind of boundary.
    fn sessions() -> Vec<Arc<Session>> {
        let rollout = RolloutId::new("r").expect("an id");
        let (e, life) = (Episode::new(rollout, 0), ExecutionId(uuid::Uuid::from_u128(1)));
        let mut table = Sessions::new("agent/default/0".parse().expect("an instance"));
        let terms = Terms {
            name: "r".into(),
            params: Params::new(Bytes::from_static(br#"{"input":"hi","x":1e400}"#)).expect("legal"),
            resources: "resources/counter/0".parse().expect("an instance"),
            resources_mode: CheckpointMode::Stateless,
            revision: 3,
            policy_model: "policy-model/default/1".parse().expect("an instance"),
            max_steps: 9,
        };
        let seeded = table.seed(&e, life, terms).expect("seeded");
        let Ok(Activation::Drive(first)) = table.activate(&e, life, 0, &Bytes::new()) else {
            panic!("driven");
        };
        let reply = |text: &'static str| ModelReply {
            response: Bytes::from_static(text.as_bytes()),
            usage: Usage {
                input_tokens: 1,
                output_tokens: 2,
            },
            chain: [4; 32],
            truncated: false,
        };
        let called = table
            .model_replied(&e, life, Operation::FIRST, &reply(REPLY))
            .expect("next");
        let tool = ToolReply {
            output: Bytes::from_static(b"1"),
            revision: 4,
        };
        let half = table
            .tool_replied(&e, life, Operation::tool_call(0, 0), &tool)
            .expect("next");
        let whole = table
            .tool_replied(&e, life, Operation::tool_call(0, 1), &tool)
            .expect("next");
        let done = table
            .model_replied(&e, life, Operation::model_call(1), &reply(r#"{"output":[]}"#))
            .expect("next");
        assert_eq!(done.next(), Next::Nothing);
        vec![seeded, first, called, half, whole, done]
    }

    #[test]
    fn a_session_reads_as_it_was_written_at_every_boundary() {
        let rollout = RolloutId::new("r").expect("an id");
        for session in sessions() {
            let record = encode(Some(&session), None);
            assert!(
                record.len() as u64 <= session.size(),
                "the size is said before it is written"
            );
            let read = decode(&rollout, record).expect("it reads");
            assert_eq!(read.session.as_ref(), Some(session.as_ref()));
            assert_eq!(read.run, None);
        }
    }

    #[test]
    fn a_record_that_does_not_fit_together_is_refused() {
        let rollout = RolloutId::new("r").expect("an id");
        let broken = |change: fn(&mut rec::AgentSession)| {
            let full = encode(Some(&sessions()[2]), None);
            let mut record = rec::AgentEpisode::decode(full).expect("it reads");
            change(record.session.as_mut().expect("a session"));
            match decode(&rollout, record.encode_to_vec().into()) {
                Ok(_) => panic!("it does not fit"),
                Err(why) => why,
            }
        };
        assert!(broken(|r| r.pending_calls = vec![9]).contains("pending_calls"));
        assert!(broken(|r| r.activation_start = 9).contains("activation_start"));
        assert!(broken(|r| r.model_calls = 0).contains("pending_calls"));
        assert!(broken(|r| r.params = Bytes::from_static(b"[]")).contains("responses_create_params"));
        assert!(broken(|r| r.activation_digest = Bytes::from_static(b"x")).contains("activation_digest"));
        assert!(broken(|r| r.resources = None).contains("instance"));
        assert!(decode(&rollout, Bytes::from_static(b"\xff")).is_err());
        assert!(decode(&rollout, Bytes::new()).is_err());
    }
}
