//! Verifiers that a checkpoint waits for: each runs once for an episode's life, and its verdict is kept until the session
//! ends, so that a call whose reply was lost runs nothing twice.

use std::collections::BTreeMap;

use belay_core::{
    ids::{Attempt, Digest, Episode, ExecutionId, RolloutId},
    refusal::{Reason, Refusal},
};

use crate::{
    environment::Verdict,
    flight::{Flight, Landing},
};

/// What to do with a verify.
pub(crate) enum BeginVerify {
    /// It runs, or has run: wait for its verdict.
    Joined(Flight<Verdict>),
    /// Run it.
    Run(Landing<Verdict>, Flight<Verdict>),
}

struct Verifying {
    execution: ExecutionId,
    response: Digest,
    flight: Flight<Verdict>,
}

/// By episode.
#[derive(Default)]
pub(crate) struct Verifies(BTreeMap<Episode, Verifying>);

impl Verifies {
    /// Decides what becomes of a verify of a live session.
    pub(crate) fn begin(
        &mut self,
        episode: &Episode,
        execution: ExecutionId,
        response: Digest,
    ) -> Result<BeginVerify, Refusal> {
        if let Some(known) = self.0.get(episode).filter(|known| known.execution == execution) {
            return if known.response == response {
                Ok(BeginVerify::Joined(known.flight.clone()))
            } else {
                Err(Refusal::new(
                    Reason::OperationMismatch,
                    format!("{episode} was verified before with another response; retire the attempt and send the next"),
                )
                .episode(episode))
            };
        }
        let (landing, flight) = Flight::new();
        let verifying = Verifying {
            execution,
            response,
            flight: flight.clone(),
        };
        self.0.insert(episode.clone(), verifying);
        Ok(BeginVerify::Run(landing, flight))
    }

    /// Drops one that came to nothing, so that it can be run again.
    pub(crate) fn drop_failed(&mut self, episode: &Episode, execution: ExecutionId) {
        let failed = |known: &Verifying| known.execution == execution && !known.flight.landed();
        if self.0.get(episode).is_some_and(failed) {
            self.0.remove(episode);
        }
    }

    /// One of these attempts still runs.
    pub(crate) fn running(&self, rollout: &RolloutId, through: Attempt) -> bool {
        self.up_to(rollout, through)
            .any(|(_, known)| !known.flight.landed())
    }

    /// Drops what is kept of these attempts.
    pub(crate) fn forget(&mut self, rollout: &RolloutId, through: Attempt) {
        let gone: Vec<_> = self
            .up_to(rollout, through)
            .map(|(episode, _)| episode.clone())
            .collect();
        for episode in gone {
            self.0.remove(&episode);
        }
    }

    fn up_to(&self, rollout: &RolloutId, through: Attempt) -> impl Iterator<Item = (&Episode, &Verifying)> {
        let at = |attempt| Episode::new(rollout.clone(), attempt);
        self.0.range(at(0)..=at(through))
    }
}
