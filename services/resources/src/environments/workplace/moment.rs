//! Points in time as the tables write them: `2023-11-30 23:59:00`, and the shorter forms that a model may write.

/// `YYYY-MM-DD HH:MM:SS` from that, from `YYYY-MM-DD HH:MM` or from `YYYY-MM-DD` (the day's beginning); a `T` may stand for
/// the space. Two of them compare as texts. `None` for what is no such point in time.
pub(super) fn moment(text: &str) -> Option<String> {
    let (date, time) = text
        .trim()
        .split_once([' ', 'T'])
        .unwrap_or((text.trim(), "00:00:00"));
    let [year, month, day] = numbers(date, '-')?[..] else {
        return None;
    };
    let (hour, minute, second) = match numbers(time, ':')?[..] {
        [hour, minute, second] => (hour, minute, second),
        [hour, minute] => (hour, minute, 0),
        _ => return None,
    };
    let real = (1..=12).contains(&month)
        && (1..=days(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60
        && date.len() == 10;
    real.then(|| format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"))
}

/// The `YYYY-MM-DD` of a point in time.
pub(super) fn date(text: &str) -> Option<String> {
    moment(text).map(|mut moment| {
        moment.truncate(10);
        moment
    })
}

fn numbers(text: &str, separator: char) -> Option<Vec<u32>> {
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    text.split(separator)
        .map(|part| part.parse().ok().filter(|_| digits(part)))
        .collect()
}

fn days(year: u32, month: u32) -> u32 {
    match month {
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_read_as_one() {
        for (text, expected) in [
            ("2023-11-30 23:59:00", "2023-11-30 23:59:00"),
            ("2023-11-30T23:59", "2023-11-30 23:59:00"),
            (" 2024-02-29 ", "2024-02-29 00:00:00"),
        ] {
            assert_eq!(moment(text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(date("2023-11-30 10:00").as_deref(), Some("2023-11-30"));
    }

    #[test]
    fn what_is_no_point_in_time_is_none() {
        for text in [
            "",
            "tomorrow",
            "2023-13-01",
            "2023-02-29",
            "2023-1-1",
            "2023-11-30 24:00",
            "2023-11-30 10",
            "2023-11-30 +1:00",
            "2023-11-30 10:00:00:00",
        ] {
            assert_eq!(moment(text), None, "{text}");
        }
    }
}
