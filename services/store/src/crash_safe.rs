//! The vocabulary of files that are there whole or not at all.
//!
//! A file is written under a name of its own, synced, and then given its true name by a link, which never overwrites. A
//! name counts from the sync of its directory on. What fails leaves nothing under the true name; what is left of a crash
//! is a file whose name says that it is temporary.

use std::{
    io,
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{
    error::StoreError,
    fs::{FileSystem, ReadableFile, WritableFile},
};

const TEMP_SUFFIX: &str = ".tmp";

/// True for the name of a file that was never finished.
pub fn is_temp_name(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMP_SUFFIX)
}

/// Makes the directories of `path` below `base`, which is there, and makes each name durable.
///
/// A directory that is there already is synced into its parent all the same: whoever made it may not have come to it.
pub fn create_dir_synced(fs: &dyn FileSystem, base: &Path, path: &Path) -> Result<(), StoreError> {
    let below = path
        .strip_prefix(base)
        .map_err(|_| StoreError::Request(format!("{} is not below {}", path.display(), base.display())))?;
    let mut parent = base.to_path_buf();
    for component in below.components() {
        let Component::Normal(name) = component else {
            return Err(StoreError::Request(format!(
                "{} leads out of {}",
                path.display(),
                base.display()
            )));
        };
        let dir = parent.join(name);
        match fs.create_dir(&dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(StoreError::io("make the directory", &dir)(error)),
        }
        fs.sync_dir(&parent)
            .map_err(StoreError::io("sync the directory", &parent))?;
        parent = dir;
    }
    Ok(())
}

/// What became of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linked {
    /// It is the file that was given.
    New,
    /// It was taken before, and stands as it was.
    Taken,
}

/// A file that has no true name yet. Dropped, it is removed.
pub struct TempFile<'a> {
    fs: &'a dyn FileSystem,
    path: PathBuf,
    file: Option<Box<dyn WritableFile>>,
}

impl<'a> TempFile<'a> {
    /// A new, empty one in a directory.
    pub fn create(fs: &'a dyn FileSystem, dir: &Path, stem: &str) -> Result<Self, StoreError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!(".{stem}.{}-{number}{TEMP_SUFFIX}", std::process::id());
            let path = dir.join(name);
            match fs.create_new(&path) {
                Ok(file) => {
                    return Ok(Self {
                        fs,
                        path,
                        file: Some(file),
                    });
                }
                // Left over from an earlier process, or another machine's: it may live, so it is not touched.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(StoreError::io("create", &path)(error)),
            }
        }
    }

    /// Appends.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let file = self
            .file
            .as_mut()
            .expect("only the publishing methods take the file, and they consume self");
        file.write_all(bytes).map_err(StoreError::io("write", &self.path))
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        let file = self
            .file
            .take()
            .expect("only the publishing methods take the file, and they consume self");
        file.sync().map_err(StoreError::io("sync", &self.path))
    }

    /// Syncs the file and gives it its true name, if that is free. The directory is synced when the name is new.
    pub fn publish(mut self, target: &Path) -> Result<Linked, StoreError> {
        self.sync()?;
        let linked = match self.fs.link(&self.path, target) {
            Ok(()) => Linked::New,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Linked::Taken,
            Err(error) => return Err(StoreError::io("link", target)(error)),
        };
        let fs = self.fs;
        // The temporary name goes before the directory is synced: one sync for both.
        drop(self);
        if linked == Linked::New {
            sync_parent(fs, target)?;
        }
        Ok(linked)
    }

    /// Syncs the file and puts it in place of what stands at `target`: for hints only.
    pub fn replace(mut self, target: &Path) -> Result<(), StoreError> {
        self.sync()?;
        self.fs
            .rename(&self.path, target)
            .map_err(StoreError::io("replace", target))?;
        sync_parent(self.fs, target)
    }
}

impl Drop for TempFile<'_> {
    fn drop(&mut self) {
        self.file = None;
        if let Err(error) = self.fs.remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            // Harmless: its name says what it is, and the sweep takes it.
            tracing::warn!(path = %self.path.display(), %error, "a temporary file is left over");
        }
    }
}

/// Publishes a small file under a name that is never overwritten.
pub fn publish_bytes(fs: &dyn FileSystem, target: &Path, bytes: &[u8]) -> Result<Linked, StoreError> {
    let mut temp = TempFile::create(fs, parent(target), stem(target))?;
    temp.write_all(bytes)?;
    temp.publish(target)
}

/// Replaces a small file that is only a hint, in one step.
pub fn replace_bytes(fs: &dyn FileSystem, target: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut temp = TempFile::create(fs, parent(target), stem(target))?;
    temp.write_all(bytes)?;
    temp.replace(target)
}

/// Makes a file that stands, and its name, durable: whoever made them may not have come to it. What is read afterwards is what
/// the disk has kept.
pub fn sync_standing(fs: &dyn FileSystem, path: &Path) -> Result<(), StoreError> {
    if sync_if_there(fs, path)? {
        Ok(())
    } else {
        Err(StoreError::invalid(path, "is missing"))
    }
}

/// The same, where the file need not be there. True when it is.
pub fn sync_if_there(fs: &dyn FileSystem, path: &Path) -> Result<bool, StoreError> {
    let Some(file) = open_if_there(fs, path)? else {
        return Ok(false);
    };
    file.sync().map_err(StoreError::io("sync", path))?;
    sync_parent(fs, path)?;
    Ok(true)
}

/// Reads a whole file of at most `limit` bytes.
pub fn read_file(fs: &dyn FileSystem, path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
    read_if_there(fs, path, limit)?.ok_or_else(|| StoreError::invalid(path, "is missing"))
}

/// The same, where the file need not be there.
pub fn read_if_there(fs: &dyn FileSystem, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(file) = open_if_there(fs, path)? else {
        return Ok(None);
    };
    let size = file.size().map_err(StoreError::read(path))?;
    if size > limit {
        return Err(StoreError::invalid(
            path,
            format!("is {size} bytes, and no such file is over {limit}"),
        ));
    }
    let size = usize::try_from(size)
        .map_err(|_| StoreError::invalid(path, "is larger than this machine's memory"))?;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0)
        .map_err(StoreError::read(path))?;
    Ok(Some(bytes))
}

fn open_if_there(fs: &dyn FileSystem, path: &Path) -> Result<Option<Box<dyn ReadableFile>>, StoreError> {
    match fs.open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::read(path)(error)),
    }
}

fn sync_parent(fs: &dyn FileSystem, path: &Path) -> Result<(), StoreError> {
    let dir = parent(path);
    fs.sync_dir(dir)
        .map_err(StoreError::io("sync the directory", dir))
}

fn parent(path: &Path) -> &Path {
    path.parent()
        .expect("every file of a checkpoint lies in a directory")
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::RealFs;

    #[test]
    fn a_path_that_leads_out_is_not_made() {
        let base = tempfile::tempdir().expect("a temporary directory");
        for outside in [base.path().join("a/../../b"), "/elsewhere".into()] {
            create_dir_synced(&RealFs, base.path(), &outside).expect_err("outside");
        }
        create_dir_synced(&RealFs, base.path(), &base.path().join("a/b/c")).expect("inside");
        create_dir_synced(&RealFs, base.path(), &base.path().join("a/b/c")).expect("again");
        assert!(base.path().join("a/b/c").is_dir());
    }

    #[test]
    fn a_name_is_given_once_and_a_hint_is_replaced() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("name.json");
        assert_eq!(publish_bytes(&RealFs, &path, b"1").expect("free"), Linked::New);
        assert_eq!(publish_bytes(&RealFs, &path, b"2").expect("taken"), Linked::Taken);
        assert_eq!(read_file(&RealFs, &path, 9).expect("there"), b"1");
        replace_bytes(&RealFs, &path, b"3").expect("a hint");
        assert_eq!(read_file(&RealFs, &path, 9).expect("there"), b"3");
        let names = std::fs::read_dir(dir.path()).expect("a directory");
        assert_eq!(names.count(), 1);
    }

    #[test]
    fn a_temporary_name_of_another_process_is_left_alone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = TempFile::create(&RealFs, dir.path(), "x").expect("a file");
        let second = TempFile::create(&RealFs, dir.path(), "x").expect("another");
        assert_ne!(first.path, second.path);
        for temp in [&first, &second] {
            let name = temp.path.file_name().and_then(|name| name.to_str());
            assert!(name.is_some_and(is_temp_name));
        }
        for name in ["manifest.json", "records-1.belay", ".tmp.json", "a.tmp"] {
            assert!(!is_temp_name(name), "{name}");
        }
    }
}
