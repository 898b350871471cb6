//! A store in a directory of its own, and something to keep in it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
};

use belay_core::{
    ids::{CheckpointId, Episode, ExecutionId, Incarnation, Instance, RolloutId},
    parts::{Cursor, Mark},
    refusal::{Reason, Refusal},
};
use belay_store::{
    CheckpointFile, CheckpointStore, Format, RecordToWrite, SavedEpisode, ShardHeader, ShardRef, StoreError,
    fs::RealFs, testing::FailingFs,
};
use bytes::Bytes;
use proptest::{
    strategy::Strategy,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};
use uuid::Uuid;

pub const DEPLOYMENT: &str = "test";

/// A store on a file system that can fail, and one on the same directory that cannot.
pub struct Fixture {
    pub failing: CheckpointStore,
    pub fs: FailingFs,
    pub store: CheckpointStore,
    pub root: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let fs = FailingFs::new(RealFs);
        Self {
            store: CheckpointStore::open(root.path(), DEPLOYMENT).expect("a store"),
            failing: CheckpointStore::with_fs(Arc::new(fs.clone()), root.path(), DEPLOYMENT)
                .expect("a store"),
            fs,
            root,
        }
    }

    /// Writes one share and publishes a checkpoint of it.
    pub fn checkpoint(&self, sequence: u64, records: &[RecordToWrite]) -> CheckpointFile {
        let header = header(sequence);
        let shard = write(&self.store, &header, records).expect("a share");
        let file = checkpoint_file(&header, shard, records);
        self.store.publish(&file).expect("a checkpoint");
        file
    }

    pub fn decision(&self, sequence: u64) -> PathBuf {
        self.store.checkpoint_dir(id(sequence)).join("checkpoint.json")
    }

    pub fn shard_dir(&self, sequence: u64) -> PathBuf {
        self.store
            .checkpoint_dir(id(sequence))
            .join(instance().to_string())
    }

    pub fn manifest(&self, sequence: u64) -> PathBuf {
        self.shard_dir(sequence).join("manifest.json")
    }

    pub fn records(&self, sequence: u64) -> PathBuf {
        names(&self.shard_dir(sequence))
            .into_iter()
            .find(|name| name.starts_with("records-"))
            .map(|name| self.shard_dir(sequence).join(name))
            .expect("a records file")
    }

    /// Every file below the root that was never finished.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        files(self.root.path())
            .into_iter()
            .filter(|path| path.to_string_lossy().ends_with(".tmp"))
            .collect()
    }
}

pub fn id(sequence: u64) -> CheckpointId {
    CheckpointId { epoch: 1, sequence }
}

pub fn instance() -> Instance {
    "resources/counter/0".parse().expect("an instance")
}

pub fn incarnation() -> Incarnation {
    Incarnation(Uuid::from_u128(7))
}

pub fn header(sequence: u64) -> ShardHeader {
    ShardHeader {
        id: id(sequence),
        instance: instance(),
        incarnation: incarnation(),
    }
}

pub fn record(number: usize, payload: impl Into<Bytes>) -> RecordToWrite {
    let rollout = RolloutId::new(&format!("rollout-{number}")).expect("a rollout id");
    RecordToWrite {
        episode: Episode::new(rollout, number as u32 % 3),
        execution: ExecutionId(Uuid::from_u128(number as u128)),
        payload: payload.into(),
    }
}

/// Three small ones, one of them empty.
pub fn few() -> Vec<RecordToWrite> {
    vec![record(0, "first"), record(1, ""), record(2, vec![0xff; 40])]
}

pub fn write(
    store: &CheckpointStore,
    header: &ShardHeader,
    records: &[RecordToWrite],
) -> Result<ShardRef, StoreError> {
    store.write_shard(header, &mut records.iter().cloned(), &AtomicBool::new(false))
}

pub fn checkpoint_file(header: &ShardHeader, shard: ShardRef, records: &[RecordToWrite]) -> CheckpointFile {
    CheckpointFile {
        format: Format::CURRENT,
        id: header.id,
        deployment: DEPLOYMENT.into(),
        epoch: header.id.epoch,
        model: Some("model@7".into()),
        episodes: records
            .iter()
            .map(|record| SavedEpisode {
                episode: record.episode.clone(),
                execution: record.execution,
                boundary: "invoke_agent".into(),
                finished: false,
                cursor: Cursor {
                    operation: Some(belay_core::ids::Operation::tool_call(3, 0)),
                    chain: Some([9; 32]),
                    revision: 4,
                },
                task: Some([1; 32]),
                parts: vec![shard.instance.clone()],
            })
            .collect(),
        shards: vec![shard],
        restarts: Vec::new(),
        marks_version: 5,
        marks: vec![Mark {
            rollout: RolloutId::new("old").expect("a rollout id"),
            attempt: 2,
        }],
        controller_state: None,
        created_unix_ms: 1,
    }
}

/// The names in a directory; none if it is not there.
pub fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into())
        .collect()
}

pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in names(dir) {
        let path = dir.join(name);
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// An error that is INVALID_CHECKPOINT, names the file, and is one line.
#[track_caller]
pub fn assert_invalid<T: std::fmt::Debug>(
    result: Result<T, StoreError>,
    file: &Path,
    context: &str,
) -> Refusal {
    let error = result.expect_err(context);
    let path = error.path().map(Path::to_path_buf);
    let refusal = Refusal::from(error);
    assert_eq!(refusal.reason, Reason::InvalidCheckpoint, "{context}: {refusal}");
    assert_eq!(path.as_deref(), Some(file), "{context}: {refusal}");
    assert!(
        refusal.message.contains(&file.display().to_string()) && !refusal.message.contains('\n'),
        "{context}: {refusal}"
    );
    refusal
}

/// Runs a random test. A failure prints the seed; `BELAY_SEED` brings it back.
pub fn random<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seed: u64 = match std::env::var("BELAY_SEED") {
        Ok(text) => text.parse().expect("BELAY_SEED is a number"),
        Err(_) => std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), cases),
    };
    eprintln!("BELAY_SEED={seed}");
    let bytes = *blake3::hash(&seed.to_le_bytes()).as_bytes();
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    if let Err(error) = runner.run(strategy, test) {
        panic!("BELAY_SEED={seed} fails: {error}");
    }
}
