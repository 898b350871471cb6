//! A deterministic inference engine with its token store and its control endpoint, for tests and the demo.
//!
//! It decides from the conversation alone ([`mind`]), so the same conversation gives the same answer, token by token, in any
//! process. One port serves gRPC (`InferenceWorker`, `TokenStore`, health, reflection) and HTTP (an OpenAI-compatible API, and
//! `/_ctl`), HTTP/1 and HTTP/2. It outlives the mesh: its calls, rows and effect log are in memory, and are lost
//! with its process alone, whose store then has another identity.
//!
//! | path | what |
//! | --- | --- |
//! | `POST /v1/chat/completions` | a reply, whole or as server-sent events; `logprobs`, `return_token_ids` |
//! | `POST /v1/completions` | the same after a prompt of text or token ids, so also the rest of a reply that was cut |
//! | `GET /v1/models`, `GET /health`, `GET /metrics` | as usual |
//! | `POST /tokenize`, `POST /detokenize` | text to ids and back |
//! | `/_ctl/...` | holds, faults, counters, the call log, the effect log: see [`ctl`] |
//!
//! A call by HTTP belongs to its connection: the caller's going away stops it. A call by gRPC goes on until it is cancelled.
//! Callers by HTTP may say whose call it is, for the log and for holds by rollout, with the headers `x-belay-rollout`,
//! `x-belay-attempt`, `x-belay-execution`, `x-belay-turn` and `x-belay-index`.

mod bounded;
mod call;
mod chat;
pub mod conversation;
pub mod ctl;
mod deltas;
pub mod effects;
mod engine;
pub mod error;
pub mod faults;
mod grpc;
pub mod holds;
mod http;
mod keyed;
pub mod log;
mod message_json;
pub mod mind;
mod rows;
mod sampling;
mod serve;
mod staging;
pub mod tokens;
pub mod work;
mod worker;

pub use engine::BackendConfig;
pub use serve::serve;
