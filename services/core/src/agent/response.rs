//! The Responses object that an activation ends with: an envelope around the items that the loop has gathered.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Params, Usage, items};

/// Why an activation ended before the model was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Incomplete {
    /// The session has made as many model calls as it may.
    MaxSteps,
    /// The model's token budget was used up.
    MaxOutputTokens,
}

impl Incomplete {
    fn as_str(self) -> &'static str {
        match self {
            Self::MaxSteps => "max_steps",
            Self::MaxOutputTokens => "max_output_tokens",
        }
    }
}

/// What the envelope says.
#[derive(Clone, Copy, Debug)]
pub struct Envelope<'a> {
    /// The same whenever it is built: no clock, no chance.
    pub id: &'a str,
    /// Set when the loop ended early.
    pub incomplete: Option<Incomplete>,
    /// The model's last reply, where it is at hand: it names the model.
    pub last_reply: Option<&'a Bytes>,
    /// The parameters of the calls.
    pub params: &'a Params,
    /// The output of the activation.
    pub output: &'a [Bytes],
    /// Tokens of the session so far.
    pub usage: Usage,
}

#[derive(Deserialize, Default)]
struct Known<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    created_at: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_choice: Option<&'a RawValue>,
    #[serde(borrow)]
    parallel_tool_calls: Option<&'a RawValue>,
}

fn known(json: &[u8]) -> Known<'_> {
    serde_json::from_slice(json).unwrap_or_default()
}

/// Builds it.
pub fn response(envelope: &Envelope<'_>) -> Bytes {
    let params = known(envelope.params.raw());
    let reply = envelope.last_reply.map(|reply| known(reply)).unwrap_or_default();
    let or =
        |value: Option<&RawValue>, default: &'static str| value.map_or(default, RawValue::get).to_owned();
    let length: usize = envelope.output.iter().map(|item| item.len() + 1).sum();
    let mut json = BytesMut::with_capacity(length + 512);
    let (status, details) = match envelope.incomplete {
        None => ("completed", "null".to_owned()),
        Some(why) => ("incomplete", format!(r#"{{"reason":"{}"}}"#, why.as_str())),
    };
    let Usage {
        input_tokens,
        output_tokens,
    } = envelope.usage;
    json.put_slice(
        format!(
            r#"{{"id":{},"object":"response","created_at":{},"status":"{status}","error":null,"incomplete_details":{details},"model":{},"output":["#,
            items::quoted(envelope.id),
            or(reply.created_at, "0"),
            or(reply.model.or(params.model), "null"),
        )
        .as_bytes(),
    );
    for (at, item) in envelope.output.iter().enumerate() {
        if at > 0 {
            json.put_u8(b',');
        }
        json.put_slice(item);
    }
    json.put_slice(
        format!(
            r#"],"parallel_tool_calls":{},"tool_choice":{},"tools":{},"usage":{{"input_tokens":{input_tokens},"input_tokens_details":{{"cached_tokens":0}},"output_tokens":{output_tokens},"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{}}}}}"#,
            or(params.parallel_tool_calls, "true"),
            or(params.tool_choice, "\"auto\""),
            or(params.tools, "[]"),
            input_tokens.saturating_add(output_tokens),
        )
        .as_bytes(),
    );
    json.freeze()
}
