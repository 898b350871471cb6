//! A file for what each process writes, and its last lines.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
};

use crate::error::Tail;

/// Lines that an error carries.
const LINES: usize = 15;
/// How far back they are looked for.
const LOOK_BACK: u64 = 16 << 10;

/// Opens a log to go on after what is there: a restarted process writes to the same file.
pub fn open(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

/// The last lines of a log. A log that cannot be read has none: it must not hide the error that it belongs to.
pub fn tail(path: &Path) -> Tail {
    Tail {
        path: path.to_owned(),
        lines: last_lines(path).unwrap_or_default(),
    }
}

fn last_lines(path: &Path) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOOK_BACK)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(LINES);
    Ok(lines[from..].iter().map(|line| (*line).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_tail_is_the_last_lines_over_restarts() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("logs/a.log");
        for part in 0..2 {
            let mut file = open(&path).expect("a log");
            for line in 0..1000 {
                writeln!(file, "{part} {line}").expect("written");
            }
        }
        let tail = tail(&path);
        assert_eq!(tail.lines.len(), LINES);
        assert_eq!(tail.lines.last().map(String::as_str), Some("1 999"));
        assert_eq!(super::tail(&dir.path().join("none")).lines, Vec::<String>::new());
    }
}
