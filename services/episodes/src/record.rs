//! An episode on disk: `belay.record.v1.EnvironmentEpisode`.

use belay_core::{
    agent::Usage,
    episode::{AgentOutcome, Boundary, SavedEpisode, SeededParts, Step, Verdict, Work},
    refusal::Refusal,
};
use belay_mesh::wire::{self, ToWire as _};
use belay_proto::{episode as pb, record as rec};
use bytes::Bytes;
use prost::Message as _;

/// What a record holds.
#[derive(Clone, PartialEq, Debug)]
pub struct Read {
    /// What is asked for.
    pub work: Work,
    /// Where it goes on.
    pub boundary: Boundary,
    /// What is left of its time. `None`: no limit.
    pub deadline_left: Option<std::time::Duration>,
}

pub(crate) fn encode(saved: &SavedEpisode) -> Bytes {
    to_record(saved).encode_to_vec().into()
}

/// A captured episode as it is written.
pub fn to_record(saved: &SavedEpisode) -> rec::EnvironmentEpisode {
    let boundary = &saved.boundary;
    rec::EnvironmentEpisode {
        task: saved.work.task.clone(),
        environment: saved.work.environment.to_string(),
        agent: saved.work.agent.to_string(),
        max_steps: saved.work.max_steps,
        deadline_left: saved.deadline_left.map(|left| left.to_wire()),
        boundary: Some(rec::EnvironmentBoundary {
            next_step: boundary.step().to_string(),
            parts: boundary.parts().map(|parts| parts_to_wire(parts)),
            agent: boundary.outcome().map(|outcome| rec::AgentOutcome {
                response: outcome.response.clone(),
                usage: Some(usage_to_wire(outcome.usage)),
                cursor: Some(outcome.cursor.to_wire()),
                model_calls: outcome.model_calls,
                tool_calls: outcome.tool_calls,
            }),
            verdict: boundary.verdict().map(|verdict| rec::Verdict {
                reward: verdict.reward,
                details: verdict.details.clone(),
            }),
        }),
    }
}

/// Why a record does not read, in words.
pub(crate) fn decode(payload: Bytes) -> Result<Read, String> {
    from_record(rec::EnvironmentEpisode::decode(payload).map_err(|error| error.to_string())?)
}

/// An episode as it was written; why it does not read, in words.
pub fn from_record(record: rec::EnvironmentEpisode) -> Result<Read, String> {
    let said = |refusal: Refusal| refusal.message;
    let wire = record.boundary.ok_or("it has no boundary")?;
    let step = Step::from_name(&wire.next_step)
        .ok_or_else(|| format!("it has a step {:?} that is not known here", wire.next_step))?;
    let parts = wire.parts.map(parts_from_wire).transpose().map_err(said)?;
    let outcome = wire.agent.map(outcome_from_wire).transpose().map_err(said)?;
    let verdict = wire.verdict.map(|verdict| Verdict {
        reward: verdict.reward,
        details: verdict.details,
    });
    let boundary = Boundary::assemble(step, parts, outcome, verdict)
        .ok_or_else(|| format!("what step {step} needs is not in it"))?;
    Ok(Read {
        work: Work::new(record.task, &record.environment, &record.agent, record.max_steps),
        boundary,
        deadline_left: wire::duration("deadline_left", record.deadline_left).map_err(said)?,
    })
}

fn parts_to_wire(parts: &SeededParts) -> rec::SeededParts {
    rec::SeededParts {
        resources: Some(parts.resources.to_wire()),
        resources_mode: parts.resources_mode.to_wire(),
        verify: parts.verify.to_wire(),
        agent: Some(parts.agent.to_wire()),
        agent_mode: parts.agent_mode.to_wire(),
        policy_model: Some(parts.policy_model.to_wire()),
        revision: parts.revision,
    }
}

fn parts_from_wire(wire: rec::SeededParts) -> Result<SeededParts, Refusal> {
    Ok(SeededParts {
        resources: wire::instance(wire.resources)?,
        resources_mode: wire::checkpoint_mode(wire.resources_mode)?,
        verify: wire::verify_mode(wire.verify)?,
        agent: wire::instance(wire.agent)?,
        agent_mode: wire::checkpoint_mode(wire.agent_mode)?,
        policy_model: wire::instance(wire.policy_model)?,
        revision: wire.revision,
    })
}

fn outcome_from_wire(wire: rec::AgentOutcome) -> Result<AgentOutcome, Refusal> {
    Ok(AgentOutcome {
        response: wire.response,
        usage: usage_from_wire(wire.usage),
        cursor: wire::cursor(wire.cursor)?,
        model_calls: wire.model_calls,
        tool_calls: wire.tool_calls,
    })
}

/// For a reply or a record.
pub fn usage_to_wire(usage: Usage) -> pb::Usage {
    pb::Usage {
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
    }
}

/// Nothing is no tokens.
pub fn usage_from_wire(wire: Option<pb::Usage>) -> Usage {
    let wire = wire.unwrap_or_default();
    Usage {
        input_tokens: wire.input_tokens,
        output_tokens: wire.output_tokens,
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use belay_core::{
        ids::{Episode, ExecutionId, Operation, RolloutId},
        parts::{CheckpointMode, Cursor, PartSummary, VerifyMode},
    };

    use super::*;

    fn saved(boundary: Boundary) -> SavedEpisode {
        let episode = Episode::new(RolloutId::new("a").expect("an id"), 3);
        SavedEpisode {
            summary: PartSummary {
                episode,
                execution: ExecutionId(uuid::Uuid::from_u128(1)),
                root: true,
                cursor: boundary.cursor(),
                needs: boundary.needs(),
                ledger: None,
                revision: 0,
                boundary: boundary.step().to_string(),
                task: None,
                finished: false,
            },
            work: Arc::new(Work::new(
                Bytes::from_static(br#"{"x":"\ud800"}"#),
                "counter",
                "default",
                7,
            )),
            boundary,
            deadline_left: Some(Duration::from_millis(1_500)),
        }
    }

    fn boundaries() -> Vec<Boundary> {
        let parts = Arc::new(SeededParts {
            resources: "resources/counter/1".parse().expect("an instance"),
            resources_mode: CheckpointMode::Stateless,
            verify: VerifyMode::Replay,
            agent: "agent/default/2".parse().expect("an instance"),
            agent_mode: CheckpointMode::Exported,
            policy_model: "policy-model/default/3".parse().expect("an instance"),
            revision: 4,
        });
        let outcome = Arc::new(AgentOutcome {
            response: Bytes::from_static(b"{ }"),
            usage: Usage {
                input_tokens: 1,
                output_tokens: 2,
            },
            cursor: Cursor {
                operation: Some(Operation::model_call(3)),
                chain: Some([9; 32]),
                revision: 5,
            },
            model_calls: 4,
            tool_calls: 3,
        });
        let verdict = Arc::new(Verdict {
            reward: 0.1 + 0.2,
            details: Bytes::from_static(b"{}"),
        });
        vec![
            Boundary::Seed,
            Boundary::InvokeAgent(parts.clone()),
            Boundary::CloseAgent(parts.clone(), outcome.clone()),
            Boundary::Verify(parts.clone(), outcome.clone()),
            Boundary::CloseResources(parts.clone(), outcome.clone(), verdict.clone()),
            Boundary::Return(parts, outcome, verdict),
        ]
    }

    #[test]
    fn every_boundary_reads_as_it_was_written() {
        for boundary in boundaries() {
            let saved = saved(boundary);
            let record = encode(&saved);
            assert!(
                record.len() as u64 <= saved.size(),
                "the size is said before it is written"
            );
            let read = decode(record).expect("it reads");
            assert_eq!(read.boundary, saved.boundary);
            assert_eq!(read.work, *saved.work);
            assert_eq!(read.deadline_left, saved.deadline_left);
        }
    }

    #[test]
    fn a_record_that_lacks_something_says_what() {
        let without = |change: fn(&mut rec::EnvironmentBoundary)| {
            let full = encode(&saved(boundaries().remove(5)));
            let mut record = rec::EnvironmentEpisode::decode(full).expect("it reads");
            change(record.boundary.as_mut().expect("it is there"));
            match decode(record.encode_to_vec().into()) {
                Ok(_) => panic!("it reads"),
                Err(why) => why,
            }
        };
        assert!(without(|b| b.verdict = None).contains("return"));
        assert!(without(|b| b.next_step = "dance".into()).contains("dance"));
        assert!(without(|b| b.parts.as_mut().expect("parts").agent = None).contains("instance"));
        assert!(decode(Bytes::from_static(b"\xff")).is_err());
        assert!(decode(Bytes::new()).is_err());
    }
}
