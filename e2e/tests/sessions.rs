//! Sessions of a resources server as `mesh.toml` makes them: their time to live, state that is shared, and the key of a tool call.

use std::collections::BTreeMap;

use belay_core::refusal::Reason;
use belay_fake_backend::{ctl::Hold, work::WorkKind};
use belay_mesh::config::{MeshConfig, ServerConfig};
use belay_proto::{
    checkpoint::{CheckpointRequest, Standing},
    episode::{Expect, Kind},
};

use crate::{
    checkpointing::standing,
    world::{BOUND, World, good, refused},
};

fn counter(config: &mut MeshConfig) -> &mut ServerConfig {
    let mut servers = config.servers.iter_mut();
    servers.find(|server| server.name == "counter").unwrap()
}

/// Seen red: with `session_ttl_seconds` ignored, the session stays.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_nobody_calls_ends_and_the_next_call_says_so() {
    let world = World::start_with(|config| counter(config).session_ttl_seconds = Some(1)).await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let running = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    world
        .until("the session has ended", |all| {
            let mut counters = all
                .iter()
                .filter(|s| s.instance.as_ref().unwrap().name == "counter");
            counters.any(|s| s.counts["sessions"] == 0)
        })
        .await;
    world.ctl.release().await.unwrap();
    let refusal = refused(running).await;
    assert_eq!(refusal.reason, Reason::EpisodeUnknown);
    assert!(refusal.message.contains("time to live"), "{}", refusal.message);
    world.retire("r", 0).await;
    world.see_nothing_left().await;
}

/// The agent leaves the episode out at the soft limit: it knows nothing of the state. The server of the state waits all the same, since
/// the call changes what is saved of the others.
///
/// Seen red: with `shared` ignored, the checkpoint is published while the call runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_shared_state_is_waited_for_beyond_the_soft_limit() {
    let world = World::start_with(|config| {
        config.faults.work_asks = Some("engine".into());
        counter(config).shared = true;
    })
    .await;
    world.ctl.hold_work(WorkKind::Tool, "r/0/1/").await.unwrap();
    let running = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_work(WorkKind::Tool, 1, BOUND).await.unwrap();
    let request = CheckpointRequest {
        soft_limit: Some(prost_types::Duration {
            seconds: 0,
            nanos: 100_000_000,
        }),
        ..Default::default()
    };
    let mut checkpoint = world.begin_checkpoint(request).await;
    while checkpoint
        .until_it_waits_for("r", "increment_counter")
        .await
        .instance
        .unwrap()
        .kind()
        != Kind::Resources
    {}
    world.ctl.release_work(WorkKind::Tool).await.unwrap();
    let (_, published, partition) = checkpoint.published().await;
    assert_eq!((published.episodes, published.restarts), (0, 1));
    assert_eq!(standing(&partition, "r"), Standing::Restart);
    good(running).await;
    world.acknowledge_and_see_nothing_left("r", 0).await;
}

/// What a tool hands to the outside so that an effect is applied once: the same for a call that is made again after a restore.
///
/// Seen red: with the attempt in the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_that_is_made_again_after_a_restore_has_the_same_key() {
    let mut world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let first = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();
    world.checkpoint().await;
    // What it does from here on is lost with the crash, but not its effects.
    world.ctl.release().await.unwrap();
    good(first).await;
    world.crash().await;
    world.up_again().await;
    world.restore().await;
    good(world.run("r", 1, Expect::Restored)).await;
    let mut keys: BTreeMap<(u32, u32), Vec<String>> = BTreeMap::new();
    for effect in world.ctl.effects().await.unwrap() {
        keys.entry((effect.turn, effect.index))
            .or_default()
            .push(effect.key);
    }
    let times: Vec<usize> = keys.values().map(Vec::len).collect();
    assert_eq!(times, [1, 2, 2], "before the checkpoint once: {keys:?}");
    for keys in keys.values_mut() {
        assert!(keys[0].starts_with("r/"), "{keys:?}");
        keys.dedup();
        assert_eq!(keys.len(), 1, "{keys:?}");
    }
    world.acknowledge_and_see_nothing_left("r", 1).await;
}
