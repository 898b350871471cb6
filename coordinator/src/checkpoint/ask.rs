//! The stages of a checkpoint that ask participants.

use std::{collections::BTreeSet, time::Duration};

use belay_core::{
    coordinator::checkpoint_run::Done,
    ids::{Episode, Instance},
    parts::Restart,
    refusal::{Blocker, Reason, Refusal},
};
use belay_mesh::wire::ToWire as _;
use belay_proto::checkpoint as pb;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until};

use super::Driver;
use crate::{
    events::CheckpointEvent,
    peer::{Peer, all, each},
    wire,
};

/// The participant's own timeout ends first, and says more.
const MARGIN: Duration = Duration::from_secs(1);
/// How often those that are waited for are asked for their blockers.
const BLOCKERS_EVERY: Duration = Duration::from_millis(500);
/// How often a policy model is asked whether its cuts are answered.
const CUTS_EVERY: Duration = Duration::from_millis(10);
/// In a policy model's counts: generations in flight whose cut is not answered.
pub const CUTS_PENDING: &str = "cuts_pending";
const BLOCKERS_TOLD: u32 = 20;

impl Driver {
    pub(super) async fn prepare(&mut self, on: &[Instance], restarts: &[Restart]) -> Done {
        self.prepare_began.get_or_insert_with(Instant::now);
        let share = self.share();
        let peers = self.peers(on);
        self.lease.watch(&peers);
        let request = pb::PrepareRequest {
            fence: None,
            checkpoint_id: self.id.to_string(),
            timeout: Some(share.to_wire()),
            grace: Some(self.options.grace.to_wire()),
            soft_limit: self
                .options
                .soft_limit
                .map(|limit| (limit.min(share * 9 / 10)).to_wire()),
            restarts: restarts.iter().map(|r| r.to_wire()).collect(),
        };
        let replies = tokio::select! {
            replies = all(&peers, |peer| {
                let request = request.clone();
                async move {
                    let instance = peer.instance.clone();
                    let reply = peer.prepare(request, share + MARGIN).await?;
                    match reply.phase() {
                        pb::Phase::Prepared => wire::prepared(reply),
                        _ => Err(not_parked(&instance, share, reply)),
                    }
                }
            }) => replies,
            never = self.tell_blockers(&peers) => match never {},
        };
        answered(replies.map(Done::Prepared))
    }

    /// Tells what is waited for, as it ages.
    async fn tell_blockers(&self, peers: &[Peer]) -> std::convert::Infallible {
        loop {
            sleep(BLOCKERS_EVERY).await;
            let statuses = join_all(peers.iter().map(|p| p.status(BLOCKERS_TOLD, BLOCKERS_EVERY))).await;
            let (mut blockers, mut count) = (Vec::new(), 0);
            for status in statuses.into_iter().flatten() {
                count += status.blocker_count;
                blockers.extend(wire::blockers(status.blockers));
            }
            if count > 0 {
                blockers.sort_by_key(|b| std::cmp::Reverse(b.age));
                self.events.tell(CheckpointEvent::Waiting {
                    stage: "prepare",
                    blockers,
                    count,
                });
            }
        }
    }

    /// Lets generation cuts be answered. What is not, when the budget is over, is generated anew after a restore: never a blocker.
    pub(super) async fn cuts(&mut self, on: &[Instance]) -> Done {
        let deadline = Instant::now() + self.options.cut_budget.min(self.share());
        let peers = self.peers(on);
        loop {
            let asked = join_all(peers.iter().map(|p| p.status(1, self.options.cut_budget)));
            let pending: u64 = tokio::select! {
                statuses = asked => statuses
                    .into_iter()
                    .flatten()
                    .filter_map(|s| s.counts.get(CUTS_PENDING).copied())
                    .sum(),
                () = sleep_until(deadline) => return Done::Ok,
            };
            if pending == 0 {
                return Done::Ok;
            }
            sleep(CUTS_EVERY).await;
        }
    }

    pub(super) async fn commit(&mut self, on: &[Instance], scope: &[Episode]) -> Done {
        let share = self.share();
        let request = pb::CommitRequest {
            fence: None,
            checkpoint_id: self.id.to_string(),
            timeout: Some(share.to_wire()),
            scope: scope.iter().map(|e| e.to_wire()).collect(),
        };
        let replies = all(&self.peers(on), |peer| {
            let request = request.clone();
            async move {
                let reply = peer.commit(request, share + MARGIN).await?;
                let cut = (reply.cut_generations, reply.cut_tokens);
                Ok((wire::committed(reply)?, cut))
            }
        })
        .await;
        answered(replies.map(|replies| {
            let mut committed = Vec::with_capacity(replies.len());
            for (instance, (reply, (generations, tokens))) in replies {
                self.report.cut_generations += generations;
                self.report.cut_tokens += tokens;
                committed.push((instance, reply));
            }
            Done::Committed(committed)
        }))
    }

    pub(super) async fn keep(&mut self, on: &[Instance]) -> Done {
        let share = self.share();
        let request = pb::ResumeRequest {
            fence: None,
            checkpoint_id: self.id.to_string(),
            decision: pb::Decision::Keep.into(),
        };
        let replies = each(&self.peers(on), |peer| {
            let request = request.clone();
            async move { peer.resume(request, share).await }
        })
        .await;
        if let Some(began) = self.prepare_began {
            self.report.stall = began.elapsed();
        }
        let (mut kept, mut failure) = (Vec::new(), None);
        for (peer, reply) in replies {
            match reply {
                Ok(_) => {
                    self.lease.release(&peer.instance);
                    kept.push(peer.instance);
                }
                Err(refusal) => failure = failure.or(Some((peer.instance, refusal))),
            }
        }
        Done::Kept { kept, failure }
    }

    pub(super) async fn await_durable(&mut self, on: &[Instance]) -> Done {
        self.lease.end();
        let share = self.share();
        let request = pb::AwaitRequest {
            fence: None,
            checkpoint_id: self.id.to_string(),
            timeout: Some(share.to_wire()),
        };
        let replies = all(&self.peers(on), |peer| {
            let request = request.clone();
            async move { peer.r#await(request, share + MARGIN).await }
        })
        .await;
        answered(replies.and_then(|replies| {
            for (instance, reply) in replies {
                let Some(incarnation) = self.incarnation(&instance) else {
                    continue;
                };
                self.report.bytes += reply.bytes;
                match wire::shard(&instance, incarnation, reply) {
                    Ok(shard) => self.shards.push(shard),
                    Err(refusal) => return Err((instance, refusal)),
                }
            }
            self.shards.sort_by(|a, b| a.instance.cmp(&b.instance));
            Ok(Done::Ok)
        }))
    }
}

fn answered(replies: Result<Done, (Instance, Refusal)>) -> Done {
    replies.unwrap_or_else(|(instance, refusal)| Done::Failed {
        instance: Some(instance),
        refusal,
    })
}

/// A participant used up the stage's share: which episode, where, in what, since when.
fn not_parked(instance: &Instance, share: Duration, reply: pb::PrepareResponse) -> Refusal {
    let count = reply.blocker_count;
    let mut blockers: Vec<Blocker> = wire::blockers(reply.blockers);
    blockers.sort_by_key(|b| std::cmp::Reverse(b.age));
    let named: BTreeSet<String> = blockers
        .iter()
        .take(3)
        .map(|b| format!("{} in step {} for {:.1?}", b.episode, b.step, b.age))
        .collect();
    let mut refusal = Refusal::new(
        Reason::DeadlinePassed,
        format!(
            "{instance} used up the stage's {share:.1?} and still waits for {count} episodes ({}): give the checkpoint more time (timeout), or a soft limit",
            named.into_iter().collect::<Vec<_>>().join("; ")
        ),
    )
    .instance(instance);
    refusal.blockers = blockers;
    refusal
}
