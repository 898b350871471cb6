//! What can go wrong with a checkpoint on disk, and what to do about it.

use std::{
    io,
    path::{Path, PathBuf},
};

use belay_core::{
    ids::CheckpointId,
    refusal::{Reason, Refusal},
};
use rustix::io::Errno;

/// What went wrong. The text is one line: what, where, what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused an operation.
    #[error("cannot {doing} {}: {source}: {}", path.display(), remedy(source))]
    Io {
        /// The operation, as a verb.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is missing, cut short, altered, foreign, or of a newer format.
    #[error("{} {what}: {}", file.display(), invalid_remedy(*newer, *previous))]
    Invalid {
        /// Which file.
        file: PathBuf,
        /// What differs.
        what: String,
        /// The file is whole, but a newer program wrote it.
        newer: bool,
        /// The newest good checkpoint below this one, where somebody looked for it.
        previous: Option<CheckpointId>,
    },
    /// The write was told to stop. No manifest was left.
    #[error("the write of {} was stopped, and left no manifest", path.display())]
    Stopped {
        /// The participant's directory in the checkpoint.
        path: PathBuf,
    },
    /// A name that never changes is taken by something else.
    #[error("{} is taken: {what}", path.display())]
    Taken {
        /// Which name.
        path: PathBuf,
        /// By what, and what that means.
        what: String,
    },
    /// One frame cannot hold it.
    #[error("{what} is {size} bytes, over the limit of {limit}: leave it out, or make it smaller")]
    TooLarge {
        /// The record or the state.
        what: String,
        /// Its size.
        size: u64,
        /// What is legal.
        limit: u64,
    },
    /// The caller's fault.
    #[error("{0}")]
    Request(String),
    /// A name breaks its rule.
    #[error("{}", .0.message)]
    Name(Refusal),
}

impl StoreError {
    /// The file system refused `doing` on `path`.
    pub fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.into(),
            source,
        }
    }

    /// A read failed: a file that is not there or ends early is an invalid checkpoint, anything else the disk's fault.
    pub fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Self::invalid(path, "is missing"),
            io::ErrorKind::UnexpectedEof => Self::invalid(path, "is cut short"),
            _ => Self::io("read", path)(source),
        }
    }

    /// A file of a checkpoint is not what it should be. `what` continues the sentence that begins with its name.
    pub fn invalid(file: &Path, what: impl Into<String>) -> Self {
        Self::Invalid {
            file: file.into(),
            what: what.into(),
            newer: false,
            previous: None,
        }
    }

    /// Offers a good checkpoint in place of an invalid one.
    #[must_use]
    pub fn offering(self, good: Option<CheckpointId>) -> Self {
        match self {
            Self::Invalid {
                file, what, newer, ..
            } => Self::Invalid {
                file,
                what,
                newer,
                previous: good,
            },
            other => other,
        }
    }

    /// The reason that a call is refused with.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Io { source, .. } => io_reason(source),
            Self::Invalid { .. } => Reason::InvalidCheckpoint,
            Self::Stopped { .. } => Reason::RunAbandoned,
            Self::Taken { .. } => Reason::CheckpointConflict,
            Self::TooLarge { .. } => Reason::RecordTooLarge,
            Self::Request(_) => Reason::InvalidRequest,
            Self::Name(refusal) => refusal.reason,
        }
    }

    /// The file or directory that it is about.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. } | Self::Stopped { path } | Self::Taken { path, .. } => Some(path),
            Self::Invalid { file, .. } => Some(file),
            Self::TooLarge { .. } | Self::Request(_) | Self::Name(_) => None,
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        if let StoreError::Name(refusal) = error {
            return refusal;
        }
        let mut refusal = Refusal::new(error.reason(), error.to_string());
        if let Some(path) = error.path() {
            refusal = refusal.with("path", path.display());
        }
        if let StoreError::Invalid {
            previous: Some(id), ..
        } = error
        {
            refusal = refusal.with("previous", id);
        }
        refusal
    }
}

fn io_reason(error: &io::Error) -> Reason {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC | Errno::DQUOT) => Reason::StorageFull,
        Some(Errno::ROFS) => Reason::StorageReadonly,
        Some(Errno::ACCESS | Errno::PERM) => Reason::StorageDenied,
        _ => Reason::StorageIo,
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match io_reason(error) {
        Reason::StorageFull => "free space there or raise the quota, then try again",
        Reason::StorageReadonly => "mount it writable, or name another root",
        Reason::StorageDenied => {
            "let this process's user write there (the file system must support hard links), or name another root"
        }
        _ => "look at that path and its disk; what was published before is untouched",
    }
}

fn invalid_remedy(newer: bool, previous: Option<CheckpointId>) -> String {
    let done = if newer {
        "read it with the program that wrote it"
    } else {
        "this checkpoint cannot be used"
    };
    match previous {
        Some(id) if newer => format!("{done}, or restore the previous good one, {id}"),
        Some(id) => format!("{done}; restore the previous good one, {id}"),
        None if newer => done.into(),
        None => format!("{done}; restore another one"),
    }
}
