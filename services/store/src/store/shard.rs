//! A participant's share of a checkpoint: written once, read by scope.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use belay_core::ids::{CheckpointId, Episode};

use super::CheckpointStore;
use crate::{
    checkpoint_file::ShardRef,
    crash_safe::{self, Linked},
    error::StoreError,
    format::Format,
    manifest::{self, Manifest},
    records::{RecordToWrite, RecordsReader, ShardHeader, StoredRecord, write_records},
    sealed,
};

impl CheckpointStore {
    /// Writes a participant's records and then its manifest, which makes the share durable.
    ///
    /// `stop` is looked at between records and before the manifest's link: [`StoreError::Stopped`], and no manifest is left. An
    /// error can be tried again with the same capture: it goes into new files. A manifest that stands already (the error came
    /// after its link) is checked and synced, and the records are not asked for.
    pub fn write_shard(
        &self,
        header: &ShardHeader,
        records: &mut dyn Iterator<Item = RecordToWrite>,
        stop: &AtomicBool,
    ) -> Result<ShardRef, StoreError> {
        let dir = self.checkpoint_dir(header.id).join(header.instance.to_string());
        let stopped = || {
            if stop.load(Ordering::Acquire) {
                return Err(StoreError::Stopped { path: dir.clone() });
            }
            Ok(())
        };
        stopped()?;
        self.make_dir(&dir)?;
        let path = dir.join(manifest::FILE_NAME);
        if crash_safe::sync_if_there(self.fs(), &path)? {
            return self.standing_shard(header, &dir);
        }

        let written = write_records(self.fs(), &dir, header, records, stop)?;
        stopped()?;
        let manifest = Manifest {
            format: Format::CURRENT,
            id: header.id,
            deployment: self.deployment().into(),
            instance: header.instance.clone(),
            incarnation: header.incarnation,
            records_digest: written.digest,
            bytes: written.bytes,
            records: written.records,
        };
        let records_path = dir.join(manifest.records_name());
        if written.file.publish(&records_path)? == Linked::Taken {
            // An earlier try came this far. Its content is its name, if the disk has kept it.
            crash_safe::sync_standing(self.fs(), &records_path)?;
            RecordsReader::open(self.fs(), &dir, &manifest)?;
        }
        stopped()?;
        let bytes = sealed::seal(&manifest);
        match crash_safe::publish_bytes(self.fs(), &path, &bytes)? {
            Linked::New => Ok(shard_ref(&manifest, &bytes)),
            Linked::Taken => {
                crash_safe::sync_standing(self.fs(), &path)?;
                self.standing_shard(header, &dir)
            }
        }
    }

    /// Reads the wanted records of a share: its manifest by digest, its records file as a whole by digest, then the wanted frames.
    pub fn read_shard(
        &self,
        id: CheckpointId,
        shard: &ShardRef,
        wanted: &dyn Fn(&Episode) -> bool,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let mut records = Vec::new();
        self.open_shard(id, shard)?
            .for_each(wanted, &mut |record| records.push(record))?;
        Ok(records)
    }

    /// The manifest that a reference names, by its digest.
    pub(super) fn manifest_of(&self, id: CheckpointId, shard: &ShardRef) -> Result<Manifest, StoreError> {
        // Never a path of somebody else's making: an instance's manifest has one place.
        let place = Manifest::path_of(&shard.instance);
        let path = self.checkpoint_dir(id).join(&place);
        if shard.manifest != place {
            return Err(StoreError::invalid(
                &self.checkpoint_dir(id),
                format!(
                    "is named with the manifest {:?} for {}, which is at {place}",
                    shard.manifest, shard.instance
                ),
            ));
        }
        let bytes = crash_safe::read_file(self.fs(), &path, manifest::MAX_BYTES)?;
        if *blake3::hash(&bytes).as_bytes() != shard.digest {
            return Err(StoreError::invalid(
                &path,
                "is altered: it is not the manifest that the checkpoint names",
            ));
        }
        Manifest::read(&path, &bytes, self.deployment(), id, &shard.instance)
    }

    /// The records file of a reference, checked as a whole.
    pub(super) fn open_shard(&self, id: CheckpointId, shard: &ShardRef) -> Result<RecordsReader, StoreError> {
        let manifest = self.manifest_of(id, shard)?;
        let dir = self.checkpoint_dir(id).join(shard.instance.to_string());
        RecordsReader::open(self.fs(), &dir, &manifest)
    }

    /// A manifest that stands, and is synced: the same capture's, or nobody's business.
    fn standing_shard(&self, header: &ShardHeader, dir: &Path) -> Result<ShardRef, StoreError> {
        let path = dir.join(manifest::FILE_NAME);
        let bytes = crash_safe::read_file(self.fs(), &path, manifest::MAX_BYTES)?;
        let manifest = Manifest::read(&path, &bytes, self.deployment(), header.id, &header.instance)?;
        if manifest.incarnation != header.incarnation {
            return Err(StoreError::Taken {
                path,
                what: format!(
                    "another process of {} ({}) has written its share of this checkpoint: abandon it and take a new one",
                    header.instance, manifest.incarnation
                ),
            });
        }
        crash_safe::sync_standing(self.fs(), &dir.join(manifest.records_name()))?;
        RecordsReader::open(self.fs(), dir, &manifest)?;
        Ok(shard_ref(&manifest, &bytes))
    }

    /// Makes a directory below this deployment's, and every name on the way durable.
    pub(super) fn make_dir(&self, dir: &Path) -> Result<(), StoreError> {
        crash_safe::create_dir_synced(self.fs(), &self.home, dir)
    }
}

fn shard_ref(manifest: &Manifest, bytes: &[u8]) -> ShardRef {
    ShardRef {
        instance: manifest.instance.clone(),
        incarnation: manifest.incarnation,
        manifest: Manifest::path_of(&manifest.instance),
        digest: *blake3::hash(bytes).as_bytes(),
        records: manifest.records,
        bytes: manifest.bytes,
    }
}
