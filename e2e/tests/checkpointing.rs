//! A checkpoint as its caller sees it, event by event.

use belay_proto::checkpoint::{
    Abandoned, Blocker, CheckpointResponse, Partition, PartitionEntry, Published, Standing,
    checkpoint_response,
};

use crate::world::BOUND;

/// A checkpoint in the middle.
pub struct Checkpointing {
    events: tonic::Streaming<CheckpointResponse>,
    partition: Partition,
}

/// How a checkpoint ended.
#[derive(Debug)]
pub enum Ended {
    Published(String, Published, Partition),
    Abandoned(Abandoned),
}

impl Checkpointing {
    pub fn new(events: tonic::Streaming<CheckpointResponse>) -> Self {
        let partition = Partition::default();
        Self { events, partition }
    }

    async fn next(&mut self) -> CheckpointResponse {
        let next = tokio::time::timeout(BOUND, self.events.message()).await;
        let message = next.expect("an event in time").unwrap();
        let message = message.expect("the stream ended without an end");
        if let Some(checkpoint_response::Event::Partition(partition)) = &message.event {
            self.partition.entries.extend(partition.entries.clone());
            self.partition.restarts.extend(partition.restarts.clone());
        }
        message
    }

    /// Waits until it says that it waits for this rollout in such a step.
    pub async fn until_it_waits_for(&mut self, rollout: &str, step: &str) -> Blocker {
        use checkpoint_response::Event;
        loop {
            match self.next().await.event {
                Some(Event::Waiting(waiting)) => {
                    let of_it = |blocker: &Blocker| {
                        blocker.episode.as_ref().unwrap().rollout_id == rollout && blocker.step.contains(step)
                    };
                    if let Some(blocker) = waiting.blockers.into_iter().find(of_it) {
                        return blocker;
                    }
                }
                Some(Event::Published(_) | Event::Abandoned(_)) => panic!("it ended, and waited for nobody"),
                _ => {}
            }
        }
    }

    /// Waits until the mesh is held closed: the checkpoint's id.
    pub async fn held(&mut self) -> String {
        use checkpoint_response::Event;
        loop {
            let message = self.next().await;
            match message.event {
                Some(Event::Held(_)) => return message.checkpoint_id,
                Some(Event::Published(_) | Event::Abandoned(_)) => panic!("it ended: {message:?}"),
                _ => {}
            }
        }
    }

    pub async fn ended(mut self) -> Ended {
        use checkpoint_response::Event;
        loop {
            let message = self.next().await;
            match message.event {
                Some(Event::Published(published)) => {
                    return Ended::Published(message.checkpoint_id, published, self.partition);
                }
                Some(Event::Abandoned(abandoned)) => return Ended::Abandoned(abandoned),
                _ => {}
            }
        }
    }

    pub async fn published(self) -> (String, Published, Partition) {
        match self.ended().await {
            Ended::Published(id, published, partition) => (id, published, partition),
            Ended::Abandoned(abandoned) => panic!("abandoned: {abandoned:?}"),
        }
    }
}

/// Where a rollout stands in a partition: exactly once.
pub fn standing(partition: &Partition, rollout: &str) -> Standing {
    let of_it = |entry: &&PartitionEntry| entry.episode.as_ref().unwrap().rollout_id == rollout;
    let found: Vec<_> = partition.entries.iter().filter(of_it).collect();
    assert_eq!(found.len(), 1, "in exactly one class: {found:?}");
    found[0].standing()
}
