//! A file system that fails when told to, counts what it does, and notices a rule that is broken: for tests of this crate
//! and of whoever must live with a bad disk.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::fs::{DirEntry, FileSystem, ReadableFile, WritableFile};

/// The operations of a [`FileSystem`] and of its files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// A new file.
    Create,
    /// Bytes into a file.
    Write,
    /// A file made durable.
    SyncFile,
    /// A second name.
    Link,
    /// A name in place of another.
    Rename,
    /// A new directory.
    CreateDir,
    /// A directory's names made durable.
    SyncDir,
    /// A file opened to be read.
    Open,
    /// Bytes from a file.
    Read,
    /// A directory listed.
    ReadDir,
    /// A file's name removed.
    RemoveFile,
    /// A directory removed.
    RemoveDir,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Create,
        Self::Write,
        Self::SyncFile,
        Self::Link,
        Self::Rename,
        Self::CreateDir,
        Self::SyncDir,
        Self::Open,
        Self::Read,
        Self::ReadDir,
        Self::RemoveFile,
        Self::RemoveDir,
    ];
}

#[derive(Debug, Default)]
struct State {
    /// Which call of an operation fails (from 0; `None`: each), and how.
    faults: BTreeMap<Op, (Option<u64>, i32)>,
    counts: BTreeMap<Op, u64>,
    bytes_read: u64,
    bytes_written: u64,
    /// New files whose sync failed: none of them may get a name.
    bad: HashSet<PathBuf>,
    violations: Vec<String>,
}

/// Passes each operation on, unless it is to fail. Clones share what they are told and what they count.
#[derive(Clone, Debug)]
pub struct FailingFs {
    inner: Arc<dyn FileSystem>,
    state: Arc<Mutex<State>>,
    /// While it is there, the disk is full.
    full_while: Option<PathBuf>,
}

/// What a full disk says.
const ENOSPC: i32 = 28;

impl FailingFs {
    /// Fails nothing yet.
    pub fn new(inner: impl FileSystem) -> Self {
        Self {
            inner: Arc::new(inner),
            state: Arc::default(),
            full_while: None,
        }
    }

    /// A disk that is full (ENOSPC for each write) as long as this path exists, so that another process can fill and clear it.
    pub fn full_while(inner: impl FileSystem, path: impl Into<PathBuf>) -> Self {
        Self {
            full_while: Some(path.into()),
            ..Self::new(inner)
        }
    }

    /// The `nth` call (from 0, counted from now) of an operation fails with an errno; later ones do not.
    pub fn fail_nth(&self, op: Op, nth: u64, errno: i32) {
        let mut state = self.lock();
        let done = state.counts.get(&op).copied().unwrap_or(0);
        state.faults.insert(op, (Some(done + nth), errno));
    }

    /// Each call of an operation fails with an errno.
    pub fn fail_all(&self, op: Op, errno: i32) {
        self.lock().faults.insert(op, (None, errno));
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// How often an operation was called.
    pub fn count(&self, op: Op) -> u64 {
        self.lock().counts.get(&op).copied().unwrap_or(0)
    }

    /// Bytes that were read from files.
    pub fn bytes_read(&self) -> u64 {
        self.lock().bytes_read
    }

    /// Bytes that were written to files.
    pub fn bytes_written(&self) -> u64 {
        self.lock().bytes_written
    }

    /// Names that were given to a file after its sync had failed.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, op: Op) -> io::Result<()> {
        if op == Op::Write && self.full_while.as_ref().is_some_and(|path| path.exists()) {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        let mut state = self.lock();
        let count = state.counts.entry(op).or_default();
        let this = *count;
        *count += 1;
        match state.faults.get(&op) {
            Some((nth, errno)) if nth.is_none_or(|nth| nth == this) => {
                Err(io::Error::from_raw_os_error(*errno))
            }
            _ => Ok(()),
        }
    }

    fn check_good(&self, path: &Path, what: &str) {
        let mut state = self.lock();
        if state.bad.contains(path) {
            let violation = format!("{what} {} after its sync had failed", path.display());
            state.violations.push(violation);
        }
    }
}

impl FileSystem for FailingFs {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        self.step(Op::Create)?;
        let file = self.inner.create_new(path)?;
        self.lock().bad.remove(path);
        Ok(Box::new(Writable {
            file,
            path: path.into(),
            fs: self.clone(),
        }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadableFile>> {
        self.step(Op::Open)?;
        Ok(Box::new(Readable {
            file: self.inner.open(path)?,
            fs: self.clone(),
        }))
    }

    fn link(&self, existing: &Path, new: &Path) -> io::Result<()> {
        self.check_good(existing, "link of");
        self.step(Op::Link)?;
        self.inner.link(existing, new)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_good(from, "rename of");
        self.step(Op::Rename)?;
        self.inner.rename(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.step(Op::CreateDir)?;
        self.inner.create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step(Op::SyncDir)?;
        self.inner.sync_dir(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.step(Op::ReadDir)?;
        self.inner.read_dir(path)
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.inner.is_dir(path)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.step(Op::RemoveFile)?;
        self.inner.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.step(Op::RemoveDir)?;
        self.inner.remove_dir(path)
    }
}

struct Writable {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    fs: FailingFs,
}

impl WritableFile for Writable {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.fs.step(Op::Write) {
            // As a full disk does: some of it arrives.
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.file.write_all(bytes)?;
        self.fs.lock().bytes_written += bytes.len() as u64;
        Ok(())
    }

    fn sync(self: Box<Self>) -> io::Result<()> {
        let Self { file, path, fs } = *self;
        let synced = fs.step(Op::SyncFile).and_then(|()| file.sync());
        if synced.is_err() {
            fs.lock().bad.insert(path);
        }
        synced
    }
}

struct Readable {
    file: Box<dyn ReadableFile>,
    fs: FailingFs,
}

impl ReadableFile for Readable {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.fs.step(Op::Read)?;
        self.file.read_exact_at(buffer, offset)?;
        self.fs.lock().bytes_read += buffer.len() as u64;
        Ok(())
    }

    fn sync(self: Box<Self>) -> io::Result<()> {
        self.fs.step(Op::SyncFile)?;
        self.file.sync()
    }
}
