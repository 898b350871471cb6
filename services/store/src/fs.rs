//! The few operations of a file system that a checkpoint needs, as a trait, so that tests can make each one fail.

use std::{
    ffi::OsString,
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
};

/// A file system. Every operation says exactly what the disk says; what it means is decided by the callers.
pub trait FileSystem: fmt::Debug + Send + Sync + 'static {
    /// Makes a file that is not there yet.
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn WritableFile>>;
    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadableFile>>;
    /// Gives a file a second name. Fails when the name is taken: it never overwrites.
    fn link(&self, existing: &Path, new: &Path) -> io::Result<()>;
    /// Gives a file another name, in place of what stood there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes one directory. Fails when the name is taken.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, in any order.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>>;
    /// Whether a directory is there, under this very path or through a link.
    fn is_dir(&self, path: &Path) -> bool;
    /// Removes a file's name.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: OsString,
    /// It is a directory itself (a symbolic link is none).
    pub is_dir: bool,
}

/// A new file.
pub trait WritableFile: Send {
    /// Appends all of the bytes.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes what was written durable. It takes the file: after an error the file is not good again, whatever a second
    /// sync would say, so there is no second one.
    fn sync(self: Box<Self>) -> io::Result<()>;
}

/// A file to read at any place.
pub trait ReadableFile: Send {
    /// Bytes in it.
    fn size(&self) -> io::Result<u64>;
    /// Fills the buffer from `offset`. `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// Makes the file durable, as it stands, and forgets what is cached of it, so that the next read asks the disk: after an
    /// earlier sync that failed, a good one promises nothing, but what is read is true.
    fn sync(self: Box<Self>) -> io::Result<()>;
}

/// The machine's own file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

impl FileSystem for RealFs {
    fn create_new(&self, path: &Path) -> io::Result<Box<dyn WritableFile>> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadableFile>> {
        Ok(Box::new(RealFile(File::open(path)?)))
    }

    fn link(&self, existing: &Path, new: &Path) -> io::Result<()> {
        fs::hard_link(existing, new)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        // Not rustix's fsync: the standard library asks for the strongest sync of each platform.
        File::from(dir).sync_all()
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        fs::read_dir(path)?
            .map(|entry| {
                let entry = entry?;
                Ok(DirEntry {
                    name: entry.file_name(),
                    is_dir: entry.file_type()?.is_dir(),
                })
            })
            .collect()
    }

    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }
}

struct RealFile(File);

impl WritableFile for RealFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(self: Box<Self>) -> io::Result<()> {
        self.0.sync_all()
    }
}

impl ReadableFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn sync(self: Box<Self>) -> io::Result<()> {
        self.0.sync_all()?;
        // Not every platform and file system can: then the sync alone must do.
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::fadvise(&self.0, 0, None, rustix::fs::Advice::DontNeed);
        Ok(())
    }
}
