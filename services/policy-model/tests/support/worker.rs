//! A staging worker in this process: deterministic, held and broken at will, and it counts what it is asked.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use belay_core::ledger::Tokens;
use belay_proto::{
    episode as ep,
    worker::{self as pb, cut_answer::Outcome, inference_worker_server as iw, token_store_server as ts},
};
use bytes::Bytes;
use prost::Message as _;
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, async_trait, transport::Server};

/// Tokens of every reply.
pub const REPLY: u32 = 8;
/// Tokens of every prompt.
pub const PROMPT: u32 = 3;
/// Tokens of a cut prefix.
pub const CUT: u32 = 5;

/// How a receipt is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receipt {
    Good,
    Missing,
    Double,
    Foreign,
    /// Held back until the receipt is another one.
    Late,
    /// Says that the calls had finished.
    Finished,
}

#[derive(Clone)]
pub struct Worker {
    pub address: String,
    state: Arc<Mutex<State>>,
    hold: watch::Sender<bool>,
    receipt: watch::Sender<Receipt>,
}

#[derive(Default)]
pub struct State {
    calls: HashMap<Vec<u8>, watch::Receiver<Option<pb::GenerateResponse>>>,
    pub rows: HashMap<String, Tokens>,
    /// Every key that was sampled, in order, with the length of its prefix.
    pub sampled: Vec<(pb::CallKey, u32)>,
    pub chats: Vec<Bytes>,
    pub cuts: Vec<pb::CutRequest>,
    pub released: Vec<String>,
    pub cancelled: Vec<pb::CallKey>,
    pub freed: Vec<(String, u32)>,
    /// The next so many calls end with UNAVAILABLE, after the generation has begun.
    pub lose_replies: u32,
}

impl Worker {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let worker = Self {
            address: listener.local_addr().expect("bound").to_string(),
            state: Arc::default(),
            hold: watch::channel(false).0,
            receipt: watch::channel(Receipt::Good).0,
        };
        let server = Server::builder()
            .add_service(iw::InferenceWorkerServer::new(worker.clone()))
            .add_service(ts::TokenStoreServer::new(worker.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        worker
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics under it")
    }

    /// Generations wait from now on.
    pub fn hold(&self) {
        self.hold.send_replace(true);
    }

    pub fn release(&self) {
        self.hold.send_replace(false);
    }

    pub fn receipt(&self, receipt: Receipt) {
        self.receipt.send_replace(receipt);
    }

    pub fn sampled(&self) -> usize {
        self.state().sampled.len()
    }

    fn span(&self, row: String, prompt: &[u32], sampled: &[u32]) -> pb::TokenSpan {
        let tokens = Tokens {
            prompt: prompt.to_vec(),
            sampled: sampled.to_vec(),
            logprobs: sampled.iter().map(|id| -(*id as f32) / 100.0).collect(),
        };
        let span = pb::TokenSpan {
            coordinate: Some(pb::Coordinate {
                store: "store".into(),
                row: row.clone(),
            }),
            tokens: sampled.len() as u32,
            digest: Bytes::copy_from_slice(&tokens.digest().expect("aligned")),
            weights: vec![ep::WeightSpan {
                tokens: sampled.len() as u32,
                version: "w1".into(),
            }],
        };
        self.state().rows.insert(row, tokens);
        span
    }
}

fn turn(key: &pb::CallKey) -> u32 {
    key.operation.as_ref().expect("has an operation").turn
}

/// What is sampled in a turn: the same in every life.
pub fn tokens_of(turn: u32) -> (Vec<u32>, Vec<u32>) {
    let prompt = (0..PROMPT).map(|n| 1000 * (turn + 1) + n).collect();
    (prompt, (0..REPLY).map(|n| 100 * (turn + 1) + n).collect())
}

fn row_of(key: &pb::CallKey, kind: &str) -> String {
    format!("{kind}:{}", blake3::hash(&key.encode_to_vec()).to_hex())
}

#[async_trait]
impl iw::InferenceWorker for Worker {
    async fn generate(
        &self,
        request: Request<pb::GenerateRequest>,
    ) -> Result<Response<pb::GenerateResponse>, Status> {
        let request = request.into_inner();
        let key = request.key.clone().expect("has a key");
        let mut ended = {
            let mut state = self.state();
            match state.calls.get(&key.encode_to_vec()[..]) {
                Some(ended) => ended.clone(),
                None => {
                    let prefix = request.prefix.as_ref().map_or(0, |span| span.tokens);
                    state.sampled.push((key.clone(), prefix));
                    state.chats.push(request.chat_request.clone());
                    let (tell, ended) = watch::channel(None);
                    state.calls.insert(key.encode_to_vec(), ended.clone());
                    let (worker, mut hold) = (self.clone(), self.hold.subscribe());
                    tokio::spawn(async move {
                        hold.wait_for(|hold| !hold).await.expect("the worker lives");
                        let (prompt, sampled) = tokens_of(turn(&key));
                        let span = worker.span(row_of(&key, "row"), &prompt, &sampled);
                        tell.send_replace(Some(pb::GenerateResponse {
                            message: format!(r#"{{"role":"assistant","content":"turn {}"}}"#, turn(&key))
                                .into(),
                            finish_reason: ep::FinishReason::Stop.into(),
                            prompt_tokens: PROMPT,
                            tokens: Some(span),
                            prefix_tokens: prefix,
                            model: "fake".into(),
                        }));
                    });
                    ended
                }
            }
        };
        let lost = {
            let mut state = self.state();
            let lost = state.lose_replies > 0;
            state.lose_replies -= u32::from(lost);
            lost
        };
        if lost {
            return Err(Status::unavailable("the reply is lost"));
        }
        let reply = ended.wait_for(Option::is_some).await.expect("it ends").clone();
        Ok(Response::new(reply.expect("waited for it")))
    }

    async fn cut(&self, request: Request<pb::CutRequest>) -> Result<Response<pb::CutResponse>, Status> {
        let request = request.into_inner();
        self.state().cuts.push(request.clone());
        let mut mode = self.receipt.subscribe();
        let late = *mode.borrow() == Receipt::Late;
        if late {
            mode.wait_for(|mode| *mode != Receipt::Late)
                .await
                .expect("the worker lives");
        }
        let mut answers: Vec<_> = request
            .calls
            .iter()
            .map(|key| {
                let (prompt, sampled) = tokens_of(turn(key));
                let span = self.span(row_of(key, "prefix"), &prompt, &sampled[..CUT as usize]);
                pb::CutAnswer {
                    key: Some(key.clone()),
                    outcome: Some(Outcome::Staged(span)),
                }
            })
            .collect();
        let receipt = *mode.borrow();
        match receipt {
            Receipt::Good | Receipt::Late => {}
            Receipt::Missing => answers.clear(),
            Receipt::Double => answers.extend(answers.clone()),
            Receipt::Foreign => {
                for answer in &mut answers {
                    let key = answer.key.as_mut().expect("set");
                    key.operation.as_mut().expect("set").turn += 7;
                }
            }
            Receipt::Finished => {
                for answer in &mut answers {
                    answer.outcome = Some(Outcome::Finished(pb::CutFinished {}));
                }
            }
        }
        Ok(Response::new(pb::CutResponse { answers }))
    }

    async fn release(
        &self,
        request: Request<pb::ReleaseRequest>,
    ) -> Result<Response<pb::ReleaseResponse>, Status> {
        self.state().released.push(request.into_inner().checkpoint_id);
        Ok(Response::new(pb::ReleaseResponse { freed: 0 }))
    }

    async fn check_coordinates(
        &self,
        request: Request<pb::CheckCoordinatesRequest>,
    ) -> Result<Response<pb::CheckCoordinatesResponse>, Status> {
        let state = self.state();
        let states = request.into_inner().spans.into_iter().map(|span| {
            match state.rows.get(&span.coordinate.expect("placed").row) {
                Some(tokens) if tokens.digest().expect("aligned")[..] == span.digest[..] => {
                    pb::SpanState::Whole.into()
                }
                Some(_) => pb::SpanState::Altered.into(),
                None => pb::SpanState::Missing.into(),
            }
        });
        Ok(Response::new(pb::CheckCoordinatesResponse {
            states: states.collect(),
        }))
    }

    async fn cancel(
        &self,
        request: Request<pb::CancelRequest>,
    ) -> Result<Response<pb::CancelResponse>, Status> {
        self.state()
            .cancelled
            .push(request.into_inner().key.expect("has a key"));
        Ok(Response::new(pb::CancelResponse { was_running: true }))
    }

    async fn free_rows(
        &self,
        request: Request<pb::FreeRowsRequest>,
    ) -> Result<Response<pb::FreeRowsResponse>, Status> {
        let rollouts = request.into_inner().rollouts;
        self.state().freed.extend(
            rollouts
                .into_iter()
                .map(|free| (free.rollout_id, free.through_attempt)),
        );
        Ok(Response::new(pb::FreeRowsResponse { freed: 0 }))
    }
}

#[async_trait]
impl ts::TokenStore for Worker {
    type ReadTokensStream = tokio_stream::Iter<std::vec::IntoIter<Result<pb::ReadTokensResponse, Status>>>;

    async fn read_tokens(
        &self,
        request: Request<pb::ReadTokensRequest>,
    ) -> Result<Response<Self::ReadTokensStream>, Status> {
        let state = self.state();
        let rows = request.into_inner().coordinates.into_iter().map(|coordinate| {
            let tokens = state
                .rows
                .get(&coordinate.row)
                .ok_or_else(|| Status::not_found(coordinate.row.clone()))?;
            Ok(pb::ReadTokensResponse {
                prompt_token_ids: tokens.prompt.clone(),
                token_ids: tokens.sampled.clone(),
                logprobs: tokens.logprobs.clone(),
                weights: Vec::new(),
                coordinate: Some(coordinate),
            })
        });
        let rows = rows.collect::<Result<Vec<_>, Status>>()?;
        Ok(Response::new(tokio_stream::iter(
            rows.into_iter().map(Ok).collect::<Vec<_>>(),
        )))
    }
}
