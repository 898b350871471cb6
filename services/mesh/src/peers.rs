//! Typed clients of the other servers, by instance, and the one rule for trying a call again.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use belay_core::{
    ids::Instance,
    refusal::{Reason, Refusal},
};
use belay_proto::episode::{
    agent_client::AgentClient, environment_client::EnvironmentClient, policy_model_client::PolicyModelClient,
    resources_client::ResourcesClient,
};
use tonic::{Response, Status};

use crate::{
    channel::{Channels, MeshChannel},
    members::Members,
    server::MAX_MESSAGE,
    status::{self, IntoRefusal as _},
};

/// The other servers of the mesh. Cheap to clone.
#[derive(Clone)]
pub struct Peers {
    /// Who and where.
    pub members: Members,
    /// The connections.
    pub channels: Channels,
}

impl Peers {
    /// Both together.
    pub fn new(members: Members, channels: Channels) -> Self {
        Self { members, channels }
    }

    fn data(&self, instance: &Instance) -> Result<MeshChannel, Refusal> {
        let member = self.members.find(instance).ok_or_else(|| {
            Refusal::new(
                Reason::PeerUnreachable,
                format!("{instance} is not in the mesh's member list"),
            )
            .instance(instance)
        })?;
        Ok(self.channels.data(&member.data))
    }

    /// The agent at an instance; PEER_UNREACHABLE when the member list does not have it.
    pub fn agent(&self, instance: &Instance) -> Result<AgentClient<MeshChannel>, Refusal> {
        let client = AgentClient::new(self.data(instance)?);
        Ok(client
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE))
    }

    /// The environment at an instance.
    pub fn environment(&self, instance: &Instance) -> Result<EnvironmentClient<MeshChannel>, Refusal> {
        let client = EnvironmentClient::new(self.data(instance)?);
        Ok(client
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE))
    }

    /// The policy model at an instance.
    pub fn policy_model(&self, instance: &Instance) -> Result<PolicyModelClient<MeshChannel>, Refusal> {
        let client = PolicyModelClient::new(self.data(instance)?);
        Ok(client
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE))
    }

    /// The resources server at an instance.
    pub fn resources(&self, instance: &Instance) -> Result<ResourcesClient<MeshChannel>, Refusal> {
        let client = ResourcesClient::new(self.data(instance)?);
        Ok(client
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE))
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Calls until there is an answer: tries again, with growing pauses, on transport errors and on refusals that name a
/// retry (NOT_JOINED), for at most `patience`; then PEER_UNREACHABLE names the server, the call and the last error.
/// Every data call is idempotent, so a call whose answer was lost may be made again. Any other refusal is returned at once.
pub async fn call<T, F, Fut>(
    instance: &Instance,
    what: &'static str,
    patience: Duration,
    mut attempt: F,
) -> Result<T, Refusal>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let mut pause = FIRST_PAUSE;
    let mut failing_since: Option<Instant> = None;
    loop {
        let error = match attempt().await {
            Ok(response) => return Ok(response.into_inner()),
            Err(error) => error,
        };
        let refusal = status::from_status(&error);
        let retry = match &refusal {
            Some(refusal) => refusal.retry_after.is_some(),
            None => status::is_transport(&error),
        };
        if !retry {
            let refusal = error.into_refusal();
            return Err(if refusal.get("instance").is_some() {
                refusal
            } else {
                refusal.instance(instance)
            });
        }
        // A call can be in flight for an hour before its peer dies: patience is for the time without a peer.
        let since = *failing_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= patience {
            let last = refusal.map_or_else(|| status::describe(&error), |refusal| refusal.to_string());
            let message =
                format!("{instance} did not answer {what} for {patience:?}; the last error: {last}");
            return Err(Refusal::new(Reason::PeerUnreachable, message)
                .instance(instance)
                .with("call", what));
        }
        let asked_for = refusal
            .and_then(|refusal| refusal.retry_after)
            .unwrap_or_default();
        tokio::time::sleep(jittered(pause.max(asked_for))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Between half and the whole of a pause, so that thousands of callers do not come back at one moment.
fn jittered(pause: Duration) -> Duration {
    let random = uuid::Uuid::now_v7().as_u128() as u32;
    pause / 2 + pause.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}
