//! What can go wrong with processes on this machine. Each failure carries the last lines that the process wrote.

use std::{path::PathBuf, time::Duration};

use crate::process::Exit;

/// Why the mesh is not as it was asked to be.
#[derive(Debug, thiserror::Error)]
pub enum LocalMeshError {
    /// The program cannot be started.
    #[error("{label}: {program} cannot be started ({source}); give the path of the belay binary")]
    Spawn {
        /// Which process.
        label: String,
        /// As it was looked for.
        program: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// It ended before it was ready.
    #[error("{label} ended before it was ready: {exit}{tail}")]
    EndedEarly {
        /// Which process.
        label: String,
        /// How.
        exit: Exit,
        /// What it wrote last.
        tail: Tail,
    },
    /// It did not say that it is ready.
    #[error("{label} was not ready within {bound:?}; it was killed{tail}")]
    NotReady {
        /// Which process.
        label: String,
        /// The bound.
        bound: Duration,
        /// What it wrote last.
        tail: Tail,
    },
    /// Its first line is not a ready line.
    #[error(
        "{label} began with {line:?}, which is no ready line ({why}); is this another version of belay?{tail}"
    )]
    NoReadyLine {
        /// Which process.
        label: String,
        /// What it wrote.
        line: String,
        /// What is wrong with it.
        why: String,
        /// What it wrote last.
        tail: Tail,
    },
    /// Its exit was not seen.
    #[error("{label} (pid {pid}) was killed, and its exit was not seen within {bound:?}")]
    ExitNotSeen {
        /// Which process.
        label: String,
        /// Its process id.
        pid: u32,
        /// The bound.
        bound: Duration,
    },
    /// No such process in this mesh.
    #[error("{0} is not in this mesh, or was never started")]
    Unknown(String),
    /// It is not running.
    #[error("{label} is not running: {how}")]
    NotRunning {
        /// Which process.
        label: String,
        /// What became of it.
        how: String,
    },
    /// A signal cannot be sent.
    #[error("{label} (pid {pid}) cannot be signalled: {source}")]
    Signal {
        /// Which process.
        label: String,
        /// Its process id.
        pid: u32,
        /// The system's word.
        source: std::io::Error,
    },
    /// A file or directory of the mesh cannot be written.
    #[error("{path} cannot be written ({source}); choose another directory, or make room there")]
    Write {
        /// Which.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// The mesh did not open.
    #[error("the mesh did not open within {bound:?}: {last}{tail}")]
    NotOpen {
        /// The bound.
        bound: Duration,
        /// What the coordinator said last.
        last: String,
        /// What the processes wrote last.
        tail: Tail,
    },
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(String),
}

/// The last lines of a log, as the end of an error's message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tail {
    /// The log.
    pub path: PathBuf,
    /// Its last lines.
    pub lines: Vec<String>,
}

impl std::fmt::Display for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.lines.is_empty() {
            return write!(f, "; it wrote nothing to {}", self.path.display());
        }
        write!(f, "; the last lines of {}:", self.path.display())?;
        for line in &self.lines {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}
