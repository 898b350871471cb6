//! The decision of a checkpoint, and telling it.

use belay_core::{
    coordinator::checkpoint_run::{Done, Failure},
    ids::Instance,
    parts::Mark,
};
use belay_proto::checkpoint as pb;
use belay_store::{Decided, Published};

use super::{Driver, file};
use crate::{
    error::CoordinatorError,
    journal::{Entry, Outcome, Unsettled},
    keeper::END_BOUND,
    peer::each,
    settle,
};

impl Driver {
    /// Links `checkpoint.json`, with the controller's state beside it.
    pub(super) async fn publish(&mut self) -> Done {
        let published = async {
            let state = match self.controller_state.is_empty() {
                true => None,
                false => {
                    let bytes = self.controller_state.clone();
                    Some(
                        self.coordinator
                            .catalogue
                            .write_controller_state(self.id, bytes)
                            .await?,
                    )
                }
            };
            let file =
                file::checkpoint_file(&self.coordinator, self.id, &self.run, self.shards.clone(), state);
            self.coordinator.catalogue.publish(file).await
        };
        match published.await {
            Ok(Published::Won) => Done::NameIsCheckpoint,
            Ok(Published::Lost(decided)) => whose(&decided),
            Err(refusal) => Done::Failed {
                instance: None,
                refusal,
            },
        }
    }

    /// Links a tombstone; where the root cannot take it, it is owed. Whoever finds the name taken follows what it says.
    pub(super) async fn bury(&mut self, failure: &Failure) -> Done {
        let why = format!("it failed in {}: {}", failure.stage, failure.refusal);
        match self
            .coordinator
            .catalogue
            .bury(self.id, self.coordinator.epoch, &why)
            .await
        {
            Ok(Published::Won) => Done::NameIsTombstone,
            Ok(Published::Lost(decided)) => whose(&decided),
            Err(refusal) => {
                tracing::warn!(id = %self.id, %refusal, "the tombstone is owed");
                let owed = Entry::Owed(self.id, format!("{why} ({refusal})"));
                if let Err(error) = self.coordinator.journal.commit(vec![owed]).await {
                    tracing::error!(id = %self.id, %error, "an owed tombstone is not in the journal");
                }
                Done::NameIsTombstone
            }
        }
    }

    /// The decision into the journal: the run is over but for those who have to be told.
    pub(super) async fn record(&self, outcome: Outcome, drop: Vec<Mark>) -> Result<(), CoordinatorError> {
        let (id, members) = (self.id, self.pins.keys().cloned().collect());
        self.coordinator
            .journal
            .decide(move |state| {
                let unsettled = settle::unsettled_entry(id, outcome, drop.clone(), members);
                let mut entries = match outcome {
                    Outcome::Published => settle::published_entries(state, id, &drop),
                    Outcome::Discarded => vec![],
                };
                entries.extend([unsettled, Entry::RunOver(None)]);
                entries
            })
            .await
    }

    /// Tells everybody at once; whoever does not answer is told between runs.
    pub(super) async fn settle(&mut self, on: &[Instance], outcome: Outcome, drop: Vec<Mark>) {
        self.lease.end();
        let unsettled = self
            .coordinator
            .journal
            .read(|s| s.unsettled.get(&self.id).cloned())
            .unwrap_or(Unsettled {
                outcome,
                drop,
                pending: on.iter().cloned().collect(),
            });
        let answered = settle::settle(&self.coordinator, &self.peers(on), self.id, &unsettled).await;
        let pending = unsettled
            .pending
            .iter()
            .filter(|i| !answered.contains(i))
            .cloned()
            .collect();
        let rest = Unsettled { pending, ..unsettled };
        if let Err(error) = settle::settled(&self.coordinator, self.id, rest).await {
            tracing::error!(id = %self.id, %error, "who has settled is not in the journal");
        }
    }

    /// Tells everybody at once to go on as if the run had not been; whoever does not answer is swept between runs.
    pub(super) async fn abandon(&mut self, on: &[Instance]) {
        self.lease.end();
        let request = pb::ResumeRequest {
            fence: None,
            checkpoint_id: self.id.to_string(),
            decision: pb::Decision::Abandon.into(),
        };
        for (peer, reply) in each(&self.peers(on), |peer| {
            let request = request.clone();
            async move { peer.resume(request, END_BOUND).await }
        })
        .await
        {
            if let Err(refusal) = reply {
                tracing::warn!(instance = %peer.instance, id = %self.id, %refusal, "not abandoned yet");
            }
        }
    }
}

/// Whose the name is.
fn whose(decided: &Decided) -> Done {
    match decided {
        Decided::Checkpoint(_) => Done::NameIsCheckpoint,
        Decided::Tombstone { .. } => Done::NameIsTombstone,
    }
}
