//! What a policy-model server is made with.

use std::time::Duration;

use belay_participant::ServerCommon;

/// The configuration of one replica.
#[derive(Clone, Debug)]
pub struct PolicyModelConfig {
    /// What all servers have.
    pub common: ServerCommon,
    /// Where replies are sampled.
    pub engine: EngineConfig,
    /// For how long a call tries again while the engine cannot be reached, before it fails.
    pub engine_patience: Duration,
    /// The longest that one generation may take.
    pub generation_limit: Duration,
}

impl PolicyModelConfig {
    /// The usual patience and limit.
    pub fn new(common: ServerCommon, engine: EngineConfig) -> Self {
        Self {
            common,
            engine,
            engine_patience: Duration::from_secs(60),
            generation_limit: Duration::from_secs(3600),
        }
    }
}

/// The engine behind the policy model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineConfig {
    /// An inference worker that survives the mesh, cuts, and keeps tokens (gRPC `InferenceWorker` and `TokenStore`).
    StagingWorker {
        /// `host:port`; spoken to as to the servers of the mesh, with TLS where they have it.
        address: String,
        /// The name of its model; `None`: as the request says.
        model: Option<String>,
    },
    /// An engine with OpenAI-compatible chat completions, such as vLLM or llama.cpp.
    OpenAi(OpenAiConfig),
}

/// An engine with OpenAI-compatible chat completions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenAiConfig {
    /// The address before `/chat/completions`, for example `http://127.0.0.1:8000/v1`.
    pub base_url: String,
    /// The name of its model; `None`: as the request says.
    pub model: Option<String>,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// Ask for token ids and logprobs. Without them rows are masked in trajectories. Off for engines that refuse the fields.
    pub token_ids: bool,
    /// The weights' version, if known.
    pub weights: Option<String>,
    /// At most this many requests at once; others wait.
    pub max_concurrent: usize,
}

impl OpenAiConfig {
    /// An engine at this address, with everything else as usual.
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: None,
            api_key: None,
            token_ids: true,
            weights: None,
            max_concurrent: 4096,
        }
    }
}
