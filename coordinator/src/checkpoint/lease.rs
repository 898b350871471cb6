//! Renews the lease of every closed participant, every quarter of it, from the first Prepare to the last Resume.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use belay_core::{
    ids::{CheckpointId, Instance},
    refusal::{Reason, Refusal},
};
use belay_proto::checkpoint as pb;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::peer::{Peer, each};

/// The leases of one run. Ends with the run.
pub struct Lease {
    id: CheckpointId,
    grace: Duration,
    closed: Arc<Mutex<BTreeMap<Instance, Peer>>>,
    lost: watch::Receiver<Option<(Instance, Refusal)>>,
    tell: Arc<watch::Sender<Option<(Instance, Refusal)>>>,
    running: Option<DropGuard>,
}

impl Lease {
    /// Of a run, with its grace. Nobody is closed yet.
    pub fn new(id: CheckpointId, grace: Duration) -> Self {
        let (tell, lost) = watch::channel(None);
        Self {
            id,
            grace,
            closed: Arc::default(),
            lost,
            tell: Arc::new(tell),
            running: None,
        }
    }

    /// These are being closed.
    pub fn watch(&mut self, peers: &[Peer]) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.extend(peers.iter().map(|p| (p.instance.clone(), p.clone())));
        drop(closed);
        if self.running.is_none() {
            let stop = CancellationToken::new();
            self.running = Some(stop.clone().drop_guard());
            let renewal = renew(self.id, self.grace / 4, self.closed.clone(), self.tell.clone());
            tokio::spawn(async move { stop.run_until_cancelled(renewal).await });
        }
    }

    /// This one is open again.
    pub fn release(&mut self, instance: &Instance) {
        self.closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(instance);
    }

    /// Nobody is closed by this run any more.
    pub fn end(&mut self) {
        self.running = None;
    }

    /// Waits until a participant says that its lease is lost, or that it is another process.
    pub fn lost(&self) -> impl Future<Output = (Instance, Refusal)> + use<> {
        let mut lost = self.lost.clone();
        async move {
            match lost.wait_for(Option::is_some).await.map(|lost| (*lost).clone()) {
                Ok(Some(lost)) => lost,
                // The run is over, so nobody waits here any more.
                _ => std::future::pending().await,
            }
        }
    }
}

async fn renew(
    id: CheckpointId,
    every: Duration,
    closed: Arc<Mutex<BTreeMap<Instance, Peer>>>,
    tell: Arc<watch::Sender<Option<(Instance, Refusal)>>>,
) {
    loop {
        sleep(every).await;
        let peers: Vec<Peer> = closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect();
        let replies = each(&peers, |peer| {
            let request = pb::RenewRequest {
                fence: None,
                checkpoint_id: id.to_string(),
            };
            async move { peer.renew(request, every).await }
        })
        .await;
        for (peer, reply) in replies {
            match reply {
                Ok(_) => {}
                // It may be back before its lease is over; the stage's own calls have their bounds.
                Err(refusal) if refusal.reason == Reason::PeerUnreachable => {
                    tracing::warn!(instance = %peer.instance, %id, %refusal, "a lease is not renewed");
                }
                Err(refusal) => {
                    let open = closed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .contains_key(&peer.instance);
                    if open {
                        tell.send_replace(Some((peer.instance, refusal)));
                    }
                }
            }
        }
    }
}
