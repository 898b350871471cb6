//! The effect log: every applied call is told before its reply, a kept one is not told again, and a log that is gone holds
//! nothing up for good.

use std::sync::{Arc, Mutex};

use belay_core::{ids::hex, sessions::call_digest};
use belay_resources::environments::Counter;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
};

use super::*;

/// An HTTP server that answers each request as told and keeps the bodies.
pub(crate) async fn log(status: &'static str) -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/_ctl/effects", listener.local_addr().expect("bound"));
    let told: Arc<Mutex<Vec<Value>>> = Arc::default();
    let kept = told.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let kept = kept.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Some(body) = read_request(&mut stream).await {
                    kept.lock()
                        .expect("no panic")
                        .push(serde_json::from_slice(&body).expect("JSON"));
                    let reply = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                    stream
                        .get_mut()
                        .write_all(reply.as_bytes())
                        .await
                        .expect("a client");
                }
            });
        }
    });
    (url, told)
}

/// The body of the next request; `None` when the client has gone.
async fn read_request(stream: &mut BufReader<tokio::net::TcpStream>) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(body)
}

async fn server(root: &TempDir, url: String) -> Server {
    let server = Server::start(root, Counter, |config| config.effect_log = Some(url)).await;
    server.control.join(true).await;
    server
}

#[tokio::test]
async fn applied_calls_are_told_once_and_failed_ones_not() {
    let root = tempfile::tempdir().unwrap();
    let (url, told) = log("200 OK").await;
    let server = server(&root, url).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    server.add(&me, (0, 1), 2).await.unwrap();
    server.add(&me, (0, 1), 2).await.unwrap();
    server.call(&me, (0, 2), "increment_counter", "{}").await.unwrap();
    server.count(&me, (1, 1)).await;
    let effect = |turn: u32, index: u32, (tool, arguments): (&str, &str), revision: u64| {
        let digest = hex(&call_digest(tool, arguments.as_bytes()));
        json!({"rollout_id": "r", "attempt": 0, "execution": uuid::Uuid::from_u128(1).to_string(), "turn": turn,
               "index": index, "tool": tool, "external": false, "key": format!("r/{turn}/{index}/{digest}"),
               "instance": "resources/counter/0", "revision": revision})
    };
    assert_eq!(
        *told.lock().unwrap(),
        [
            effect(0, 1, ("increment_counter", r#"{"count": 2}"#), 1),
            effect(1, 1, ("get_counter_value", "{}"), 2)
        ]
    );
    assert_eq!(server.control.status().await.warnings, [""; 0]);
}

#[tokio::test]
async fn a_log_that_refuses_is_told_of_in_status_and_the_call_is_applied_once() {
    let root = tempfile::tempdir().unwrap();
    let (url, told) = log("503 Service Unavailable").await;
    let server = server(&root, url.clone()).await;
    let me = life("r", 0, 1);
    server.seed(&me).await.unwrap();
    assert_eq!(server.add(&me, (0, 1), 2).await.unwrap().revision, 1);
    assert!(told.lock().unwrap().len() > 1, "it was tried again");
    assert_eq!(server.verify(&me, "{}").await.unwrap().reward, 0.0);
    let warnings = server.control.status().await.warnings;
    assert!(
        warnings[0].contains("1 applied") && warnings[0].contains(&url),
        "{warnings:?}"
    );
}
