//! The synonyms task: which term does the query mean, what are the values of its synonyms?
//!
//! The instructions list `The term 'X' has a synonym 'Y'.` and work one example (`the term you should focus on is "x"`).
//! The rule that chooses the term reads nothing else:
//!
//! 1. Every place where the query says a term or one of its synonyms, as whole words, is one vote for that term; two if
//!    the query ends there, as the worked example's does ("I'm very warm").
//! 2. The term of the worked example has one vote from the instructions.
//! 3. Most votes win; among equals the worked example's term, then the one listed first.
//!
//! So "I'm very cold" means Cold, "extremely high temperatures" (High, but only in passing) means the example's term.

use super::{Message, Turn, call, integer_in, say};
use crate::conversation::Role;

const VALUE: &str = "get_synonym_value";
const EXTRACT: &str = "extract_synonym_values";

pub(super) fn answer(turn: &Turn<'_>) -> Option<Message> {
    if !turn.has_tool(VALUE) || !turn.has_tool(EXTRACT) {
        return None;
    }
    let instructions = Instructions::read(turn)?;
    let term = instructions.term_for(turn.user)?;
    let synonyms = instructions.synonyms_of(term);
    if turn.calls().any(|made| made.name == EXTRACT) {
        let values = joined(turn);
        return Some(say(format!(
            "The values of the synonyms of {term} are [{values}]."
        )));
    }
    let asked = turn.calls().filter(|made| made.name == VALUE).count();
    Some(match synonyms.get(asked) {
        Some(synonym) => call(VALUE, serde_json::json!({ "synonym": synonym }).to_string()),
        None => call(EXTRACT, format!("{{\"synonym_values\":[{}]}}", joined(turn))),
    })
}

fn joined(turn: &Turn<'_>) -> String {
    let values: Vec<String> = turn
        .outputs_of(VALUE)
        .filter_map(integer_in)
        .map(|value| value.to_string())
        .collect();
    values.join(",")
}

struct Instructions<'a> {
    pairs: Vec<(&'a str, &'a str)>,
    example: Option<&'a str>,
}

impl<'a> Instructions<'a> {
    fn read(turn: &Turn<'a>) -> Option<Self> {
        let system = || {
            let messages = turn.conversation.messages.iter();
            messages
                .filter(|m| m.role == Role::System)
                .map(|m| m.text.as_str())
        };
        let pairs: Vec<_> = system()
            .flat_map(str::lines)
            .filter_map(|line| {
                let (term, rest) = line
                    .trim()
                    .strip_prefix("The term '")?
                    .split_once("' has a synonym '")?;
                Some((term, rest.strip_suffix("'.")?))
            })
            .collect();
        let example = system().find_map(|text| {
            let (_, rest) = text.split_once("the term you should focus on is \"")?;
            Some(rest.split_once('"')?.0)
        });
        (!pairs.is_empty()).then_some(Self { pairs, example })
    }

    fn synonyms_of(&self, term: &str) -> Vec<&'a str> {
        let of_term = self.pairs.iter().filter(|(t, _)| *t == term);
        of_term.map(|(_, synonym)| *synonym).collect()
    }

    fn term_for(&self, query: &str) -> Option<&'a str> {
        let query = words(query);
        let mut best: Option<(&'a str, (usize, bool))> = None;
        for (at, (term, _)) in self.pairs.iter().enumerate() {
            if self.pairs[..at].iter().any(|(earlier, _)| earlier == term) {
                continue;
            }
            let in_example = self.example.is_some_and(|e| words(e) == words(term));
            let names = std::iter::once(*term).chain(self.synonyms_of(term));
            let votes: usize = names.map(|name| votes(&query, &words(name))).sum();
            let score = (votes + usize::from(in_example), in_example);
            if best.is_none_or(|(_, so_far)| score > so_far) {
                best = Some((term, score));
            }
        }
        best.map(|(term, _)| term)
    }
}

fn votes(query: &[String], name: &[String]) -> usize {
    if name.is_empty() {
        return 0;
    }
    let places = query.windows(name.len()).filter(|place| *place == name).count();
    places + usize::from(query.ends_with(name))
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{asked, play};

    const LIST: &str = "# Available synonyms\nThe term 'Cold' has a synonym 'Icy'.\nThe term 'Hot' has a synonym 'Blazing'.\n\
        The term 'High' has a synonym 'Soaring'.\nThe term 'Hot' has a synonym 'Warm'.\nThe term 'Up' has a synonym 'Go up'.";
    const EXAMPLE: &str =
        "\nif the user query is \"I'm very warm\", the term you should focus on is \"hot\".";

    fn asked_for(system: &str, query: &str) -> Vec<String> {
        let tools = ["get_synonym_value", "extract_synonym_values"];
        let mut next = 0;
        let mut extracted = None;
        let mut synonyms = Vec::new();
        let replies = play(asked(&tools, system, query), |call| {
            let args: serde_json::Value = serde_json::from_str(&call.arguments).expect("JSON");
            if call.name == "get_synonym_value" {
                synonyms.push(args["synonym"].as_str().expect("a string").to_owned());
                next += 5;
                format!(r#"{{"synonym_value": {next}}}"#)
            } else {
                extracted = Some(args["synonym_values"].to_string());
                r#"{"success": true}"#.into()
            }
        });
        assert_eq!(replies.len(), synonyms.len() + 2, "one call a turn");
        let values: Vec<_> = (1..=synonyms.len()).map(|n| n * 5).collect();
        assert_eq!(extracted, Some(serde_json::json!(values).to_string()));
        synonyms
    }

    #[test]
    fn the_term_is_chosen_by_votes() {
        let with_example = format!("{LIST}{EXAMPLE}");
        for (query, synonyms) in [
            ("I'm very warm", &["Blazing", "Warm"][..]),
            ("I'm very cold!", &["Icy"]),
            (
                "what brings extremely high temperatures about?",
                &["Blazing", "Warm"],
            ),
            ("how does heat harm devices?", &["Blazing", "Warm"]),
            ("let us go up", &["Go up"]),
            ("an icy, cold night", &["Icy"]),
        ] {
            assert_eq!(asked_for(&with_example, query), synonyms, "{query:?}");
        }
        assert_eq!(
            asked_for(LIST, "the highest"),
            ["Icy"],
            "nothing said: the first listed"
        );
    }
}
