//! A script for tests: the user's text tells the engine what to answer.
//!
//! The text is `script:` and then JSON objects, one a line (or one after the other). Each is a reply:
//!
//! | field | what |
//! | --- | --- |
//! | `say` | the reply's text |
//! | `times` | say it so many times over, for long replies |
//! | `think` | reasoning before it; alone it makes a reply of nothing but reasoning |
//! | `call`, `args` | a tool call, with arguments of any JSON, passed on byte by byte; default `{}` |
//! | `call`, `raw_args` | a tool call whose arguments are this text, JSON or not |
//! | `calls` | several tool calls at once: a list of objects with `call` and `args` or `raw_args` |
//! | none (`{}`) | an empty reply |
//!
//! The step is picked by the number of replies given since the script: a run of assistant's messages with nothing between
//! them is one reply. After the last step the engine says `Script over.`

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Message, Role, ToolCall, Turn, say};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    say: Option<String>,
    times: Option<usize>,
    think: Option<String>,
    call: Option<String>,
    args: Option<Box<RawValue>>,
    raw_args: Option<String>,
    #[serde(default)]
    calls: Vec<Call>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    call: String,
    args: Option<Box<RawValue>>,
    raw_args: Option<String>,
}

pub(super) fn answer(turn: &Turn<'_>) -> Option<Message> {
    let script = turn.user.strip_prefix("script:")?;
    let mut steps = serde_json::Deserializer::from_str(script).into_iter::<Step>();
    Some(match steps.nth(replies(turn.since)) {
        Some(Ok(step)) => reply(step),
        Some(Err(error)) => say(format!("The script cannot be read: {error}")),
        None => say("Script over."),
    })
}

fn replies(since: &[Message]) -> usize {
    let mut before = None;
    since
        .iter()
        .filter(|message| {
            let begins = message.role == Role::Assistant && before != Some(Role::Assistant);
            before = Some(message.role);
            begins
        })
        .count()
}

fn reply(step: Step) -> Message {
    let mut message = say(step.say.unwrap_or_default().repeat(step.times.unwrap_or(1)));
    message.reasoning = step.think.unwrap_or_default();
    let first = step.call.map(|call| Call {
        call,
        args: step.args,
        raw_args: step.raw_args,
    });
    message.calls = first
        .into_iter()
        .chain(step.calls)
        .map(|call| ToolCall {
            name: call.call,
            arguments: call
                .raw_args
                .or_else(|| call.args.map(|raw| raw.get().to_owned()))
                .unwrap_or_else(|| "{}".into()),
        })
        .collect();
    message
}

#[cfg(test)]
mod tests {
    use super::super::{
        answer,
        tests::{asked, play},
    };
    use crate::conversation::ToolCall;

    #[test]
    fn steps_in_order_then_the_end() {
        let script = r#"script:
            {"think":"hm","say":"ü","times":2,"call":"a","args":{"b": 1e400, "a":[ ]}}
            {"calls":[{"call":"x"},{"call":"y","raw_args":"{\"n\":"}]}"#;
        let replies = play(asked(&["a", "x", "y"], "", script), |_| "out".into());
        let call = |name: &str, arguments: &str| ToolCall {
            name: name.into(),
            arguments: arguments.into(),
        };
        assert_eq!(replies.len(), 3);
        assert_eq!(
            (replies[0].reasoning.as_str(), replies[0].text.as_str()),
            ("hm", "üü")
        );
        assert_eq!(replies[0].calls, [call("a", r#"{"b": 1e400, "a":[ ]}"#)]);
        assert_eq!(replies[1].calls, [call("x", "{}"), call("y", r#"{"n":"#)]);
        assert_eq!(replies[2].text, "Script over.");
    }

    #[test]
    fn replies_of_nothing_and_of_reasoning_alone() {
        let reply = answer(&asked(&[], "", "script: {}"));
        assert_eq!(
            (reply.text.as_str(), reply.reasoning.as_str(), reply.calls.len()),
            ("", "", 0)
        );
        let reply = answer(&asked(&[], "", r#"script: {"think":"so"}"#));
        assert_eq!(
            (reply.text.as_str(), reply.reasoning.as_str(), reply.calls.len()),
            ("", "so", 0)
        );
    }

    #[test]
    fn a_script_that_cannot_be_read_says_so() {
        let reply = answer(&asked(&[], "", r#"script: {"sya":"x"}"#));
        assert!(
            reply
                .text
                .starts_with("The script cannot be read: unknown field `sya`"),
            "{}",
            reply.text
        );
    }
}
