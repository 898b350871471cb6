//! The process's limits.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one: each connection and each file is one.
pub fn raise_open_files() -> std::io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}
