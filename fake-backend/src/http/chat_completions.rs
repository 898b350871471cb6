//! `POST /v1/chat/completions`.

use axum::{
    Json,
    body::Bytes,
    extract::State,
    response::{IntoResponse, Response},
};
use http::HeaderMap;
use serde_json::{Value, json};

use super::{
    HttpError, check_model, origin,
    reply::{Done, Events, OwnedCall, ids, logprob_entry, stream_events, usage},
};
use crate::{
    call::{Plan, message_of},
    chat::{ChatRequest, ReplyForm},
    deltas::{Delta, Deltas},
    engine::Engine,
    message_json::{chat_message, tool_call},
    sampling::Sampled,
    tokens::TokenId,
};

/// Makes a reply.
pub async fn create(
    State(engine): State<Engine>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, HttpError> {
    let request = ChatRequest::read(&body)?;
    check_model(&engine, request.model)?;
    let plan = Plan::new(&request.conversation, request.budget);
    let prompt = plan.prompt.clone();
    let call = OwnedCall::start(&engine, plan, origin("chat", &headers)).await?;
    let head = Head {
        id: format!("chatcmpl-{}", call.number()),
        model: engine.config().model.clone(),
        form: request.form,
    };
    if head.form.stream {
        let events = ChatEvents {
            head,
            prompt,
            deltas: Deltas::chat(),
        };
        return Ok(stream_events(call, events, 0));
    }
    let done = call.done().await?;
    Ok(Json(head.whole(&done)).into_response())
}

struct Head {
    id: String,
    model: String,
    form: ReplyForm,
}

impl Head {
    fn whole(&self, done: &Done) -> Value {
        let row = &done.row;
        let mut choice = json!({
            "index": 0,
            "message": chat_message(&message_of(&row.tokens), row),
            "finish_reason": done.finish.as_str(),
            "logprobs": null,
        });
        if self.form.logprobs {
            let content: Vec<Value> = row.tokens.iter().copied().map(logprob_entry).collect();
            choice["logprobs"] = json!({ "content": content });
        }
        let mut reply = json!({
            "id": self.id,
            "object": "chat.completion",
            "created": 0,
            "model": self.model,
            "usage": usage(row.prompt.len(), row.tokens.len()),
        });
        if self.form.token_ids {
            choice["token_ids"] = json!(ids(&row.tokens));
            choice["weight_versions"] = json!(row.weights);
            reply["prompt_token_ids"] = json!(row.prompt.as_ref());
        }
        reply["choices"] = json!([choice]);
        reply
    }

    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": 0,
            "model": self.model,
            "choices": choices,
        })
    }
}

struct ChatEvents {
    head: Head,
    prompt: std::sync::Arc<[TokenId]>,
    deltas: Deltas,
}

impl ChatEvents {
    fn delta(&self, delta: Delta) -> Value {
        let mut json = json!({});
        if !delta.text.is_empty() {
            json["content"] = delta.text.into();
        }
        if !delta.reasoning.is_empty() {
            json["reasoning_content"] = delta.reasoning.into();
        }
        if let Some((at, call)) = delta.call {
            let mut call = tool_call(&call, at, &self.prompt);
            call["index"] = at.into();
            json["tool_calls"] = json!([call]);
        }
        json
    }
}

impl Events for ChatEvents {
    fn begin(&mut self) -> Vec<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": null, "logprobs": null });
        let mut chunk = self.head.chunk(json!([choice]));
        if self.head.form.token_ids {
            chunk["prompt_token_ids"] = json!(self.prompt.as_ref());
        }
        vec![chunk]
    }

    fn token(&mut self, token: Sampled, weights: &str) -> Value {
        let delta = self.deltas.push(token.id);
        let mut choice = json!({
            "index": 0,
            "delta": self.delta(delta),
            "finish_reason": null,
            "logprobs": null,
        });
        if self.head.form.logprobs {
            choice["logprobs"] = json!({ "content": [logprob_entry(token)] });
        }
        if self.head.form.token_ids {
            choice["token_ids"] = json!([token.id]);
            choice["weight_versions"] = json!([{ "tokens": 1, "version": weights }]);
        }
        self.head.chunk(json!([choice]))
    }

    fn end(&mut self, done: &Done) -> Vec<Value> {
        let rest = self.deltas.finish();
        let choice = json!({
            "index": 0,
            "delta": self.delta(rest),
            "finish_reason": done.finish.as_str(),
            "logprobs": null,
        });
        let mut events = vec![self.head.chunk(json!([choice]))];
        if self.head.form.stream_usage {
            let mut last = self.head.chunk(json!([]));
            last["usage"] = usage(done.row.prompt.len(), done.row.tokens.len());
            events.push(last);
        }
        events
    }
}
