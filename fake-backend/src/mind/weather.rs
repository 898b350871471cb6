//! One `get_weather` with the city that the user names, then its output in a sentence.
//!
//! The city: the word `sf` is San Francisco; otherwise the first run of capitalised words that does not begin a sentence;
//! otherwise [`DEFAULT_CITY`].

use super::{Message, Turn, call, say};

const TOOL: &str = "get_weather";

/// Where the user names no city.
const DEFAULT_CITY: &str = "San Francisco";

pub(super) fn answer(turn: &Turn<'_>) -> Option<Message> {
    if !turn.has_tool(TOOL) {
        return None;
    }
    let city = city(turn.user);
    if turn.calls().next().is_none() {
        let arguments = serde_json::json!({ "city": city });
        return Some(call(TOOL, arguments.to_string()));
    }
    let output = turn.last_output().unwrap_or("nothing");
    Some(say(format!("The weather in {city}: {output}")))
}

fn city(text: &str) -> String {
    let mut run: Vec<&str> = Vec::new();
    let mut sentence_begins = true;
    for raw in text.split_whitespace() {
        let word = bare(raw);
        if word.eq_ignore_ascii_case("sf") {
            return "San Francisco".into();
        }
        let capitalised = word.chars().count() > 1 && word.starts_with(char::is_uppercase);
        if capitalised && !sentence_begins {
            run.push(word);
        }
        let run_ends = !capitalised || raw.ends_with(|c: char| c.is_ascii_punctuation());
        if run_ends && !run.is_empty() {
            break;
        }
        sentence_begins = raw.ends_with(['.', '!', '?']);
    }
    if run.is_empty() {
        DEFAULT_CITY.into()
    } else {
        run.join(" ")
    }
}

/// Without punctuation around it, and without what follows an apostrophe.
fn bare(raw: &str) -> &str {
    let word = raw.trim_matches(|c: char| !c.is_alphanumeric());
    word.split(['\'', '’']).next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{asked, play};
    use super::*;

    #[test]
    fn cities_are_read_from_the_text() {
        for (text, expected) in [
            ("what's the weather in San Francisco?", "San Francisco"),
            ("how hot is it in New York today?", "New York"),
            ("is it raining in London right now?", "London"),
            ("humidity in sf", "San Francisco"),
            ("Tell me. How is New York's weather, Sam?", "New York"),
            ("is it cold where I live, in Boston, I'm asking", "Boston"),
            ("Wie warm ist es in Zürich?", "Zürich"),
            ("how's the outside?", DEFAULT_CITY),
            ("", DEFAULT_CITY),
        ] {
            assert_eq!(city(text), expected, "{text:?}");
        }
    }

    #[test]
    fn one_call_then_a_sentence() {
        let replies = play(asked(&["get_weather"], "", "weather in Tokyo please"), |call| {
            assert_eq!(call.arguments, r#"{"city":"Tokyo"}"#);
            "cold".into()
        });
        assert_eq!(replies.len(), 2);
        assert_eq!(replies[1].text, "The weather in Tokyo: cold");
    }
}
