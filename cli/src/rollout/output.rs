//! The results file: a line per finished rollout, on disk before the result is acknowledged.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use belay_core::ids::hex;
use belay_proto::episode::{FinishReason, RunResponse, TrajectoryRow, Usage};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::tasks::Task;

/// What to do with a results file that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Existing {
    /// Say so, and stop.
    Refuse,
    /// Write it anew.
    Overwrite,
    /// Go on after its last line.
    Resume,
}

/// A results file that is being written.
pub struct Results {
    file: File,
    path: PathBuf,
    /// Rollouts that were in the file.
    pub done: BTreeSet<String>,
    /// Names the run in the ids of rows that have none: the same for a run that is resumed.
    pub run: String,
}

#[derive(Serialize)]
struct Line<'a> {
    rollout_id: &'a str,
    attempt: u32,
    line: usize,
    environment: &'a str,
    reward: f64,
    response: &'a RawValue,
    verification: &'a RawValue,
    usage: LineUsage,
    model_calls: u32,
    tool_calls: u32,
    restored: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    trajectory: Option<Vec<LineCall>>,
}

#[derive(Serialize)]
struct LineUsage {
    input_tokens: u64,
    output_tokens: u64,
}

/// One model call of a trajectory, in the results file.
#[derive(Serialize)]
struct LineCall {
    turn: u32,
    attempt: u32,
    execution: String,
    prompt_token_ids: Vec<u32>,
    token_ids: Vec<u32>,
    logprobs: Vec<f32>,
    weights: Vec<(u32, String)>,
    finish_reason: &'static str,
    parent: String,
    chain_hash: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    masked_because: String,
}

#[derive(Deserialize)]
struct DoneLine {
    rollout_id: String,
}

impl Results {
    /// Opens the file for writing.
    pub fn open(path: &Path, existing: Existing) -> anyhow::Result<Self> {
        let cannot = || format!("the results file {} cannot be written", path.display());
        if existing == Existing::Overwrite && path.exists() {
            // A new file, not the old one emptied: it is another run.
            std::fs::remove_file(path).with_context(cannot)?;
        }
        let mut options = OpenOptions::new();
        options.write(true);
        match existing {
            Existing::Refuse | Existing::Overwrite => options.create_new(true),
            Existing::Resume => options.create(true).append(true),
        };
        if existing == Existing::Resume {
            cut_torn_line(path)?;
        }
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "{} is there already: --resume goes on after its last line, --overwrite writes it anew, or choose another --out",
                path.display()
            ),
            Err(error) => return Err(error).with_context(cannot),
        };
        let done = if existing == Existing::Resume {
            done_in(path)?
        } else {
            BTreeSet::new()
        };
        let run = match done
            .iter()
            .find_map(|id| id.split('.').next()?.rsplit_once('-').map(|(_, run)| run))
        {
            Some(run) if is_run(run) => run.to_owned(),
            _ => run_of(path, &file),
        };
        Ok(Self {
            file,
            path: path.into(),
            done,
            run,
        })
    }

    /// Adds a result, and has it on disk when it returns.
    pub fn add(
        &mut self,
        task: &Task,
        result: &RunResponse,
        trajectory: Option<Vec<TrajectoryRow>>,
    ) -> anyhow::Result<()> {
        let cannot = || format!("the results file {} cannot be written", self.path.display());
        let raw = |what: &str, bytes: &[u8]| -> anyhow::Result<Box<RawValue>> {
            let text = if bytes.is_empty() {
                b"null".into()
            } else {
                on_one_line(bytes)
            };
            serde_json::from_slice(&text).with_context(|| format!("{}: the {what} is not JSON", task.rollout))
        };
        let Usage {
            input_tokens,
            output_tokens,
        } = result.usage.unwrap_or_default();
        let line = Line {
            rollout_id: task.rollout.as_str(),
            attempt: result.episode.as_ref().map_or(0, |episode| episode.attempt),
            line: task.line,
            environment: &task.environment,
            reward: result.reward,
            response: &raw("response", &result.response)?,
            verification: &raw("verification", &result.verification)?,
            usage: LineUsage {
                input_tokens,
                output_tokens,
            },
            model_calls: result.model_calls,
            tool_calls: result.tool_calls,
            restored: result.restored,
            trajectory: trajectory.map(|rows| rows.into_iter().map(line_call).collect()),
        };
        let mut text = serde_json::to_vec(&line).with_context(cannot)?;
        text.push(b'\n');
        self.file.write_all(&text).with_context(cannot)?;
        self.file.sync_data().with_context(cannot)
    }
}

const RUN_LENGTH: usize = 8;

fn is_run(text: &str) -> bool {
    text.len() == RUN_LENGTH && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A run is named by its results file, and the file by its path and the moment it was made. A name, not a decision: where a file
/// system does not know the moment, the file's number stands in.
fn run_of(path: &Path, file: &File) -> String {
    use std::os::unix::fs::MetadataExt as _;
    let made = file.metadata().map(|meta| (meta.created().ok(), meta.ino()));
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut name = hex(blake3::hash(format!("{path:?} {made:?}").as_bytes()).as_bytes());
    name.truncate(RUN_LENGTH);
    name
}

/// JSON on one line: a line break in it is white space between tokens, for a string cannot hold one.
fn on_one_line(json: &[u8]) -> Cow<'_, [u8]> {
    let breaks = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if json.iter().any(breaks) {
        json.iter()
            .map(|byte| if breaks(byte) { b' ' } else { *byte })
            .collect()
    } else {
        json.into()
    }
}

/// Cuts a last line without an end off: a crash broke it, so its result was not acknowledged and comes again.
fn cut_torn_line(path: &Path) -> anyhow::Result<()> {
    let cannot = || format!("the results file {} cannot be mended", path.display());
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(cannot),
    };
    let length = file.metadata().with_context(cannot)?.len();
    let mut end = length;
    let mut block = [0; 4096];
    while end > 0 {
        let begin = end.saturating_sub(block.len() as u64);
        let part = &mut block[..(end - begin) as usize];
        file.seek(SeekFrom::Start(begin)).with_context(cannot)?;
        file.read_exact(part).with_context(cannot)?;
        if let Some(last) = part.iter().rposition(|byte| *byte == b'\n') {
            end = begin + last as u64 + 1;
            break;
        }
        end = begin;
    }
    if end < length {
        file.set_len(end).with_context(cannot)?;
        file.sync_all().with_context(cannot)?;
    }
    Ok(())
}

/// Rollouts that are in a file. A line that does not read is no result.
fn done_in(path: &Path) -> anyhow::Result<BTreeSet<String>> {
    let file =
        File::open(path).with_context(|| format!("the results file {} cannot be read", path.display()))?;
    let mut done = BTreeSet::new();
    for line in BufReader::new(file).lines() {
        let line = line.with_context(|| format!("the results file {} cannot be read", path.display()))?;
        if let Ok(read) = serde_json::from_str::<DoneLine>(&line) {
            done.insert(read.rollout_id);
        }
    }
    Ok(done)
}

fn line_call(row: TrajectoryRow) -> LineCall {
    let finish_reason = match row.finish_reason() {
        FinishReason::Unspecified => "unknown",
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
    };
    LineCall {
        turn: row.operation.unwrap_or_default().turn,
        attempt: row.episode.as_ref().map_or(0, |episode| episode.attempt),
        execution: row.execution,
        prompt_token_ids: row.prompt_token_ids,
        token_ids: row.token_ids,
        logprobs: row.logprobs,
        weights: row
            .weights
            .into_iter()
            .map(|span| (span.tokens, span.version))
            .collect(),
        finish_reason,
        parent: hex(&row.parent),
        chain_hash: hex(&row.chain_hash),
        masked_because: row.masked_because,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str) -> Task {
        Task {
            line: 1,
            rollout: belay_core::ids::RolloutId::new(id).unwrap(),
            environment: "counter".into(),
            row: "{}".into(),
        }
    }

    fn result() -> RunResponse {
        RunResponse {
            reward: 1.0,
            response: r#"{"b":1e400,"a":12345678901234567890}"#.into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_result_is_one_line_whatever_its_json_looks_like() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.jsonl");
        let mut results = Results::open(&path, Existing::Resume).unwrap();
        let pretty = RunResponse {
            response: "{\n  \"a\": \"x\\ny\"\r\n}\n".into(),
            verification: "{\n}".into(),
            ..Default::default()
        };
        results.add(&task("a"), &pretty, None).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.contains(r#"{   "a": "x\ny"  }"#), "{text}");
    }

    #[test]
    fn a_file_that_is_one_torn_line_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.jsonl");
        std::fs::write(&path, "{\"rollout_id\": \"a\", \"rew").unwrap();
        assert!(Results::open(&path, Existing::Resume).unwrap().done.is_empty());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }

    #[test]
    fn lines_keep_their_bytes_and_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.jsonl");
        let mut results = Results::open(&path, Existing::Refuse).unwrap();
        results.add(&task("a"), &result(), None).unwrap();
        results
            .add(&task("b"), &result(), Some(vec![TrajectoryRow::default()]))
            .unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.contains(r#""response":{"b":1e400,"a":12345678901234567890}"#),
            "{text}"
        );
        std::fs::write(&path, format!("{text}{{\"rollout_id\": \"torn")).unwrap();
        let resumed = Results::open(&path, Existing::Resume).unwrap();
        assert_eq!(resumed.run, results.run);
        assert_eq!(resumed.done, ["a", "b"].map(String::from).into());
        let refused = Results::open(&path, Existing::Refuse).err().unwrap().to_string();
        assert!(refused.contains("--resume"), "{refused}");
        let overwritten = Results::open(&path, Existing::Overwrite).unwrap();
        assert!(overwritten.done.is_empty());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}
