//! What a server's ports say of it, and how it ends.

use std::{sync::Arc, time::Duration};

use belay_mesh::{
    channel::{Channels, MeshChannel},
    server::{Listeners, MeshServer, bind},
    shutdown::Shutdown,
};
use futures_util::StreamExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{v1, v1alpha};

use crate::support::{Running, Scripted, instance, output, tool_call, within};

const RESOURCES: &str = "belay.episode.v1.Resources";

async fn listed(channel: MeshChannel) -> Vec<String> {
    use v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let answers = client.server_reflection_info(tokio_stream::once(ask)).await;
    let answer = answers.unwrap().into_inner().message().await.unwrap().unwrap();
    match answer.message_response {
        Some(MessageResponse::ListServicesResponse(list)) => {
            list.service.into_iter().map(|service| service.name).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// True when an older client is told what `symbol` is.
async fn knows(channel: MeshChannel, symbol: &str) -> bool {
    use v1alpha::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(symbol.into())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let answers = client.server_reflection_info(tokio_stream::once(ask)).await;
    let answer = answers.unwrap().into_inner().message().await;
    matches!(
        answer,
        Ok(Some(v1alpha::ServerReflectionResponse {
            message_response: Some(MessageResponse::FileDescriptorResponse(_)),
            ..
        }))
    )
}

async fn http_get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut reply = String::new();
    within("the HTTP reply", stream.read_to_string(&mut reply))
        .await
        .unwrap();
    reply
}

#[tokio::test]
async fn each_port_lists_what_it_serves_to_new_and_old_clients() {
    let server = Running::start(MeshServer::new(&instance()).data(Scripted::echo().service())).await;
    let channels = Channels::default();
    let (data, control) = (channels.data(&server.data), channels.control(&server.control));
    assert_eq!(listed(data.clone()).await, [RESOURCES]);
    assert_eq!(listed(control.clone()).await, ["grpc.health.v1.Health"]);
    for channel in [data, control] {
        assert!(knows(channel.clone(), "google.rpc.ErrorInfo").await);
        assert!(knows(channel.clone(), "belay.checkpoint.v1.StatusResponse").await);
        assert!(!knows(channel, "belay.nothing.v1.Nothing").await);
    }
    server.stop().await;
}

#[tokio::test]
async fn the_control_port_serves_metrics_over_http_and_the_data_port_none() {
    let server = MeshServer::new(&instance()).data(Scripted::echo().service());
    let routes = axum::Router::new().route("/_ctl/ping", axum::routing::get(|| async { "pong" }));
    let metrics = server.metrics();
    let server = Running::start(server.http(routes)).await;
    metrics.register(|registry| {
        let episodes = prometheus_client::metrics::gauge::Gauge::<i64>::default();
        episodes.set(7);
        registry.register("belay_episodes", "Live episodes", episodes);
    });
    let reply = http_get(&server.control, "/metrics").await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert!(
        reply
            .to_lowercase()
            .contains("content-type: application/openmetrics-text")
    );
    for line in [
        "belay_up{instance=\"resources/counter/0\"",
        "belay_episodes{instance=\"resources/counter/0\"",
        "process_open_fds{",
        "process_max_fds{",
        "process_resident_memory_bytes{",
        "# EOF",
    ] {
        assert!(reply.contains(line), "{line} is missing in {reply}");
    }
    assert!(http_get(&server.control, "/_ctl/ping").await.ends_with("pong"));
    assert!(!http_get(&server.data, "/metrics").await.contains("belay_up"));
    server.stop().await;
}

#[tokio::test]
async fn health_follows_what_is_said_and_its_streams_end_with_the_server() {
    let server = MeshServer::new(&instance()).data(Scripted::echo().service());
    let server = Running::start(server).await;
    let mut client = HealthClient::new(Channels::default().control(&server.control));
    let ask = |service: &str| HealthCheckRequest {
        service: service.into(),
    };
    let mut watched = client.watch(ask("")).await.unwrap().into_inner();
    let mut next = async || {
        let next = within("the next health", watched.next()).await;
        next.map(|health| health.unwrap().status())
    };
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    server.health.set(true);
    assert_eq!(next().await, Some(ServingStatus::Serving));
    for service in ["", RESOURCES] {
        let health = client.check(ask(service)).await.unwrap().into_inner();
        assert_eq!(health.status(), ServingStatus::Serving, "{service:?}");
    }
    server.health.set(false);
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    server.health.set(true);
    assert_eq!(next().await, Some(ServingStatus::Serving));
    server.ask_to_stop();
    assert_eq!(next().await, Some(ServingStatus::NotServing));
    assert_eq!(next().await, None);
    assert!(
        server.stop().await < Duration::from_secs(3),
        "a watcher held up the end"
    );
}

#[tokio::test]
async fn what_was_said_before_the_start_is_not_lost() {
    let server = MeshServer::named("coordinator");
    server.health().set(true);
    let (listener, shutdown) = (bind("control", "127.0.0.1:0").await.unwrap(), Shutdown::new());
    let address = listener.local_addr().unwrap().to_string();
    let ended = tokio::spawn(server.run_single(listener, shutdown.clone()));
    let mut client = HealthClient::new(Channels::default().control(&address));
    let health = within("health", client.check(HealthCheckRequest::default())).await;
    assert_eq!(health.unwrap().into_inner().status(), ServingStatus::Serving);
    assert!(http_get(&address, "/metrics").await.contains("belay_up"));
    shutdown.cancel();
    within("the end", ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_open_call_is_answered_during_the_drain() {
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let service = {
        let (begun, go_on) = (begun.clone(), go_on.clone());
        Scripted::new(move |_, _| {
            let (begun, go_on) = (begun.clone(), go_on.clone());
            async move {
                begun.notify_one();
                go_on.notified().await;
                Ok(output("late"))
            }
        })
    };
    let server = Running::start(MeshServer::new(&instance()).data(service.service())).await;
    let mut client = server.peers(Channels::default()).resources(&instance()).unwrap();
    let call = tokio::spawn(async move { client.call_tool(tool_call("x")).await });
    within("the call", begun.notified()).await;
    server.ask_to_stop();
    let address = server.data.clone();
    within("the listener's end", async {
        while TcpStream::connect(&address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    go_on.notify_one();
    let reply = within("the reply", call).await.unwrap().unwrap().into_inner();
    assert_eq!(reply.output, "late");
    server.stop().await;
}

#[tokio::test]
async fn a_call_that_does_not_end_holds_up_the_end_no_longer_than_the_drain() {
    let begun = Arc::new(Notify::new());
    let service = {
        let begun = begun.clone();
        Scripted::new(move |_, _| {
            let begun = begun.clone();
            async move {
                begun.notify_one();
                std::future::pending().await
            }
        })
    };
    let drain = Duration::from_millis(300);
    let server = MeshServer::new(&instance()).data(service.service()).drain(drain);
    let server = Running::start(server).await;
    let mut client = server.peers(Channels::default()).resources(&instance()).unwrap();
    let call = tokio::spawn(async move { client.call_tool(tool_call("x")).await });
    within("the call", begun.notified()).await;
    let took = server.stop().await;
    assert!(took >= drain && took < Duration::from_secs(5), "{took:?}");
    call.abort();
}

#[tokio::test]
async fn a_port_in_use_is_named_with_its_flag() {
    let taken = Listeners::bind("127.0.0.1:0", "127.0.0.1:0").await.unwrap();
    let (data, control) = taken.addresses().unwrap();
    for (flag, address, attempt) in [
        (
            "data",
            data,
            Listeners::bind(&data.to_string(), "127.0.0.1:0").await,
        ),
        (
            "control",
            control,
            Listeners::bind("127.0.0.1:0", &control.to_string()).await,
        ),
    ] {
        let message = attempt.err().unwrap().to_string();
        assert!(
            message.contains(&address.to_string()) && message.contains(&format!("--{flag}")),
            "{message}"
        );
        assert_eq!(message.lines().count(), 1);
    }
}
