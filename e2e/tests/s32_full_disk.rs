//! Scenario 32: a participant's disk is full, which shows after KEEP.

use std::path::{Path, PathBuf};

use belay_fake_backend::ctl::Hold;
use belay_mesh::config::FullDisk;
use belay_proto::{checkpoint::CheckpointRequest, episode::Expect};

use crate::{
    checkpointing::Ended,
    world::{BOUND, World, good},
};

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Files below a directory, by name.
fn files(dir: &Path) -> Vec<String> {
    let (dirs, files): (Vec<_>, Vec<_>) = children(dir).into_iter().partition(|path| path.is_dir());
    let here = files
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
    here.chain(dirs.iter().flat_map(|dir| self::files(dir))).collect()
}

/// Seen red: with Await that takes a failed write for a durable one, it fails at publish only, and with another reason.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_published_and_the_next_checkpoint_works() {
    let dir = tempfile::tempdir().unwrap();
    let full = dir.path().join("full");
    let mut world = World::start_with(|config| {
        config.faults.full_disk = Some(FullDisk {
            instance: "agent/default/0".parse().unwrap(),
            while_exists: full.clone(),
        });
    })
    .await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let running = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    let (good_id, ..) = world.checkpoint().await;

    std::fs::write(&full, "").unwrap();
    let failed = world
        .begin_checkpoint(CheckpointRequest::default())
        .await
        .ended()
        .await;
    let Ended::Abandoned(abandoned) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(
        (&*abandoned.stage, &*abandoned.reason),
        ("await", "STORAGE_FULL"),
        "{}",
        abandoned.message
    );
    assert!(
        abandoned.message.contains("agent/default/0"),
        "{}",
        abandoned.message
    );
    let abandoned_dirs: Vec<PathBuf> = children(&world.mesh.spec().config.root.join("local/checkpoints"))
        .into_iter()
        .filter(|path| path.file_name().unwrap().to_str().unwrap() > &*good_id)
        .collect();
    assert_eq!(abandoned_dirs.len(), 1, "the tombstone's");
    assert_eq!(
        files(&abandoned_dirs[0]),
        ["checkpoint.json"],
        "swept, and nothing appears later"
    );
    let tombstone = std::fs::read_to_string(abandoned_dirs[0].join("checkpoint.json")).unwrap();
    assert!(tombstone.contains("STORAGE_FULL"), "{tombstone}");

    std::fs::remove_file(&full).unwrap();
    let (next_id, published, _) = world.checkpoint().await;
    assert!(next_id > good_id);
    assert_eq!(published.episodes, 1);
    world.crash().await;
    running.await.unwrap().expect_err("its server was killed");
    world.up_again().await;
    assert_eq!(world.restore().await.len(), 1);
    world.ctl.release().await.unwrap();
    good(world.run("r", 1, Expect::Restored)).await;
    world.acknowledge_and_see_nothing_left("r", 1).await;
}
