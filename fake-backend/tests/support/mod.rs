//! An engine of its own for each test.
#![allow(dead_code, missing_docs)] // each test file uses its share

use std::time::Duration;

use belay_core::ids::Digest;
use belay_fake_backend::{BackendConfig, ctl::CtlClient, serve};
use belay_mesh::shutdown::Shutdown;
use belay_proto::{
    episode::{Episode, EpisodeRef, Operation},
    worker::{
        CallKey, GenerateRequest, GenerateResponse, ReadTokensRequest, ReadTokensResponse, TokenSpan,
        inference_worker_client::InferenceWorkerClient, token_store_client::TokenStoreClient,
    },
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{Status, transport::Channel};

/// No wait of these tests comes near it, unless something is lost.
pub const BOUND: Duration = Duration::from_secs(30);

pub struct Backend {
    pub ctl: CtlClient,
    pub worker: InferenceWorkerClient<Channel>,
    pub store: TokenStoreClient<Channel>,
    pub http: reqwest::Client,
    shutdown: Shutdown,
    task: JoinHandle<Result<(), belay_mesh::server::ServeError>>,
}

impl Backend {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let shutdown = Shutdown::new();
        let task = tokio::spawn(serve(BackendConfig::default(), listener, shutdown.clone()));
        let channel = Channel::from_shared(format!("http://{address}"))
            .expect("a URI")
            .connect_lazy();
        Self {
            ctl: CtlClient::new(address),
            worker: InferenceWorkerClient::new(channel.clone()),
            store: TokenStoreClient::new(channel),
            http: reqwest::Client::new(),
            shutdown,
            task,
        }
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        drop((self.worker, self.store, self.http));
        let ended = tokio::time::timeout(BOUND, self.task).await.expect("it ends");
        ended.expect("no panic").expect("no error");
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("{}{path}", self.ctl.base());
        let response = self.http.post(url).json(body).send().await.expect("an answer");
        let status = response.status().as_u16();
        let text = response.text().await.expect("a body");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// The events of a stream, and whether it ended with `[DONE]`.
    pub async fn stream(&self, path: &str, body: &Value) -> (Vec<Value>, bool) {
        let url = format!("{}{path}", self.ctl.base());
        let mut response = self.http.post(url).json(body).send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        let mut text = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            text.extend_from_slice(&chunk);
        }
        let text = String::from_utf8(text).expect("text");
        let mut events = Vec::new();
        let mut done = false;
        for line in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
            assert!(!done, "nothing follows [DONE]");
            match line {
                "[DONE]" => done = true,
                json => events.push(serde_json::from_str(json).expect("an event")),
            }
        }
        (events, done)
    }

    pub async fn generate(&self, request: GenerateRequest) -> Result<GenerateResponse, Status> {
        let mut worker = self.worker.clone();
        Ok(worker.generate(request).await?.into_inner())
    }

    pub fn spawn_generate(&self, request: GenerateRequest) -> JoinHandle<Result<GenerateResponse, Status>> {
        let mut worker = self.worker.clone();
        tokio::spawn(async move { Ok(worker.generate(request).await?.into_inner()) })
    }

    pub async fn tokens(&self, span: &TokenSpan) -> Result<ReadTokensResponse, Status> {
        let request = ReadTokensRequest {
            coordinates: vec![span.coordinate.clone().expect("a coordinate")],
        };
        let mut stream = self.store.clone().read_tokens(request).await?.into_inner();
        stream
            .message()
            .await
            .map(|message| message.expect("one message"))
    }
}

pub fn key(rollout: &str, attempt: u32, life: u128, turn: u32) -> CallKey {
    let episode = Episode {
        rollout_id: rollout.into(),
        attempt,
    };
    CallKey {
        r#ref: Some(EpisodeRef {
            episode: Some(episode),
            execution: uuid::Uuid::from_u128(life).to_string(),
        }),
        operation: Some(Operation { turn, index: 0 }),
    }
}

pub fn digest(body: &[u8]) -> Digest {
    *blake3::hash(body).as_bytes()
}

pub fn request(key: CallKey, chat: &Value) -> GenerateRequest {
    let body = chat.to_string().into_bytes();
    GenerateRequest {
        key: Some(key),
        request_digest: digest(&body).to_vec().into(),
        chat_request: body.into(),
        prefix: None,
    }
}

pub fn chat(user: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": user }] })
}

/// A reply of many tokens, with characters of several bytes, reasoning and a tool call.
pub fn long_chat() -> Value {
    chat(
        r#"script: {"think":"wäre möglich","say":"größer → 猫 und 犬. ","times":6,"call":"note","args":{"text":"ünïcödé"}}"#,
    )
}
