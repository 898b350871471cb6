//! Calls between servers: what is tried again, and what arrives of a refusal.

use std::time::Duration;

use belay_core::{
    ids::{Episode, RolloutId},
    refusal::{Blocker, Reason, Refusal},
};
use belay_mesh::{
    channel::Channels,
    fault::{CallFault, Lose},
    peers::{Peers, call},
    server::{Listeners, MeshServer},
    status::{IntoRefusal as _, to_status},
};
use belay_proto::episode as pb;
use tokio::net::TcpListener;

use crate::support::{Running, Scripted, instance, output, peers, tool_call, within};

const PATIENCE: Duration = Duration::from_secs(20);

/// One tool call, as an agent makes it.
async fn tool(peers: &Peers, patience: Duration) -> Result<pb::CallToolResponse, Refusal> {
    let client = peers.resources(&instance())?;
    let attempt = || {
        let mut client = client.clone();
        async move { client.call_tool(tool_call("x")).await }
    };
    within("the call", call(&instance(), "CallTool", patience, attempt)).await
}

async fn serve(service: &Scripted) -> Running {
    Running::start(MeshServer::new(&instance()).data(service.service())).await
}

#[tokio::test]
async fn a_server_that_has_not_joined_is_asked_again() {
    let service = Scripted::new(|nth, _| async move {
        let joining = Refusal::new(Reason::NotJoined, "joining").retry(Duration::from_millis(20));
        if nth < 3 {
            Err(to_status(&joining))
        } else {
            Ok(output("ok"))
        }
    });
    let server = serve(&service).await;
    let reply = tool(&server.peers(Channels::default()), PATIENCE).await.unwrap();
    assert_eq!((reply.output.as_ref(), service.calls()), (&b"ok"[..], 3));
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_never_joins_is_unreachable_by_name() {
    let service = Scripted::new(|_, _| async {
        let joining = Refusal::new(Reason::NotJoined, "joining").retry(Duration::from_millis(20));
        Err(to_status(&joining))
    });
    let server = serve(&service).await;
    let refusal = tool(&server.peers(Channels::default()), Duration::from_millis(200))
        .await
        .unwrap_err();
    assert_eq!(refusal.reason, Reason::PeerUnreachable);
    for part in ["resources/counter/0", "CallTool", "NOT_JOINED"] {
        assert!(refusal.message.contains(part), "{refusal}");
    }
    assert!(service.calls() > 1);
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_comes_up_late_is_found() {
    // An address of its own on the loopback network, so that nobody takes the port meanwhile.
    let listeners = Listeners::bind("127.0.77.1:0", "127.0.77.1:0").await.unwrap();
    let (data, control) = listeners.addresses().unwrap();
    drop(listeners);
    let peers = peers(&data.to_string(), &control.to_string(), Channels::default());
    let nobody = tool(&peers, Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(nobody.reason, Reason::PeerUnreachable);
    assert!(nobody.message.contains("Connection refused"), "{nobody}");

    let late = tokio::spawn(async move { tool(&peers, PATIENCE).await });
    let service = Scripted::echo();
    let listeners = Listeners::bind(&data.to_string(), &control.to_string()).await;
    let server = Running::start_on(
        MeshServer::new(&instance()).data(service.service()),
        listeners.unwrap(),
    );
    assert_eq!(late.await.unwrap().unwrap().output, "x");
    server.stop().await;
}

#[tokio::test]
async fn a_peer_that_hangs_up_is_asked_again_until_patience_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let hangs_up = tokio::spawn(async move {
        let mut connections = 0_u32;
        while let Ok((stream, _)) = listener.accept().await {
            drop(stream);
            connections += 1;
            if connections == 5 {
                break;
            }
        }
        connections
    });
    let peers = peers(&address, &address, Channels::default());
    let refusal = tool(&peers, Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::PeerUnreachable, "{refusal}");
    assert_eq!(within("five connections", hangs_up).await.unwrap(), 5);
}

#[tokio::test]
async fn a_lost_request_and_a_lost_reply_both_end_in_one_answer() {
    for (lose, executions) in [(Lose::Request, 1), (Lose::Reply, 2)] {
        let service = Scripted::echo();
        let fault = CallFault {
            call: "CallTool".into(),
            delay_ms: 1,
            lose: Some(lose),
            times: Some(1),
        };
        let server = MeshServer::new(&instance())
            .data(service.service())
            .faults(&[fault]);
        let server = Running::start(server).await;
        let reply = tool(&server.peers(Channels::default()), PATIENCE).await.unwrap();
        assert_eq!((reply.output.as_ref(), service.calls()), (&b"x"[..], executions));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_refusal_arrives_whole_and_is_final() {
    let refused = Refusal::new(Reason::StaleExecution, "another life is held here")
        .episode(&Episode::new(RolloutId::new("task-1").unwrap(), 0))
        .instance(&"resources/counter/0".parse().unwrap());
    let service = {
        let refused = refused.clone();
        Scripted::new(move |_, _| {
            let status = to_status(&refused);
            async { Err(status) }
        })
    };
    let server = serve(&service).await;
    let mut arrived = tool(&server.peers(Channels::default()), PATIENCE)
        .await
        .unwrap_err();
    let mut sent = refused;
    sent.metadata.sort();
    arrived.metadata.sort();
    assert_eq!((arrived, service.calls()), (sent, 1));
    server.stop().await;
}

#[tokio::test]
async fn the_largest_refusal_fits_into_the_trailers() {
    let blocker = Blocker {
        episode: Episode::new(RolloutId::new(&"r".repeat(128)).unwrap(), u32::MAX),
        instance: instance(),
        step: "verify".into(),
        age: Duration::from_secs(1),
        reason: "it may not run twice".into(),
    };
    let service = Scripted::new(move |_, _| {
        let mut refusal = Refusal::new(Reason::DeadlinePassed, "\u{1F6D1}".repeat(100_000));
        refusal.blockers = vec![blocker.clone(); 100_000];
        async move { Err(to_status(&refusal)) }
    });
    let server = serve(&service).await;
    let mut client = server.peers(Channels::default()).resources(&instance()).unwrap();
    let arrived = within("the refusal", client.call_tool(tool_call("x"))).await;
    let refusal = arrived.unwrap_err().into_refusal();
    assert_eq!(refusal.reason, Reason::DeadlinePassed, "{refusal}");
    assert!(!refusal.blockers.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn whom_nobody_knows_and_what_is_no_address_is_said_at_once() {
    let unknown = peers("127.0.0.1:1", "127.0.0.1:1", Channels::default())
        .resources(&"resources/weather/0".parse().unwrap())
        .unwrap_err();
    assert_eq!(unknown.reason, Reason::PeerUnreachable);
    assert!(unknown.message.contains("resources/weather/0"), "{unknown}");

    let nowhere = peers("not an address", "127.0.0.1:1", Channels::default());
    let refusal = tool(&nowhere, PATIENCE).await.unwrap_err();
    assert_eq!(refusal.reason, Reason::InvalidRequest);
    assert!(refusal.message.contains("\"not an address\""), "{refusal}");
}
