//! One participant, as the coordinator calls it: every call carries the fence, has a bound, and ends in a reply or a refusal that
//! names the server.

use std::{future::Future, time::Duration};

use belay_core::{
    ids::{Incarnation, Instance},
    refusal::{Reason, Refusal},
};
use belay_mesh::{channel::MeshChannel, server::MAX_MESSAGE, status};
use belay_proto::checkpoint::{
    self as pb, checkpoint_participant_client::CheckpointParticipantClient as Client,
};
use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout};

use crate::superseded::Superseded;

/// A connection that fails is tried again for this long: a dropped connection is no dead server.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// A participant's process. Cheap to clone.
#[derive(Clone)]
pub struct Peer {
    /// Which server.
    pub instance: Instance,
    /// Which life of it: another one refuses.
    pub incarnation: Incarnation,
    epoch: u64,
    client: Client<MeshChannel>,
    superseded: Superseded,
}

/// A client of a participant's control port.
pub fn client(channel: MeshChannel) -> Client<MeshChannel> {
    Client::new(channel)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE)
}

/// A participant's status, whichever process answers.
pub async fn status(
    instance: &Instance,
    mut client: Client<MeshChannel>,
    max_blockers: u32,
    bound: Duration,
) -> Result<pb::StatusResponse, Refusal> {
    match timeout(bound, client.status(pb::StatusRequest { max_blockers })).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) => Err(refusal(instance, "Status", &status)),
        Err(_) => Err(late(instance, "Status", bound)),
    }
}

macro_rules! calls {
    ($($method:ident($request:ident) -> $response:ident as $name:literal;)*) => {
        impl Peer {$(
            #[doc = concat!("`", $name, "`, for at most `bound`.")]
            pub async fn $method(&self, request: pb::$request, bound: Duration) -> Result<pb::$response, Refusal> {
                let request = pb::$request { fence: Some(self.fence()), ..request };
                self.insist($name, bound, || {
                    let (mut client, request) = (self.client.clone(), request.clone());
                    async move { client.$method(request).await }
                })
                .await
            }
        )*}
    };
}

calls! {
    join(JoinRequest) -> JoinResponse as "Join";
    prepare(PrepareRequest) -> PrepareResponse as "Prepare";
    renew(RenewRequest) -> RenewResponse as "Renew";
    commit(CommitRequest) -> CommitResponse as "Commit";
    r#await(AwaitRequest) -> AwaitResponse as "Await";
    resume(ResumeRequest) -> ResumeResponse as "Resume";
    settle(SettleRequest) -> SettleResponse as "Settle";
    restore(RestoreRequest) -> RestoreResponse as "Restore";
    retire(RetireRequest) -> RetireResponse as "Retire";
    forget(ForgetRequest) -> ForgetResponse as "Forget";
}

impl Peer {
    /// A process of a server, under our epoch.
    pub fn new(
        instance: Instance,
        incarnation: Incarnation,
        epoch: u64,
        client: Client<MeshChannel>,
        superseded: Superseded,
    ) -> Self {
        Self {
            instance,
            incarnation,
            epoch,
            client,
            superseded,
        }
    }

    /// What it holds now, for at most `bound`.
    pub async fn status(&self, max_blockers: u32, bound: Duration) -> Result<pb::StatusResponse, Refusal> {
        status(&self.instance, self.client.clone(), max_blockers, bound).await
    }

    fn fence(&self) -> pb::Fence {
        pb::Fence {
            coordinator_epoch: self.epoch,
            incarnation: self.incarnation.to_string(),
        }
    }

    /// Calls until there is an answer. Every call is idempotent, so one whose answer was lost may be made again.
    async fn insist<T, F, Fut>(&self, what: &'static str, bound: Duration, call: F) -> Result<T, Refusal>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let tries = async {
            let mut failing_since: Option<Instant> = None;
            loop {
                let status = match call().await {
                    Ok(reply) => return Ok(reply.into_inner()),
                    Err(status) => status,
                };
                let known = !status::is_transport(&status);
                let since = *failing_since.get_or_insert_with(Instant::now);
                if known || since.elapsed() >= PATIENCE {
                    return Err(refusal(&self.instance, what, &status));
                }
                sleep(PAUSE).await;
            }
        };
        let reply = timeout(bound, tries)
            .await
            .unwrap_or_else(|_| Err(late(&self.instance, what, bound)));
        if let Err(refusal) = &reply
            && refusal.reason == Reason::StaleCoordinator
        {
            self.superseded.tell(&self.instance);
        }
        reply
    }
}

/// A status as a refusal that names the server.
fn refusal(instance: &Instance, what: &str, status: &tonic::Status) -> Refusal {
    match status::from_status(status) {
        Some(refusal) if refusal.get("instance").is_some() => refusal,
        Some(refusal) => refusal.instance(instance),
        None => Refusal::new(
            Reason::PeerUnreachable,
            format!(
                "{instance} did not answer {what} ({}): look whether it runs and can be reached",
                status::describe(status)
            ),
        )
        .instance(instance),
    }
}

fn late(instance: &Instance, what: &str, bound: Duration) -> Refusal {
    Refusal::new(
        Reason::PeerUnreachable,
        format!(
            "{instance} did not answer {what} within {bound:.1?}: look whether it runs and is not stopped"
        ),
    )
    .instance(instance)
}

/// Asks all at once, and ends with the first that refuses: what the others still do is ended by the caller's next step.
pub async fn all<T, F, Fut>(peers: &[Peer], call: F) -> Result<Vec<(Instance, T)>, (Instance, Refusal)>
where
    F: Fn(Peer) -> Fut,
    Fut: Future<Output = Result<T, Refusal>>,
{
    let mut calls: FuturesUnordered<_> = peers
        .iter()
        .map(|peer| {
            let (instance, reply) = (peer.instance.clone(), call(peer.clone()));
            async move { (instance, reply.await) }
        })
        .collect();
    let mut replies = Vec::with_capacity(peers.len());
    while let Some((instance, reply)) = calls.next().await {
        match reply {
            Ok(reply) => replies.push((instance, reply)),
            Err(refusal) => return Err((instance, refusal)),
        }
    }
    Ok(replies)
}

/// Asks all at once, and waits for every answer.
pub async fn each<T, F, Fut>(peers: &[Peer], call: F) -> Vec<(Peer, Result<T, Refusal>)>
where
    F: Fn(Peer) -> Fut,
    Fut: Future<Output = Result<T, Refusal>>,
{
    join_all(peers.iter().map(|peer| {
        let (peer, reply) = (peer.clone(), call(peer.clone()));
        async move { (peer, reply.await) }
    }))
    .await
}
