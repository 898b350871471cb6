//! The one who trains: asks for rollouts, takes results, acknowledges, retires, forgets.

use belay_core::{
    episode::{Admission, Expect, Finished, Request},
    ids::{Episode, ExecutionId, Kind, RolloutId},
    invariants::Invariant,
    parts::Mark,
};

use crate::{
    coordinator::InDoubt,
    data::{all_tools, work},
    servers::Control,
    world::{Checked, Sampled, Task, World, broken},
};

impl World {
    /// Asks for a rollout, once more or for the first time.
    pub fn ask_rollout(&mut self, rollout: &RolloutId) -> Checked {
        let asked = self.rollouts[rollout].clone();
        // Who asked for a restore waits for its reply: the attempts to go on with are in it.
        let restoring = matches!(self.coordinator.in_doubt, Some(InDoubt::Restore { .. }));
        if asked.result.is_some() || asked.forgotten || restoring || self.is_chore(rollout) {
            return Ok(());
        }
        let episode = Episode::new(rollout.clone(), asked.attempt);
        let permit = match self.gate(Kind::Environment, &episode) {
            Ok(Some(permit)) => permit,
            Ok(None) => return Ok(()),
            Err(_) => {
                self.try_next(&episode);
                return Ok(());
            }
        };
        let request = Request {
            episode: episode.clone(),
            expect: Expect::Either,
            work: work(rollout),
            deadline: None,
        };
        let (fresh, now) = (ExecutionId(self.fresh()), self.now);
        let admitted = self.episodes.admit(&request, fresh, now);
        self.release(Kind::Environment, permit);
        match admitted {
            Ok(Admission::Join) => Ok(()),
            Ok(Admission::Start(life) | Admission::Claim(life)) => {
                self.tally.claimed += u64::from(life.execution != fresh);
                self.born.entry(life.execution).or_insert(self.tally.crashes);
                self.admitted.insert(episode.clone());
                let task = Task {
                    episode,
                    work: life.work,
                    boundary: life.boundary,
                    permit: None,
                };
                self.tasks.insert(life.execution, task);
                Ok(())
            }
            Ok(Admission::Replied(finished)) => self.take_result(&finished),
            Err(_) => {
                self.try_next(&episode);
                Ok(())
            }
        }
    }

    /// The attempt is refused or has failed: it is retired, and the next one is asked for.
    fn try_next(&mut self, episode: &Episode) {
        let known = self
            .coordinator
            .book
            .rollouts
            .get(&episode.rollout)
            .and_then(|row| row.retired);
        if known.is_none_or(|retired| retired < episode.attempt) {
            self.ask_retire(Mark {
                rollout: episode.rollout.clone(),
                attempt: episode.attempt,
            });
        }
        let next = self.coordinator.book.next_attempt(&episode.rollout, None);
        self.rollouts.get_mut(&episode.rollout).expect("known").attempt = next;
    }

    fn take_result(&mut self, finished: &Finished) -> Checked {
        let episode = &finished.episode;
        let expected = all_tools(&episode.rollout);
        let (reward, details) = (finished.verdict.reward, &finished.verdict.details);
        if reward != expected.len() as f64 || details != format!("{expected:?}").as_bytes() {
            return broken(
                Invariant::OnceEach,
                format!("{episode} applied {details:?}, the model asked for {expected:?}"),
            );
        }
        self.check_lineage(finished)?;
        self.tally.results += 1;
        self.rollouts.get_mut(&episode.rollout).expect("known").result = Some(episode.clone());
        Ok(())
    }

    /// The ledger of a finished life: every turn once, in a chain, as the samplings that survived.
    fn check_lineage(&mut self, finished: &Finished) -> Checked {
        let (episode, execution) = (&finished.episode, finished.execution);
        if self.born.get(&execution) != Some(&self.tally.crashes) {
            return Ok(()); // The ledger may have died since, with its server.
        }
        let ledger = match self.calls.ledger(episode, execution) {
            Ok(ledger) => ledger,
            Err(refusal) => {
                return broken(
                    Invariant::LineageChain,
                    format!("{episode} has no ledger: {refusal}"),
                );
            }
        };
        let mut parent = None;
        for row in ledger.rows() {
            let operation = row.entry.operation;
            let sampling = match self.logs.get(&execution).and_then(|log| log.get(&operation)) {
                Some(Sampled::Done(sampling)) => *sampling,
                other => return broken(Invariant::OnceEach, format!("{episode} {operation} is {other:?}")),
            };
            let digest = row.entry.span.as_ref().map(|span| span.digest);
            if row.parent != parent || digest != Some(*blake3::hash(&sampling.to_le_bytes()).as_bytes()) {
                return broken(
                    Invariant::LineageChain,
                    format!("{episode} {operation} is not the next link"),
                );
            }
            parent = Some(row.chain);
        }
        if parent != finished.outcome.cursor.chain || ledger.len() != finished.outcome.model_calls as usize {
            return broken(
                Invariant::LineageChain,
                format!("the ledger of {episode} does not end where its agent is"),
            );
        }
        Ok(())
    }

    /// Frees a result that has arrived.
    pub fn acknowledge(&mut self, rollout: &RolloutId) {
        let asked = self.rollouts[rollout].clone();
        let Some(episode) = asked.result.filter(|_| !asked.acknowledged) else {
            return;
        };
        let Ok(Some(permit)) = self.gate(Kind::Environment, &episode) else {
            return;
        };
        for freed in self.episodes.acknowledge(std::slice::from_ref(&episode)) {
            self.calls.end(&freed.episode, freed.execution);
        }
        self.release(Kind::Environment, permit);
        self.rollouts.get_mut(rollout).expect("known").acknowledged = true;
    }

    /// It is being retired or forgotten, or a settle drops it.
    fn is_chore(&self, rollout: &RolloutId) -> bool {
        let dropped = self.coordinator.duties.iter().any(|duty| match &duty.call {
            Control::Settle(settle) => settle.drop.marks.iter().any(|mark| mark.rollout == *rollout),
            _ => false,
        });
        dropped
            || self
                .coordinator
                .chores
                .iter()
                .any(|chore| chore.rollout == *rollout)
    }

    /// Retires what was acknowledged, then forgets it.
    pub fn forget(&mut self, rollout: &RolloutId) {
        let asked = self.rollouts[rollout].clone();
        let (Some(episode), true) = (asked.result, asked.acknowledged) else {
            return;
        };
        if self.is_chore(rollout) || asked.forgotten {
            return;
        }
        if self
            .retired
            .get(rollout)
            .is_some_and(|retired| *retired >= asked.attempt.max(episode.attempt))
        {
            self.rollouts.get_mut(rollout).expect("known").forgotten = true;
            self.ask_forget(rollout.clone());
        } else {
            let attempt = asked.attempt.max(episode.attempt);
            self.ask_retire(Mark {
                rollout: rollout.clone(),
                attempt,
            });
        }
    }
}
