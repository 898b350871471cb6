//! Scenario 7: a checkpoint without a crash.

use belay_fake_backend::ctl::Hold;
use belay_proto::{
    checkpoint::{CheckpointRequest, Phase, PublishRequest, StatusResponse, checkpoint_response::Event},
    episode::{Expect, Kind},
};

use crate::world::{BOUND, World};

/// Seen red: with the wait for an open mesh taken out of the policy model's reply, no reply is held while the mesh is closed.
#[tokio::test(flavor = "multi_thread")]
async fn the_reply_is_held_while_closed_and_the_generation_goes_on() {
    let world = World::start().await;
    world.ctl.hold(Hold::AfterCallsPerRollout(1)).await.unwrap();
    let running = world.run("r", 0, Expect::Fresh);
    world.ctl.wait_held(1, BOUND).await.unwrap();

    let mut coordinator = world.mesh.coordinator().unwrap();
    let request = CheckpointRequest {
        hold: true,
        ..Default::default()
    };
    let mut events = coordinator.checkpoint(request).await.unwrap().into_inner();
    let id = loop {
        let message = events.message().await.unwrap().expect("held before the end");
        match message.event {
            Some(Event::Held(_)) => break message.checkpoint_id,
            Some(Event::Abandoned(abandoned)) => panic!("abandoned: {abandoned:?}"),
            _ => {}
        }
    };

    // The mesh is closed. The generation in flight was not stopped: it runs to its end, and its reply is held.
    world.ctl.release().await.unwrap();
    world.ctl.wait_finished(2, BOUND).await.unwrap();
    let held = |status: &StatusResponse| status.counts.get("held_replies") == Some(&1);
    let statuses = world
        .until("the reply is held", |all| {
            all.iter().filter(|s| held(s)).count() == 1
        })
        .await;
    for status in &statuses {
        assert_eq!(status.phase(), Phase::Committed, "{:?}", status.instance);
        assert_eq!(
            status.at_door, 0,
            "nobody got past its own server: {:?}",
            status.instance
        );
    }
    let holder = statuses.iter().find(|status| held(status)).unwrap();
    assert_eq!(holder.instance.as_ref().unwrap().kind(), Kind::PolicyModel);
    assert!(!running.is_finished());
    assert_eq!(world.calls("r").await, [(0, 0), (0, 1)]);

    let publish = PublishRequest {
        checkpoint_id: id.clone(),
        controller_state: "mine".into(),
    };
    let published = coordinator
        .publish(publish)
        .await
        .unwrap()
        .into_inner()
        .published
        .unwrap();
    assert_eq!(published.episodes, 1);

    let result = running.await.unwrap().unwrap();
    assert_eq!(result.reward, 1.0);
    assert!(!result.restored);
    assert_eq!(
        world.calls("r").await,
        [(0, 0), (0, 1), (0, 2), (0, 3)],
        "each model call once"
    );
    assert_eq!(world.effects("r").await, [(0, (0, 1)), (0, (1, 1)), (0, (2, 1))]);
    world.acknowledge_and_see_nothing_left("r", 0).await;
}
