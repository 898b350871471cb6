//! `POST /v1/completions`: what comes after a prompt of text or token ids. A prompt whose end is the beginning of a reply
//! gets the rest of that reply.

use std::sync::Arc;

use axum::{
    Json,
    body::Bytes,
    extract::State,
    response::{IntoResponse, Response},
};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    HttpError, check_model, origin,
    reply::{Done, Events, OwnedCall, ids, stream_events, usage},
};
use crate::{
    call::Plan,
    chat::{ReplyForm, StreamOptions, budget, one_choice, read_json},
    deltas::Deltas,
    engine::Engine,
    error::BackendError,
    sampling::{Sampled, WeightRun, push_weight},
    tokens::{TokenId, bytes_of, encoded, is_known},
};

/// As in OpenAI's API.
const DEFAULT_BUDGET: usize = 16;

#[derive(Deserialize)]
struct Body {
    prompt: Prompt,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    max_tokens: Option<i64>,
    #[serde(default)]
    n: Option<i64>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    logprobs: Option<u32>,
    #[serde(default)]
    return_token_ids: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Ids(Vec<TokenId>),
    Text(String),
}

/// Makes a reply.
pub async fn create(
    State(engine): State<Engine>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, HttpError> {
    let body: Body = read_json(&body)?;
    check_model(&engine, body.model)?;
    one_choice(body.n)?;
    let prompt = match body.prompt {
        Prompt::Text(text) => encoded(&text),
        Prompt::Ids(ids) => ids,
    };
    if prompt.is_empty() {
        return Err(BackendError::bad("prompt", "is empty").into());
    }
    if let Some(unknown) = prompt.iter().find(|id| !is_known(**id)) {
        let rule = format!("has {unknown}, which is no token of this engine");
        return Err(BackendError::bad("prompt", rule).into());
    }
    let budget = budget("max_tokens", body.max_tokens)?.unwrap_or(DEFAULT_BUDGET);
    let plan = Plan::from_ids(&prompt, budget);
    let begun = ids(plan.prefix());
    let call = OwnedCall::start(&engine, plan, origin("completions", &headers)).await?;
    let reply = Reply {
        id: format!("cmpl-{}", call.number()),
        model: engine.config().model.clone(),
        form: ReplyForm {
            stream: body.stream.unwrap_or_default(),
            stream_usage: body.stream_options.unwrap_or_default().include_usage,
            logprobs: body.logprobs.is_some(),
            token_ids: body.return_token_ids.unwrap_or_default(),
        },
        prompt: prompt.into(),
        deltas: Deltas::raw_after(&begun),
        begun: begun.len(),
        text_offset: 0,
    };
    if reply.form.stream {
        return Ok(stream_events(call, reply, begun.len()));
    }
    let done = call.done().await?;
    Ok(Json(reply.whole(&done)).into_response())
}

struct Reply {
    id: String,
    model: String,
    form: ReplyForm,
    prompt: Arc<[TokenId]>,
    deltas: Deltas,
    /// Tokens of the reply that the prompt ends with.
    begun: usize,
    text_offset: usize,
}

impl Reply {
    fn envelope(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": 0,
            "model": self.model,
            "choices": choices,
        })
    }

    fn choice(&mut self, text: String, tokens: &[Sampled], weights: &[WeightRun]) -> Value {
        let mut choice = json!({ "index": 0, "text": text, "finish_reason": null, "logprobs": null });
        if self.form.logprobs {
            let offset = |token: &Sampled| {
                let at = self.text_offset;
                self.text_offset += bytes_of(&[token.id]).len();
                at
            };
            let offsets: Vec<usize> = tokens.iter().map(offset).collect();
            let written = |token: &Sampled| String::from_utf8_lossy(&bytes_of(&[token.id])).into_owned();
            choice["logprobs"] = json!({
                "tokens": tokens.iter().map(written).collect::<Vec<_>>(),
                "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
                "text_offset": offsets,
                "top_logprobs": null,
            });
        }
        if self.form.token_ids {
            choice["token_ids"] = json!(ids(tokens));
            choice["weight_versions"] = json!(weights);
        }
        choice
    }

    fn whole(mut self, done: &Done) -> Value {
        let sampled = &done.row.tokens[self.begun..];
        let mut text = String::new();
        for token in sampled {
            text.push_str(&self.deltas.push(token.id).text);
        }
        text.push_str(&self.deltas.finish().text);
        let mut choice = self.choice(text, sampled, &weights_after(&done.row.weights, self.begun));
        choice["finish_reason"] = finish_of(done).into();
        if self.form.token_ids {
            choice["prompt_token_ids"] = json!(self.prompt.as_ref());
        }
        let mut reply = self.envelope(json!([choice]));
        reply["usage"] = usage(self.prompt.len(), sampled.len());
        reply
    }
}

/// A completion knows no tools: an answer that calls one has ended all the same.
fn finish_of(done: &Done) -> &'static str {
    match done.finish {
        crate::call::Finish::ToolCalls => crate::call::Finish::Stop.as_str(),
        other => other.as_str(),
    }
}

fn weights_after(runs: &[WeightRun], skip: usize) -> Vec<WeightRun> {
    let each = runs
        .iter()
        .flat_map(|run| std::iter::repeat_n(run.version.as_str(), run.tokens as usize));
    let mut after = Vec::new();
    for version in each.skip(skip) {
        push_weight(&mut after, version);
    }
    after
}

impl Events for Reply {
    fn begin(&mut self) -> Vec<Value> {
        if !self.form.token_ids {
            return Vec::new();
        }
        let mut choice = self.choice(String::new(), &[], &[]);
        choice["prompt_token_ids"] = json!(self.prompt.as_ref());
        vec![self.envelope(json!([choice]))]
    }

    fn token(&mut self, token: Sampled, weights: &str) -> Value {
        let text = self.deltas.push(token.id).text;
        let mut run = Vec::new();
        push_weight(&mut run, weights);
        let choice = self.choice(text, &[token], &run);
        self.envelope(json!([choice]))
    }

    fn end(&mut self, done: &Done) -> Vec<Value> {
        let rest = self.deltas.finish().text;
        let mut choice = self.choice(rest, &[], &[]);
        choice["finish_reason"] = finish_of(done).into();
        let mut events = vec![self.envelope(json!([choice]))];
        if self.form.stream_usage {
            let mut last = self.envelope(json!([]));
            last["usage"] = usage(self.prompt.len(), done.row.tokens.len() - self.begun);
            events.push(last);
        }
        events
    }
}
