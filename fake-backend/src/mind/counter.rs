//! `add 4 then add 5 then get the count`: the calls that the text asks for, one a turn, in its order.
//!
//! How far it has come is the number of tool calls made since.

use super::{Message, Turn, call, integer_in, say};

const ADD: &str = "increment_counter";
const GET: &str = "get_counter_value";

pub(super) fn answer(turn: &Turn<'_>) -> Option<Message> {
    if !turn.has_tool(ADD) {
        return None;
    }
    let steps = steps(turn.user);
    if steps.is_empty() {
        return None;
    }
    Some(match steps.get(turn.calls().count()) {
        Some(step) => step.clone(),
        None => summary(turn),
    })
}

fn steps(text: &str) -> Vec<Message> {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower
        .split(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | '.'))
        .filter(|word| !word.is_empty())
        .collect();
    let mut steps = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let rest = &words[at + 1..];
        match (*word, rest) {
            ("add", [number, ..]) if is_integer(number) => {
                steps.push(call(ADD, format!("{{\"count\":{number}}}")));
            }
            ("get", ["the", "count", ..]) => steps.push(call(GET, "{}")),
            _ => {}
        }
    }
    steps
}

fn is_integer(word: &str) -> bool {
    let digits = word.strip_prefix('-').unwrap_or(word);
    let no_zero_ahead = digits == "0" || !digits.starts_with('0');
    !digits.is_empty() && no_zero_ahead && digits.bytes().all(|b| b.is_ascii_digit())
}

fn summary(turn: &Turn<'_>) -> Message {
    match turn.outputs_of(GET).last() {
        Some(output) => match integer_in(output) {
            Some(count) => say(format!("The count is {count}.")),
            None => say(format!("The counter said: {output}")),
        },
        None => say("Added."),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        answer,
        tests::{asked, play},
    };
    use crate::conversation::{Message, Role};

    #[test]
    fn adds_in_order_then_gets_then_tells() {
        let mut count = 6i64;
        let replies = play(
            asked(
                &["increment_counter", "get_counter_value"],
                "",
                "add 4 then add 5 then get the count",
            ),
            |call| match call.name.as_str() {
                "increment_counter" => {
                    let by: serde_json::Value = serde_json::from_str(&call.arguments).expect("JSON");
                    count += by["count"].as_i64().expect("a number");
                    r#"{"success": true}"#.into()
                }
                _ => format!(r#"{{"count": {count}}}"#),
            },
        );
        assert_eq!(replies.len(), 4);
        assert_eq!(replies[0].calls[0].arguments, r#"{"count":4}"#);
        assert_eq!(replies[3].text, "The count is 15.");
    }

    #[test]
    fn a_second_request_starts_over() {
        let mut said = asked(
            &["increment_counter", "get_counter_value"],
            "",
            "add 1 then get the count",
        );
        for _ in 0..2 {
            let reply = answer(&said);
            said.messages.push(reply);
            said.messages.push(Message::text(Role::Tool, r#"{"count": 1}"#));
        }
        said.messages
            .push(Message::text(Role::Assistant, "The count is 1."));
        said.messages
            .push(Message::text(Role::User, "Add -7, get the count."));
        assert_eq!(answer(&said).calls[0].arguments, r#"{"count":-7}"#);
    }

    #[test]
    fn an_output_that_is_no_count_is_told_as_it_is() {
        let replies = play(asked(&["increment_counter"], "", "get the count"), |_| {
            "session lost".into()
        });
        assert_eq!(replies[1].text, "The counter said: session lost");
    }
}
