//! Typed clients of the other servers, by instance, and the one rule for trying a call again.

use std::{future::Future, time::Duration};

use belay_core::{
    ids::Instance,
    refusal::{Reason, Refusal},
};
use belay_proto::episode::{
    agent_client::AgentClient, environment_client::EnvironmentClient, policy_model_client::PolicyModelClient,
    resources_client::ResourcesClient,
};
use tokio::time::Instant;
use tonic::{Response, Status};
use tracing::Instrument as _;

use crate::{
    channel::{CONNECT_TIMEOUT, Channels, KEEPALIVE, MeshChannel},
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

/// A dead peer is noticed within this: a call that lasted longer had met a living one.
const DEAD_WITHIN: Duration = Duration::from_secs(CONNECT_TIMEOUT.as_secs() + 2 * KEEPALIVE.as_secs() + 5);

/// Calls until there is an answer: tries again, with growing pauses, on transport errors and on refusals that name a
/// retry (NOT_JOINED), for at most `patience`; then PEER_UNREACHABLE names the server, the call and the last error.
/// Every data call is idempotent, so a call whose answer was lost may be made again. Any other refusal is returned at once.
///
/// A call can be in flight for an hour before its peer dies: `patience` is for the time without a peer, from the first
/// error on, and begins anew after a call that a peer had taken up.
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
        let begun = Instant::now();
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
        if begun.elapsed() > DEAD_WITHIN {
            (pause, failing_since) = (FIRST_PAUSE, None);
        }
        let since = *failing_since.get_or_insert_with(Instant::now);
        let left = patience.saturating_sub(since.elapsed());
        if left.is_zero() {
            let last = refusal.map_or_else(|| status::describe(&error), |refusal| refusal.to_string());
            let message = format!(
                "{instance} did not answer {what} for {patience:?} (last error: {last}); look whether it runs and can be reached"
            );
            return Err(Refusal::new(Reason::PeerUnreachable, message)
                .instance(instance)
                .with("call", what));
        }
        let asked_for = refusal
            .and_then(|refusal| refusal.retry_after)
            .unwrap_or_default();
        // The last try comes when patience ends, whatever the peer asked for.
        tokio::time::sleep(jittered(pause.max(asked_for)).min(left)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// As [`call`], in a task of its own: who stops waiting for it leaves it to its end. An episode that is retired ends at once; its
/// calls are answered by servers that retire it as well, and thousands of calls dropped at one moment would end their connection.
pub async fn call_to_its_end<T, F, Fut>(
    instance: &Instance,
    what: &'static str,
    patience: Duration,
    attempt: F,
) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: FnMut() -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<T>, Status>> + Send + 'static,
{
    let instance = instance.clone();
    let task = async move { call(&instance, what, patience, attempt).await };
    match tokio::spawn(task.in_current_span()).await {
        Ok(answer) => answer,
        Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
        // The runtime is going down, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

/// Between half and the whole of a pause, so that thousands of callers do not come back at one moment.
fn jittered(pause: Duration) -> Duration {
    let random = uuid::Uuid::now_v7().as_u128() as u32;
    pause / 2 + pause.mul_f64(f64::from(random) / f64::from(u32::MAX) / 2.0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn peer() -> Instance {
        "resources/counter/1".parse().unwrap()
    }

    fn gone() -> Status {
        Status::unavailable("Connection refused")
    }

    fn refused(reason: Reason) -> Status {
        status::to_status(&Refusal::new(reason, "as it is"))
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_tried_again_until_there_is_an_answer() {
        let tries = Cell::new(0);
        let peer = peer();
        let answer = call(&peer, "CallTool", PATIENCE, || {
            tries.set(tries.get() + 1);
            let answer = match tries.get() {
                1 => Err(gone()),
                2 => Err(status::to_status(
                    &Refusal::new(Reason::NotJoined, "joining").retry(Duration::from_millis(50)),
                )),
                n => Ok(Response::new(n)),
            };
            async { answer }
        });
        assert_eq!(answer.await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn patience_ends_with_the_names_of_server_and_call() {
        let begun = Instant::now();
        let tries = Cell::new(0_u32);
        let refusal = call::<(), _, _>(&peer(), "CallTool", PATIENCE, || {
            tries.set(tries.get() + 1);
            async { Err(gone()) }
        })
        .await
        .unwrap_err();
        assert_eq!(refusal.reason, Reason::PeerUnreachable);
        assert_eq!(
            (refusal.get("instance"), refusal.get("call")),
            (Some("resources/counter/1"), Some("CallTool"))
        );
        for part in ["resources/counter/1", "CallTool", "30s", "Connection refused"] {
            assert!(refusal.message.contains(part), "{refusal}");
        }
        let took = begun.elapsed();
        assert!(
            took >= PATIENCE && took < PATIENCE + Duration::from_millis(50),
            "{took:?}"
        );
        // Pauses grow to a second and no further: 30 s hold between 30 and 70 of them.
        assert!((30..75).contains(&tries.get()), "{} tries", tries.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_asks_for_an_hour_does_not_get_it() {
        let begun = Instant::now();
        let refusal = call::<(), _, _>(&peer(), "Seed", PATIENCE, || async {
            let hour = Duration::from_secs(3_600);
            Err(status::to_status(
                &Refusal::new(Reason::AdmissionFull, "the door is full").retry(hour),
            ))
        })
        .await
        .unwrap_err();
        assert_eq!(refusal.reason, Reason::PeerUnreachable);
        assert!(
            refusal.message.contains("ADMISSION_FULL: the door is full"),
            "{refusal}"
        );
        assert_eq!(begun.elapsed().as_secs(), PATIENCE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_peer_decides_is_final_and_names_it() {
        for (status, reason) in [
            (refused(Reason::StaleExecution), Reason::StaleExecution),
            (refused(Reason::EngineFailed), Reason::EngineFailed),
            (Status::unimplemented("no such call"), Reason::Internal),
        ] {
            let tries = Cell::new(0);
            let refusal = call::<(), _, _>(&peer(), "Generate", PATIENCE, || {
                tries.set(tries.get() + 1);
                let status = status.clone();
                async { Err(status) }
            })
            .await
            .unwrap_err();
            assert_eq!((refusal.reason, tries.get()), (reason, 1));
            assert_eq!(refusal.get("instance"), Some("resources/counter/1"));
        }
        let elsewhere = Refusal::new(Reason::EpisodeUnknown, "not here").with("instance", "agent/default/0");
        let refusal = call::<(), _, _>(&peer(), "Invoke", PATIENCE, || async {
            Err(status::to_status(&elsewhere))
        })
        .await
        .unwrap_err();
        assert_eq!(refusal, elsewhere);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_a_peer_had_taken_up_renews_the_patience() {
        let tries = Cell::new(0);
        let peer = peer();
        let answer = call(&peer, "Invoke", PATIENCE, || {
            tries.set(tries.get() + 1);
            let n = tries.get();
            async move {
                match n {
                    // It comes up, works for an hour, dies, and is away for most of the patience.
                    2 => tokio::time::sleep(Duration::from_secs(3_600)).await,
                    10.. => return Ok(Response::new(n)),
                    _ => {}
                }
                Err(gone())
            }
        });
        assert_eq!(answer.await.unwrap(), 10);
    }
}
