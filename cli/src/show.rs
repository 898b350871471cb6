//! How figures read on a terminal.

use std::{
    fmt::Arguments,
    io::{ErrorKind, Write as _},
    time::Duration,
};

use comfy_table::{ContentArrangement, Table, presets::NOTHING};

/// One line of a command's answer. Where nobody reads it any more (`belay status | head`), the command is over.
pub fn line(text: Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}") {
        std::process::exit(i32::from(error.kind() != ErrorKind::BrokenPipe));
    }
}

/// As `println!`, without its panic.
macro_rules! say {
    ($($text:tt)*) => { $crate::show::line(format_args!($($text)*)) };
}
pub(crate) use say;

/// A wire duration as a duration; unset and negative read as zero.
pub fn from_wire(duration: Option<prost_types::Duration>) -> Duration {
    duration
        .and_then(|d| Duration::try_from(d).ok())
        .unwrap_or_default()
}

/// `850 µs`, `12.3 ms`, `4.56 s`, `3 min 20 s`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 60.0 => format!("{s:.2} s"),
        s => format!("{} min {} s", s as u64 / 60, s as u64 % 60),
    }
}

/// Milliseconds with three decimals, for JSON.
pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// `812 B`, `3.4 kB`, `12.0 MB`.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        b if b < 1_000 => format!("{b} B"),
        b if b < 1_000_000 => format!("{:.1} kB", b as f64 / 1e3),
        b if b < 1_000_000_000 => format!("{:.1} MB", b as f64 / 1e6),
        b => format!("{:.2} GB", b as f64 / 1e9),
    }
}

/// An error and its causes in one line. A cause that an error already tells in its own words is not told again.
pub fn causes(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            let between = if line.is_empty() { "" } else { ": " };
            line += &format!("{between}{cause}");
        }
    }
    line
}

/// A count with its noun: `1 episode`, `64 episodes`.
pub fn count(n: u64, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}

/// A table without borders, its columns as wide as they need.
pub fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause = std::io::Error::other("no space");
        let told = anyhow::Error::new(cause).context("cannot write x (no space); free some");
        assert_eq!(causes(&told), "cannot write x (no space); free some");
        let told = anyhow::Error::msg("no space").context("cannot write x");
        assert_eq!(causes(&told), "cannot write x: no space");
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(duration(Duration::from_micros(850)), "850 µs");
        assert_eq!(duration(Duration::from_micros(12_300)), "12.3 ms");
        assert_eq!(duration(Duration::from_millis(4_560)), "4.56 s");
        assert_eq!(duration(Duration::from_secs(200)), "3 min 20 s");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(3_400), "3.4 kB");
        assert_eq!(bytes(12_000_000), "12.0 MB");
        assert_eq!(count(1, "episode"), "1 episode");
        assert_eq!(count(0, "episode"), "0 episodes");
    }
}
