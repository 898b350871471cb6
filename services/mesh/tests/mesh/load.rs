//! Many calls and large ones.

use std::time::Duration;

use belay_mesh::{channel::Channels, server::MeshServer};
use futures_util::future::join_all;
use tokio::sync::watch;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::support::{Running, Scripted, instance, output, tool_call, within};

const PARKED: u32 = 4_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_parked_calls_hold_up_neither_the_control_port_nor_each_other() {
    let (parked, arrivals) = watch::channel(0_u32);
    let (release, released) = watch::channel(false);
    let service = Scripted::new(move |nth, request| {
        let (parked, mut released) = (parked.clone(), released.clone());
        async move {
            parked.send_modify(|most| *most = nth.max(*most));
            let _ = released.wait_for(|released| *released).await;
            Ok(output(request.arguments))
        }
    });
    let server = Running::start(MeshServer::new(&instance()).data(service.service())).await;
    let peers = server.peers(Channels::default());
    let calls: Vec<_> = (0..PARKED)
        .map(|n| {
            let mut client = peers.resources(&instance()).unwrap();
            tokio::spawn(async move { client.call_tool(tool_call(n.to_string())).await })
        })
        .collect();
    let mut arrivals = arrivals;
    within("every call", arrivals.wait_for(|parked| *parked == PARKED))
        .await
        .unwrap();

    let mut health = HealthClient::new(peers.channels.control(&server.control));
    tokio::time::timeout(
        Duration::from_secs(5),
        health.check(HealthCheckRequest::default()),
    )
    .await
    .expect("the control port answers while calls are parked")
    .unwrap();

    release.send_replace(true);
    let replies = within("every reply", join_all(calls)).await;
    for (n, reply) in replies.into_iter().enumerate() {
        assert_eq!(reply.unwrap().unwrap().into_inner().output, n.to_string());
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_forty_megabytes_passes_both_ways() {
    let server = Running::start(MeshServer::new(&instance()).data(Scripted::echo().service())).await;
    let mut client = server.peers(Channels::default()).resources(&instance()).unwrap();
    let large = bytes::Bytes::from(vec![b'x'; 40 << 20]);
    let reply = within("the reply", client.call_tool(tool_call(large.clone()))).await;
    assert!(reply.unwrap().into_inner().output == large);
    server.stop().await;
}
