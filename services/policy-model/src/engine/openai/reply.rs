//! What a chat completion says: the message raw, and the tokens where the engine gives them.

use std::sync::Arc;

use belay_core::ledger::{FinishReason, TokenSpan, Tokens, WeightSpan};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::Generated;

/// Why a reply is no answer.
pub(super) enum Problem {
    /// The engine stopped it: it is not finished.
    Aborted,
    /// It breaks the API.
    Unreadable(String),
}

#[derive(Deserialize)]
struct Completion<'a> {
    #[serde(default)]
    model: Option<String>,
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
    /// As vLLM gives them.
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    message: &'a RawValue,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    weight_versions: Option<Vec<Weights>>,
}

#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    content: Option<Vec<Logprob>>,
}

#[derive(Deserialize)]
struct Logprob {
    logprob: f32,
    /// As llama.cpp gives it.
    #[serde(default)]
    id: Option<u32>,
}

#[derive(Deserialize)]
struct Weights {
    tokens: u32,
    #[serde(default)]
    version: String,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
}

/// Reads a whole reply. `weights` is the version as configured.
pub(super) fn read(body: &Bytes, weights: Option<&str>) -> Result<Generated, Problem> {
    let completion: Completion<'_> =
        serde_json::from_slice(body).map_err(|e| Problem::Unreadable(e.to_string()))?;
    let mut choices = completion.choices.into_iter();
    let choice = choices
        .next()
        .ok_or_else(|| Problem::Unreadable("there is no choice in it".into()))?;
    let finish = match choice.finish_reason.as_deref() {
        Some("stop" | "content_filter") => FinishReason::Stop,
        Some("length") => FinishReason::Length,
        Some("tool_calls" | "function_call") => FinishReason::ToolCalls,
        // An aborted reply ends as if it were whole; it is not.
        Some("abort") | None => return Err(Problem::Aborted),
        Some(other) => {
            return Err(Problem::Unreadable(format!(
                "finish_reason {other:?} is not known"
            )));
        }
    };
    let message = Bytes::copy_from_slice(choice.message.get().as_bytes());
    let usage = completion.usage;
    let tokens = tokens(choice.token_ids, choice.logprobs, completion.prompt_token_ids);
    let span = tokens.as_ref().and_then(|tokens| {
        let sampled = tokens.sampled.len() as u32;
        let given = choice.weight_versions.unwrap_or_default().into_iter();
        let given: Vec<_> = given
            .map(|w| WeightSpan {
                tokens: w.tokens,
                version: w.version,
            })
            .collect();
        let mut span = TokenSpan {
            coordinate: None,
            tokens: sampled,
            digest: tokens.digest()?,
            weights: given,
        };
        if !span.aligned() || span.weights.is_empty() && sampled > 0 {
            span.weights = vec![WeightSpan {
                tokens: sampled,
                version: weights.unwrap_or_default().into(),
            }];
        }
        Some(span)
    });
    Ok(Generated {
        message,
        finish,
        prompt_tokens: usage
            .as_ref()
            .map_or(0, |u| u.prompt_tokens)
            .max(tokens.as_ref().map_or(0, |t| t.prompt.len() as u32)),
        output_tokens: usage.map_or(span.as_ref().map_or(0, |s| s.tokens), |u| u.completion_tokens),
        carried: span.is_some().then(|| tokens.map(Arc::new)).flatten(),
        span,
        model: completion.model.unwrap_or_default(),
    })
}

/// Prompt ids, sampled ids and logprobs, all of them and aligned, or none: half of a proof is none.
fn tokens(
    token_ids: Option<Vec<u32>>,
    logprobs: Option<Logprobs>,
    prompt: Option<Vec<u32>>,
) -> Option<Tokens> {
    let entries = logprobs?.content?;
    let sampled = match token_ids {
        Some(ids) => ids,
        None => entries.iter().map(|entry| entry.id).collect::<Option<_>>()?,
    };
    let tokens = Tokens {
        prompt: prompt?,
        sampled,
        logprobs: entries.iter().map(|e| e.logprob).collect(),
    };
    tokens.digest().map(|_| tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(body: &str) -> Generated {
        read(&Bytes::from(body.to_owned()), Some("w7")).unwrap_or_else(|_| panic!("{body} reads"))
    }

    #[test]
    fn a_reply_with_all_tokens_has_a_span() {
        let reply = generated(
            r#"{"model":"m","prompt_token_ids":[1,2,3],"usage":{"prompt_tokens":3,"completion_tokens":2},"choices":[{"message":{ "content": "h\ud800" },
            "finish_reason":"length","token_ids":[7,8],"logprobs":{"content":[{"logprob":-0.5,"token":"h"},{"logprob":-1e-3}]}}]}"#,
        );
        assert_eq!(
            &reply.message[..],
            br#"{ "content": "h\ud800" }"#,
            "the message stays raw"
        );
        let (span, carried) = (
            reply.span.expect("has a span"),
            reply.carried.expect("carries its tokens"),
        );
        assert_eq!(
            (span.tokens, span.digest),
            (2, carried.digest().expect("aligned"))
        );
        assert_eq!(
            span.weights,
            [WeightSpan {
                tokens: 2,
                version: "w7".into()
            }]
        );
        assert_eq!((carried.prompt.len(), carried.sampled.clone()), (3, vec![7, 8]));
        assert_eq!(
            (reply.finish, reply.prompt_tokens, reply.output_tokens),
            (FinishReason::Length, 3, 2)
        );
    }

    #[test]
    fn half_of_the_tokens_are_none() {
        for (what, body) in [
            (
                "no prompt",
                r#"{"choices":[{"message":{},"finish_reason":"stop","token_ids":[7],"logprobs":{"content":[{"logprob":-1}]}}]}"#,
            ),
            (
                "no logprobs",
                r#"{"prompt_token_ids":[1],"choices":[{"message":{},"finish_reason":"stop","token_ids":[7],"logprobs":null}]}"#,
            ),
            (
                "too few",
                r#"{"prompt_token_ids":[1],"choices":[{"message":{},"finish_reason":"stop","token_ids":[7,8],"logprobs":{"content":[{"logprob":-1}]}}]}"#,
            ),
            (
                "no ids",
                r#"{"prompt_token_ids":[1],"choices":[{"message":{},"finish_reason":"stop","logprobs":{"content":[{"logprob":-1}]}}]}"#,
            ),
        ] {
            let reply = generated(body);
            assert!(reply.span.is_none() && reply.carried.is_none(), "{what}");
        }
    }

    #[test]
    fn an_aborted_reply_is_not_finished() {
        for reason in [r#""abort""#, "null"] {
            let body = format!(r#"{{"choices":[{{"message":{{}},"finish_reason":{reason}}}]}}"#);
            assert!(matches!(read(&body.into(), None), Err(Problem::Aborted)));
        }
        assert!(matches!(
            read(&Bytes::from_static(b"{\"choices\":[]}"), None),
            Err(Problem::Unreadable(_))
        ));
        assert!(matches!(
            read(&Bytes::from_static(b"oops"), None),
            Err(Problem::Unreadable(_))
        ));
    }
}
