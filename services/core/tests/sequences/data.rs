//! What servers do for episodes, in steps so small that anything can come between two of them. Every wait is a step that finds
//! nothing to do, and every repeated call is the same step again.

use std::sync::Arc;

use belay_core::{
    agent::{self, Activation, Next, Params, Terms, ToolReply, Usage},
    calls::{Arrival, Begin, CallKey, Finished, Reply},
    episode::{AgentOutcome, Boundary, SeededParts, Step, StepDone, Verdict, Work},
    ids::{Episode, ExecutionId, Kind, Operation, RolloutId},
    invariants::Invariant,
    ledger::{FinishReason, TokenSpan, WeightSpan},
    participant::{Admit, PermitId},
    parts::{CheckpointMode, VerifyMode},
    refusal::{Reason, Refusal},
    sessions::{self, call_digest},
};
use bytes::Bytes;

use crate::world::{Checked, Loop, RunningTool, Sampled, World, broken, instance};

/// How many tools the model calls in a turn of a rollout; none: it is the last.
pub fn tools(rollout: &RolloutId, turn: u32) -> u32 {
    let number = u32::from(blake3::hash(rollout.as_str().as_bytes()).as_bytes()[0]);
    if turn > number % 3 {
        0
    } else {
        1 + (number + turn) % 2
    }
}

/// All tool calls of a rollout, in order.
pub fn all_tools(rollout: &RolloutId) -> Vec<Operation> {
    (0..4)
        .flat_map(|turn| (0..tools(rollout, turn)).map(move |at| Operation::tool_call(turn, at)))
        .collect()
}

fn response(rollout: &RolloutId, turn: u32) -> Bytes {
    let calls = tools(rollout, turn);
    let call =
        |n| format!(r#"{{"type":"function_call","call_id":"c{turn}-{n}","name":"add","arguments":"{{}}"}}"#);
    let items: Vec<String> = match calls {
        0 => vec![r#"{"type":"message","role":"assistant","content":[]}"#.into()],
        _ => (0..calls).map(call).collect(),
    };
    format!(r#"{{"id":"x","model":"m","output":[{}]}}"#, items.join(",")).into()
}

pub fn work(rollout: &RolloutId) -> Arc<Work> {
    let task = Bytes::copy_from_slice(rollout.as_str().as_bytes());
    Arc::new(Work::new(task, "x", "x", 0))
}

/// One rollout in five uses tools whose server cannot save its part.
fn mode(rollout: &RolloutId) -> CheckpointMode {
    match blake3::hash(rollout.as_str().as_bytes()).as_bytes()[1] % 5 {
        0 => CheckpointMode::RestartOnly,
        _ => CheckpointMode::Exported,
    }
}

/// What a step came to: `None`, it has to wait.
type Stepped<T> = Result<Option<T>, Refusal>;

impl World {
    /// Asks to be admitted as counted work.
    pub fn gate(&mut self, kind: Kind, episode: &Episode) -> Stepped<PermitId> {
        let now = self.now;
        match self.machine(kind).admit(now, episode, "step".into()) {
            Ok(Admit::Admitted(permit)) => Ok(Some(permit)),
            Ok(Admit::Closed) => Ok(None),
            Err(refusal) if refusal.reason == Reason::NotJoined => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    /// Admitted and done in one step.
    fn gated<T>(
        &mut self,
        kind: Kind,
        episode: &Episode,
        what: impl FnOnce(&mut Self) -> Result<T, Refusal>,
    ) -> Stepped<T> {
        let Some(permit) = self.gate(kind, episode)? else {
            return Ok(None);
        };
        let done = what(self);
        self.release(kind, permit);
        done.map(Some)
    }

    /// An episode's task at its environment does a little.
    pub fn task_step(&mut self, execution: ExecutionId) -> Checked {
        let Some(task) = self.tasks.get(&execution) else {
            return Ok(());
        };
        let episode = task.episode.clone();
        match self.try_step(execution, &episode) {
            Ok(None) => Ok(()),
            Ok(Some(done)) => self.record(execution, &episode, done),
            Err(refusal) => self.fail(execution, &episode, refusal),
        }
    }

    fn try_step(&mut self, execution: ExecutionId, episode: &Episode) -> Stepped<StepDone> {
        let boundary = self.tasks[&execution].boundary.clone();
        if boundary.mode() == belay_core::episode::StepMode::Wait && self.tasks[&execution].permit.is_none() {
            let Some(permit) = self.gate(Kind::Environment, episode)? else {
                return Ok(None);
            };
            self.tasks.get_mut(&execution).expect("looked up above").permit = Some(permit);
            return Ok(None);
        }
        match boundary.step() {
            Step::Seed => self.seed(execution, episode),
            Step::InvokeAgent => self.invoke(execution, episode),
            Step::CloseAgent => self.gated(Kind::Agent, episode, |w| {
                w.agents.close(episode, execution)?;
                Ok(StepDone::AgentClosed)
            }),
            Step::Verify => self.gated(Kind::Resources, episode, |w| {
                let view = w.sessions.view(episode, execution)?;
                Ok(StepDone::Verified(Verdict {
                    reward: view.state.len() as f64,
                    details: Bytes::from(format!("{:?}", view.state)),
                }))
            }),
            Step::CloseResources => self.gated(Kind::Resources, episode, |w| {
                w.sessions.close(episode, execution)?;
                Ok(StepDone::ResourcesClosed)
            }),
            Step::Return => Ok(None),
        }
    }

    fn seed(&mut self, execution: ExecutionId, episode: &Episode) -> Stepped<StepDone> {
        let work = self.tasks[&execution].work.clone();
        let seeded = self.gated(Kind::Resources, episode, |w| {
            w.sessions
                .seed(episode, execution, work.task.clone(), Arc::default())
        })?;
        let Some(revision) = seeded.filter(|_| !self.dice.one_in(3)) else {
            return Ok(None);
        };
        let terms = Terms {
            name: episode.rollout.as_str().into(),
            params: Params::new(Bytes::from_static(br#"{"input":[]}"#)).expect("legal"),
            resources: instance(Kind::Resources),
            resources_mode: mode(&episode.rollout),
            revision,
            policy_model: instance(Kind::PolicyModel),
            max_steps: 10,
        };
        let seeded = self.gated(Kind::Agent, episode, |w| w.agents.seed(episode, execution, terms))?;
        if seeded.is_none() || self.dice.one_in(3) {
            return Ok(None);
        }
        Ok(Some(StepDone::Seeded(SeededParts {
            resources: instance(Kind::Resources),
            resources_mode: mode(&episode.rollout),
            verify: VerifyMode::Wait,
            agent: instance(Kind::Agent),
            agent_mode: CheckpointMode::Exported,
            policy_model: instance(Kind::PolicyModel),
            revision,
        })))
    }

    fn invoke(&mut self, execution: ExecutionId, episode: &Episode) -> Stepped<StepDone> {
        if let Some(refusal) = self.broken_loops.get(&execution) {
            return Err(refusal.clone());
        }
        let asked = self.gated(Kind::Agent, episode, |w| {
            w.agents.activate(episode, execution, 0, &Bytes::new())
        })?;
        match asked {
            None | Some(Activation::Join) => Ok(None),
            Some(Activation::Drive(session)) => {
                let (permit, tool) = (None, None);
                let episode = episode.clone();
                self.loops.insert(
                    execution,
                    Loop {
                        episode,
                        session,
                        permit,
                        tool,
                    },
                );
                Ok(None)
            }
            Some(Activation::Replied(session, completed)) => Ok(Some(StepDone::AgentReplied(AgentOutcome {
                response: completed.response.clone(),
                usage: session.parts().usage,
                cursor: session.parts().cursor,
                model_calls: session.parts().model_calls,
                tool_calls: session.parts().tool_calls,
            }))),
        }
    }

    /// A boundary is recorded only as counted work.
    fn record(&mut self, execution: ExecutionId, episode: &Episode, done: StepDone) -> Checked {
        let permit = match self.tasks.get_mut(&execution).and_then(|task| task.permit.take()) {
            Some(permit) => permit,
            None => match self.gate(Kind::Environment, episode) {
                Ok(Some(permit)) => permit,
                Ok(None) => return Ok(()),
                Err(refusal) => return self.fail(execution, episode, refusal),
            },
        };
        let next = self.episodes.record(episode, execution, done);
        self.release(Kind::Environment, permit);
        match next {
            Some(Boundary::Return(..)) | None => self.stop_task(execution),
            Some(next) => self.tasks.get_mut(&execution).expect("it runs").boundary = next,
        }
        Ok(())
    }

    /// The attempt ends with an error: nobody may lose one to anything but a crash or a retire.
    fn fail(&mut self, execution: ExecutionId, episode: &Episode, refusal: Refusal) -> Checked {
        let permit = match self.tasks.get_mut(&execution).and_then(|task| task.permit.take()) {
            Some(permit) => Some(permit),
            None => match self.gate(Kind::Environment, episode) {
                Ok(None) => return Ok(()),
                Ok(permit) => permit,
                Err(_) => None,
            },
        };
        if let Some(permit) = permit {
            self.release(Kind::Environment, permit);
        }
        // An environment that came back empty begins anew what its peers still hold: they say so, and the next attempt goes through.
        let book = self.coordinator.book.rollouts.get(&episode.rollout);
        let superseded = book.and_then(|row| row.mark) >= Some(episode.attempt);
        let stale = superseded || matches!(refusal.reason, Reason::StaleAttempt | Reason::StaleExecution);
        let what = format!("{episode} ended with {refusal}, and nothing had crashed since it began");
        self.episodes.fail(episode, execution, refusal);
        self.stop_task(execution);
        if !stale && self.born.get(&execution) == Some(&self.tally.crashes) {
            return broken(Invariant::CheckpointWhole, what);
        }
        Ok(())
    }

    /// A session's loop at its agent does a little.
    pub fn loop_step(&mut self, execution: ExecutionId) -> Checked {
        let Some(run) = self.loops.get(&execution) else {
            return Ok(());
        };
        let (episode, session) = (run.episode.clone(), run.session.clone());
        let stepped = match session.next() {
            Next::Nothing => {
                self.stop_loop(execution);
                return Ok(());
            }
            Next::CallModel { operation, parent } => {
                let arrival = Arrival {
                    key: CallKey {
                        episode: episode.clone(),
                        execution,
                        operation,
                    },
                    parent,
                    digest: *blake3::hash(&session.request()).as_bytes(),
                    cuttable: true,
                };
                self.model_call(&arrival)?
            }
            Next::CallTool {
                operation,
                name,
                arguments,
            } => self.tool_call(execution, &episode, operation, call_digest(&name, &arguments)),
        };
        match stepped {
            Ok(None) => {}
            Ok(Some(next)) => self.loops.get_mut(&execution).expect("it runs").session = next,
            Err(refusal) => {
                self.stop_loop(execution);
                self.broken_loops.insert(execution, refusal);
            }
        }
        Ok(())
    }

    /// Makes the model call, again and again until its reply comes through.
    fn model_call(&mut self, arrival: &Arrival) -> Checked<Stepped<Arc<agent::Session>>> {
        let CallKey {
            episode,
            execution,
            operation,
        } = &arrival.key;
        let begun = match self.gated(Kind::PolicyModel, episode, |w| w.calls.begin(arrival)) {
            Ok(Some(begun)) => begun,
            Ok(None) => return Ok(Ok(None)),
            Err(refusal) => return Ok(Err(refusal)),
        };
        match begun {
            Begin::Join => Ok(Ok(None)),
            Begin::Sample { prefix } => {
                let log = self.logs.entry(*execution).or_default();
                let was = log.insert(*operation, Sampled::Running);
                match (was, &prefix) {
                    (None, None) | (Some(Sampled::Cut), Some(_)) => {}
                    _ => {
                        let what = format!(
                            "{episode} {operation} is sampled (prefix {}), it was {was:?}",
                            prefix.is_some()
                        );
                        return broken(Invariant::OnceEach, what);
                    }
                }
                self.tally.continued += u64::from(prefix.is_some());
                self.engine.push(arrival.key.clone());
                Ok(Ok(None))
            }
            Begin::Kept(_) if self.dice.one_in(4) => Ok(Ok(None)),
            Begin::Kept(answer) => {
                self.tally.kept += 1;
                let reply = agent::ModelReply {
                    response: answer.reply.response.clone(),
                    usage: Usage::default(),
                    chain: answer.row.chain,
                    truncated: false,
                };
                Ok(self.gated(Kind::Agent, episode, |w| {
                    w.agents.model_replied(episode, *execution, *operation, &reply)
                }))
            }
        }
    }

    /// The engine is done with one of its generations, or fails.
    pub fn engine_step(&mut self) {
        if self.engine.is_empty() {
            return;
        }
        let at = self.dice.below(self.engine.len());
        let key = self.engine.swap_remove(at);
        let log = self.logs.entry(key.execution).or_default();
        if self.faults && self.dice.one_in(10) {
            if self.calls.is_generating(&key) {
                log.remove(&key.operation);
            }
            self.calls.fail(&key);
            return;
        }
        self.samplings += 1;
        let (rollout, turn) = (&key.episode.rollout, key.operation.turn);
        let finished = Finished {
            reply: Reply {
                response: response(rollout, turn),
                input_tokens: 1,
                output_tokens: 2,
            },
            prompt_tokens: 1,
            span: Some(TokenSpan {
                coordinate: None,
                tokens: 2,
                digest: *blake3::hash(&self.samplings.to_le_bytes()).as_bytes(),
                weights: vec![WeightSpan {
                    tokens: 2,
                    version: String::new(),
                }],
            }),
            carried: None,
            finish: FinishReason::Stop,
        };
        if self.calls.finish(&key, finished).is_some() {
            log.insert(key.operation, Sampled::Done(self.samplings));
        }
    }

    /// The agent's loop waits for its tool call: counted work at both servers until the boundary after it.
    fn tool_call(
        &mut self,
        execution: ExecutionId,
        episode: &Episode,
        operation: Operation,
        digest: [u8; 32],
    ) -> Stepped<Arc<agent::Session>> {
        let here = self.machine(Kind::Resources).incarnation();
        let run = self.loops.get_mut(&execution).expect("the caller has looked");
        if run.permit.is_none() {
            let permit = self.gate(Kind::Agent, episode)?;
            self.loops.get_mut(&execution).expect("it runs").permit = permit;
            return Ok(None);
        }
        let reply = match run.tool.take() {
            Some(tool) if tool.at == here => {
                let mut state = tool.state.as_ref().clone();
                state.push(operation);
                let applied = sessions::Applied {
                    output: Bytes::from_static(b"ok"),
                    state: Some(Arc::new(state)),
                };
                let reply = self.sessions.finish(episode, execution, operation, applied);
                self.release(Kind::Resources, tool.permit);
                reply?
            }
            Some(_) => return Ok(None),
            None => {
                let Some(permit) = self.gate(Kind::Resources, episode)? else {
                    return Ok(None);
                };
                match self.sessions.begin(episode, execution, operation, digest) {
                    Ok(sessions::Begin::Apply(state)) => {
                        let tool = RunningTool {
                            permit,
                            at: here,
                            state,
                        };
                        self.loops.get_mut(&execution).expect("it runs").tool = Some(tool);
                        return Ok(None);
                    }
                    begun => {
                        self.release(Kind::Resources, permit);
                        match begun? {
                            sessions::Begin::Kept(reply) => reply,
                            _ => return Ok(None),
                        }
                    }
                }
            }
        };
        if self.faults && self.dice.one_in(4) {
            return Ok(None); // The reply is lost: the call is made again.
        }
        let reply = ToolReply {
            output: reply.output,
            revision: reply.revision,
        };
        let next = self.agents.tool_replied(episode, execution, operation, &reply);
        if let Some(permit) = self.loops.get_mut(&execution).and_then(|run| run.permit.take()) {
            self.release(Kind::Agent, permit);
        }
        next.map(Some)
    }
}
