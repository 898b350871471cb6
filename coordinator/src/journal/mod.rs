//! The journal: what the coordinator has decided, crash-safe. It remembers decisions; the name on disk makes them.
//!
//! A commit is durable (fsync) when it returns, and takes about a millisecond: it runs on a blocking thread. Reading is from
//! memory. The state directory is locked, so that two coordinators never share an epoch.

mod state;
mod tables;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use redb::Database;

pub use state::{EndedRun, Entry, OpenRun, Outcome, State, Unfinished, Unsettled};

use crate::error::CoordinatorError;

/// The journal of one deployment. Cheap to clone.
#[derive(Clone)]
pub struct Journal(Arc<Inner>);

struct Inner {
    path: PathBuf,
    db: Database,
    /// Orders commits, so that memory follows the database in the same order.
    writer: Mutex<()>,
    state: Mutex<State>,
    /// Held as long as the journal is.
    _lock: File,
}

impl Journal {
    /// Opens or makes the journal in `dir`, and locks the directory.
    pub fn open(dir: &Path, deployment: &str) -> Result<Self, CoordinatorError> {
        let unusable = |source| CoordinatorError::StateDir {
            dir: dir.into(),
            source,
        };
        fs::create_dir_all(dir).map_err(unusable)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join("lock"))
            .map_err(unusable)?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(CoordinatorError::StateHeld { dir: dir.into() });
            }
            Err(error) => return Err(unusable(error.into())),
        }
        let path = dir.join("journal.redb");
        let failed = |message: String| CoordinatorError::Journal {
            path: path.clone(),
            message,
        };
        let db = Database::create(&path).map_err(|e| failed(e.to_string()))?;
        let found = tables::create(&db, deployment).map_err(|e| failed(e.to_string()))?;
        if found != deployment {
            return Err(CoordinatorError::OtherDeployment {
                path,
                found,
                expected: deployment.into(),
            });
        }
        let state = tables::load(&db).map_err(|e| failed(e.to_string()))?;
        Ok(Self(Arc::new(Inner {
            path,
            db,
            writer: Mutex::new(()),
            state: Mutex::new(state),
            _lock: lock,
        })))
    }

    /// Looks at what is remembered. Short: the lock is held meanwhile.
    pub fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.0.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Commits the changes together; durable when it returns.
    pub async fn commit(&self, entries: Vec<Entry>) -> Result<(), CoordinatorError> {
        self.decide(move |_| entries).await
    }

    /// Makes changes from what is remembered, and commits them together: nothing else is committed in between.
    pub async fn decide(
        &self,
        make: impl FnOnce(&State) -> Vec<Entry> + Send + 'static,
    ) -> Result<(), CoordinatorError> {
        self.decide_on(move |state| (make(state), ())).await
    }

    /// The same, with something that was decided on the way.
    pub async fn decide_on<T: Send + 'static>(
        &self,
        make: impl FnOnce(&State) -> (Vec<Entry>, T) + Send + 'static,
    ) -> Result<T, CoordinatorError> {
        let inner = self.0.clone();
        tokio::task::spawn_blocking(move || inner.commit(make)).await?
    }
}

impl Inner {
    fn commit<T>(&self, make: impl FnOnce(&State) -> (Vec<Entry>, T)) -> Result<T, CoordinatorError> {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let (entries, decided) = make(&self.state.lock().unwrap_or_else(PoisonError::into_inner));
        if entries.is_empty() {
            return Ok(decided);
        }
        self.write(&entries).map_err(|e| CoordinatorError::Journal {
            path: self.path.clone(),
            message: e.to_string(),
        })?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        entries.into_iter().for_each(|entry| state.apply(entry));
        Ok(decided)
    }

    fn write(&self, entries: &[Entry]) -> Result<(), tables::TableError> {
        let write = self.db.begin_write()?;
        for entry in entries {
            tables::store(&write, entry)?;
        }
        write.commit()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use belay_core::{
        coordinator::attempts::Remembered,
        ids::{CheckpointId, ExecutionId, Incarnation, RolloutId},
        parts::{Mark, PlannedEpisode},
    };
    use uuid::Uuid;

    use super::*;

    fn id(sequence: u64) -> CheckpointId {
        CheckpointId { epoch: 1, sequence }
    }

    fn rollout(name: &str) -> RolloutId {
        RolloutId::new(name).expect("legal")
    }

    /// One of each entry that leaves something behind.
    fn everything() -> Vec<Entry> {
        let instance: belay_core::ids::Instance = "agent/a/0".parse().expect("legal");
        let mark = Mark {
            rollout: rollout("r"),
            attempt: 3,
        };
        let planned = PlannedEpisode {
            saved: belay_core::ids::Episode::new(rollout("r"), 0),
            attempt: 1,
            execution: ExecutionId(Uuid::from_u128(7)),
            placement: vec![instance.clone()],
        };
        vec![
            Entry::Epoch(4),
            Entry::MembersVersion(2),
            Entry::Removed(instance.clone()),
            Entry::MarksVersion(9),
            Entry::Rollout(
                rollout("r"),
                Remembered {
                    mark: Some(3),
                    retired: None,
                    handed_out: Some(4),
                },
            ),
            Entry::Forgotten(rollout("f"), id(1)),
            Entry::Unsettled(
                id(2),
                Unsettled {
                    outcome: Outcome::Discarded,
                    drop: vec![mark.clone()],
                    pending: BTreeSet::from([instance.clone()]),
                },
            ),
            Entry::Owed(id(3), "the disk is full".into()),
            Entry::Published(id(1)),
            Entry::Unfinished(11, Unfinished::Retire { marks: vec![mark] }),
            Entry::Unfinished(
                12,
                Unfinished::Forget {
                    rollouts: vec![rollout("f")],
                    version: 10,
                },
            ),
            Entry::Opened(instance, Incarnation(Uuid::from_u128(1))),
            Entry::RunOver(Some((
                id(4),
                EndedRun {
                    complete: true,
                    message: "restored".into(),
                },
            ))),
            Entry::Run(OpenRun::Restore {
                id: id(5),
                source: id(1),
                activated: Some(vec![planned]),
            }),
        ]
    }

    #[tokio::test]
    async fn what_was_committed_is_there_after_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(dir.path(), "d").expect("opened");
        journal.commit(everything()).await.expect("committed");
        let before = journal.read(|s| format!("{s:?}"));
        assert_eq!(journal.read(|s| s.book.rollouts.len()), 1);
        drop(journal);
        let after = Journal::open(dir.path(), "d")
            .expect("opened again")
            .read(|s| format!("{s:?}"));
        assert_eq!(before, after);
    }

    /// A participant passes over marks of a version older than one that it has been sent.
    #[test]
    fn marks_are_sent_with_a_version_that_nobody_has_seen_exceeded() {
        let mut state = State::default();
        everything().into_iter().for_each(|entry| state.apply(entry));
        assert_eq!((state.book.version, state.marks_version()), (9, 10));
        state.apply(Entry::Finished(12));
        assert_eq!(state.marks_version(), 9);
        let retiring: Vec<_> = state.being_retired().map(|rollout| rollout.as_str()).collect();
        assert_eq!(retiring, ["r", "r"], "by the retire and by the settle");
    }

    #[tokio::test]
    async fn what_is_over_is_gone_after_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(dir.path(), "d").expect("opened");
        journal.commit(everything()).await.expect("committed");
        let gone = vec![
            Entry::RolloutGone(rollout("r")),
            Entry::ForgottenGone(rollout("f")),
            Entry::RunOver(None),
            Entry::Settled(id(2)),
            Entry::Paid(id(3)),
            Entry::Pruned(id(1)),
            Entry::Finished(11),
            Entry::Finished(12),
        ];
        journal.commit(gone).await.expect("committed");
        drop(journal);
        let state = Journal::open(dir.path(), "d")
            .expect("opened again")
            .read(Clone::clone);
        assert!(state.book.rollouts.is_empty() && state.book.forgotten.is_empty());
        assert!(state.open_run.is_none() && state.unsettled.is_empty() && state.owed.is_empty());
        assert!(state.published.is_empty() && state.unfinished.is_empty());
        assert_eq!((state.epoch, state.book.version), (4, 9));
    }

    #[test]
    fn a_second_coordinator_is_refused_by_name_of_the_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let first = Journal::open(dir.path(), "d").expect("opened");
        let error = Journal::open(dir.path(), "d").err().expect("held").to_string();
        assert!(error.contains("held by another coordinator"), "{error}");
        assert!(error.contains(&dir.path().display().to_string()), "{error}");
        drop(first);
        let error = Journal::open(dir.path(), "other")
            .err()
            .expect("another deployment")
            .to_string();
        assert!(error.contains("\"d\""), "{error}");
    }
}
