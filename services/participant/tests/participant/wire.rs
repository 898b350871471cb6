//! Over a real socket: limits that hold what grows with the number of rollouts, and a client that goes away.

use belay_core::refusal::Reason;
use belay_mesh::{
    server::{Listeners, MeshServer},
    shutdown::Shutdown,
    wire::ToWire,
};
use belay_proto::checkpoint::{self as pb, checkpoint_participant_client::CheckpointParticipantClient};
use tonic::transport::Channel;

use crate::rig::{Rig, SOON, episode, id, refused, until};

struct Served {
    rig: Rig,
    client: CheckpointParticipantClient<Channel>,
    shutdown: Shutdown,
}

async fn served(names: &[&str]) -> Served {
    let rig = Rig::holding(names).await;
    let listeners = Listeners::bind("127.0.0.1:0", "127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listeners.control.local_addr().unwrap());
    let shutdown = Shutdown::new();
    let server = MeshServer::new(rig.gate.instance()).control(rig.participant.clone().into_service());
    tokio::spawn(server.run(listeners, shutdown.clone()));
    let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
    let client = CheckpointParticipantClient::new(channel)
        .max_decoding_message_size(256 << 20)
        .max_encoding_message_size(256 << 20);
    Served {
        rig,
        client,
        shutdown,
    }
}

#[tokio::test]
async fn a_commit_of_very_many_episodes_passes_both_ways() {
    let mut served = served(&[]).await;
    let scope: Vec<_> = (0..60_000)
        .map(|n| episode(&format!("rollout-with-a-long-name-{n:0>80}")))
        .collect();
    for (value, episode) in scope.iter().enumerate() {
        served.rig.owner.set(episode, value as u64);
    }
    let prepare = served.rig.prepare_request(id(1));
    served.client.prepare(prepare).await.unwrap();
    let commit = pb::CommitRequest {
        fence: served.rig.fence(),
        checkpoint_id: id(1).to_string(),
        timeout: Some(SOON.to_wire()),
        scope: scope.iter().map(ToWire::to_wire).collect(),
    };
    use prost::Message as _;
    assert!(commit.encoded_len() > 4 << 20, "over tonic's own limit");
    let reply = served.client.commit(commit).await.unwrap().into_inner();
    assert_eq!(reply.parts.len(), 60_000);
    served.rig.keep(id(1)).await.unwrap();
    assert_eq!(served.rig.wait_durable(id(1)).await.unwrap().records, 60_000);
    served.shutdown.cancel();
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_nothing() {
    let mut served = served(&["a"]).await;
    let busy = served.rig.gate.enter(&episode("a"), "tool").await.unwrap();
    let request = served.rig.prepare_request(id(1));
    let calling = tokio::spawn({
        let (mut client, request) = (served.client.clone(), request.clone());
        async move { client.prepare(request).await }
    });
    let gate = served.rig.gate.clone();
    until("closed", || !gate.is_open()).await;
    calling.abort();
    assert!(calling.await.unwrap_err().is_cancelled());
    drop(busy);
    let reply = served.client.prepare(request).await.unwrap().into_inner();
    assert_eq!(reply.phase(), pb::Phase::Prepared);
    served.shutdown.cancel();
}

#[tokio::test]
async fn refusals_arrive_with_their_reason() {
    let mut served = served(&[]).await;
    let mut request = served.rig.prepare_request(id(1));
    let me = served.rig.gate.incarnation().to_string();
    request.fence = Some(pb::Fence {
        coordinator_epoch: 1,
        incarnation: "01900000-0000-7000-8000-000000000009".into(),
    });
    let refusal = refused(served.client.prepare(request).await, Reason::OtherIncarnation);
    assert_eq!(refusal.get("incarnation"), Some(me.as_str()));
    served.shutdown.cancel();
}
