//! One generation: its plan, what of it was sampled, and how it ended. Pure: whoever drives it says how many tokens go.

use std::sync::Arc;

use belay_core::ids::{Episode, ExecutionId, Operation};

use crate::{
    conversation::{Conversation, Message},
    error::BackendError,
    holds::Ordinal,
    mind,
    rows::{Row, Stored},
    sampling::{Context, Sampled, WeightRun, push_weight},
    tokens::{TokenId, marker},
};

/// The idempotency key of a staging worker's call.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallKey {
    /// Which episode.
    pub episode: Episode,
    /// Which life.
    pub execution: ExecutionId,
    /// Its place.
    pub operation: Operation,
}

/// What is to be generated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The prompt, without any of the reply.
    pub prompt: Arc<[TokenId]>,
    /// The whole reply.
    reply: Arc<[TokenId]>,
    /// What of it is there already.
    prefix: Arc<Row>,
    /// How many tokens of it there may be, the prefix's counted.
    budget: usize,
}

impl Plan {
    /// From the start.
    pub fn new(conversation: &Conversation, budget: usize) -> Self {
        let prompt: Arc<[TokenId]> = conversation.prompt().into();
        Self {
            reply: mind::answer_tokens(conversation).into(),
            prefix: Arc::new(Row::new(prompt.clone(), Vec::new(), Vec::new())),
            prompt,
            budget,
        }
    }

    /// On from a row that was sampled from the same prompt.
    pub fn after(mut self, prefix: Arc<Row>) -> Result<Self, BackendError> {
        if prefix.prompt != self.prompt {
            return Err(BackendError::bad(
                "prefix",
                "was sampled from another prompt than this request's",
            ));
        }
        let given = prefix.tokens.iter().map(|token| token.id);
        if prefix.tokens.len() > self.reply.len()
            || !given.eq(self.reply[..prefix.tokens.len()].iter().copied())
        {
            return Err(BackendError::bad(
                "prefix",
                "is not the beginning of what this engine answers",
            ));
        }
        self.prefix = prefix;
        Ok(self)
    }

    /// From a prompt in token ids, of which the end can be the beginning of the reply. `budget` counts what comes now.
    pub fn from_ids(ids: &[TokenId], budget: usize) -> Self {
        let read = Conversation::read_prompt(ids);
        let (prompt, begun) = ids.split_at(read.reply_starts);
        let prompt: Arc<[TokenId]> = prompt.into();
        let context = Context::of(&prompt);
        // What was begun stands, whoever sampled it; where it leaves the engine's own answer, nothing more comes of it.
        let mut reply = mind::answer_tokens(&read.conversation);
        if !reply.starts_with(begun) {
            reply = begun.to_vec();
            if reply.last() != Some(&marker::END) {
                reply.push(marker::END);
            }
        }
        let given = begun.iter().enumerate();
        let tokens = given.map(|(at, id)| context.sample(*id, at)).collect();
        let weights = Vec::from_iter((!begun.is_empty()).then(|| WeightRun {
            tokens: begun.len() as u32,
            version: String::new(),
        }));
        Self {
            reply: reply.into(),
            prefix: Arc::new(Row::new(prompt.clone(), tokens, weights)),
            prompt,
            budget: begun.len().saturating_add(budget),
        }
    }

    /// How many tokens of the reply were there before.
    pub fn prefix_tokens(&self) -> usize {
        self.prefix.tokens.len()
    }

    /// The tokens of the reply that were there before.
    pub fn prefix(&self) -> &[Sampled] {
        &self.prefix.tokens
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The answer is over.
    Stop,
    /// The budget is used up.
    Length,
    /// The answer is over and calls tools.
    ToolCalls,
}

impl Finish {
    /// As OpenAI names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// How a generation stands.
#[derive(Clone, Debug)]
pub enum CallState {
    /// Going on.
    Sampling,
    /// Done; a keyed one has its row in the store.
    Finished(Finish, Arc<Row>, Option<Stored>),
    /// Stopped before its end.
    Stopped(BackendError),
}

/// A generation.
#[derive(Debug)]
pub struct Call {
    /// What is to come.
    pub plan: Plan,
    /// Who asked, if it is keyed.
    pub key: Option<CallKey>,
    /// Its place among the calls, for holds.
    pub ordinal: Ordinal,
    /// How it stands.
    pub state: CallState,
    context: Context,
    tokens: Vec<Sampled>,
    weights: Vec<WeightRun>,
}

impl Call {
    /// Before its first token.
    pub fn new(plan: Plan, key: Option<CallKey>, ordinal: Ordinal) -> Self {
        Self {
            context: Context::of(&plan.prompt),
            tokens: plan.prefix.tokens.clone(),
            weights: plan.prefix.weights.clone(),
            plan,
            key,
            ordinal,
            state: CallState::Sampling,
        }
    }

    /// All tokens of the reply so far.
    pub fn tokens(&self) -> &[Sampled] {
        match &self.state {
            CallState::Finished(_, row, _) => &row.tokens,
            _ => &self.tokens,
        }
    }

    /// All weight runs of the reply so far.
    pub fn weights(&self) -> &[WeightRun] {
        match &self.state {
            CallState::Finished(_, row, _) => &row.weights,
            _ => &self.weights,
        }
    }

    /// How many tokens this call sampled itself.
    pub fn sampled(&self) -> usize {
        self.tokens().len() - self.plan.prefix_tokens()
    }

    /// How many tokens are still to come.
    pub fn left(&self) -> usize {
        let end = self.plan.reply.len().min(self.plan.budget);
        end.saturating_sub(self.tokens.len())
    }

    /// Samples up to `count` tokens.
    pub fn sample(&mut self, count: usize, weights: &str) {
        let from = self.tokens.len();
        for position in from..from + count.min(self.left()) {
            self.tokens
                .push(self.context.sample(self.plan.reply[position], position));
            push_weight(&mut self.weights, weights);
        }
    }

    /// What was sampled so far, to be kept.
    pub fn prefix_row(&self) -> Row {
        Row::new(
            self.plan.prompt.clone(),
            self.tokens.clone(),
            self.weights.clone(),
        )
    }

    /// Takes the tokens out as the finished row, and says why it ended.
    pub fn finish(&mut self) -> (Finish, Row) {
        let tokens = std::mem::take(&mut self.tokens);
        let weights = std::mem::take(&mut self.weights);
        let finish = match tokens.last() {
            Some(last) if last.id == marker::END => {
                if message_of(&tokens).calls.is_empty() {
                    Finish::Stop
                } else {
                    Finish::ToolCalls
                }
            }
            _ => Finish::Length,
        };
        (finish, Row::new(self.plan.prompt.clone(), tokens, weights))
    }
}

/// The assistant's message that tokens make.
pub fn message_of(tokens: &[Sampled]) -> Message {
    let ids: Vec<TokenId> = tokens.iter().map(|token| token.id).collect();
    Message::decode_body(&ids)
}
