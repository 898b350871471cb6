//! A run of checkpoint.

use super::*;

pub struct Checkpointing {
    pub(super) id: CheckpointId,
    pub(super) run: CheckpointRun,
    pub(super) step: Step,
    pub(super) pinned: BTreeMap<Kind, Incarnation>,
    pub(super) answers: BTreeMap<Kind, Reply>,
}

impl World {
    pub fn begin_checkpoint(&mut self) {
        let id = self.next_id();
        let listed = match self.dice.one_in(6) {
            true => self
                .dice
                .pick(self.rollouts.keys().cloned())
                .into_iter()
                .collect(),
            false => BTreeSet::new(),
        };
        let (run, step) = CheckpointRun::begin(members(), listed);
        let pinned = Kind::ALL
            .into_iter()
            .map(|kind| (kind, self.machine(kind).incarnation()))
            .collect();
        let answers = BTreeMap::new();
        self.coordinator.run = Some(Run::Checkpoint(Box::new(Checkpointing {
            id,
            run,
            step,
            pinned,
            answers,
        })));
    }

    pub(super) fn checkpoint_step(&mut self, mut run: Checkpointing) -> Checked {
        let done = self.checkpoint_done(&mut run)?;
        if let Some(done) = done {
            run.answers.clear();
            run.step = run.run.after(done);
        }
        match &run.step {
            Step::End(check::Ending::Published) => self.tally.checkpoints += 1,
            Step::End(check::Ending::Abandoned(_)) => self.tally.abandoned += 1,
            _ => self.coordinator.run = Some(Run::Checkpoint(Box::new(run))),
        }
        Ok(())
    }

    /// Asks the next of the stage; true when all have answered.
    fn ask(
        &mut self,
        run: &mut Checkpointing,
        on: &[Instance],
        call: &Control,
    ) -> Result<bool, (Instance, Refusal)> {
        let Some(kind) = next_unanswered(on, &run.answers) else {
            return Ok(true);
        };
        match self.send(kind, run.pinned[&kind], call) {
            // Every wait has a bound: here, of some hundred looks.
            Some(Ok(Reply::Waiting)) if self.dice.one_in(400) => {
                let refusal = Refusal::new(Reason::RunAbandoned, "not ready in time");
                return Err((instance(kind), refusal));
            }
            None | Some(Ok(Reply::Waiting)) => {}
            Some(Ok(reply)) => drop(run.answers.insert(kind, reply)),
            Some(Err(refusal)) => return Err((instance(kind), refusal)),
        }
        Ok(next_unanswered(on, &run.answers).is_none())
    }

    fn checkpoint_done(&mut self, run: &mut Checkpointing) -> Checked<Option<check::Done>> {
        use check::Done;
        let id = run.id;
        let failed = |(instance, refusal)| Done::Failed {
            instance: Some(instance),
            refusal,
        };
        let step = run.step.clone();
        let done = match &step {
            Step::Prepare { on, restarts } => {
                let restarts = restarts.clone();
                let call = Control::Prepare(Prepare {
                    id,
                    grace: GRACE,
                    soft_limit: None,
                    restarts,
                });
                match self.ask(run, on, &call) {
                    Err(why) => failed(why),
                    Ok(false) => return Ok(None),
                    Ok(true) => Done::Prepared(replies(run, |reply| match reply {
                        Reply::Prepared(prepared) => Some(prepared),
                        _ => None,
                    })),
                }
            }
            Step::Cuts { .. } => {
                let waiting = self.calls.cuts_pending() > 0 && !self.dice.one_in(8);
                if waiting {
                    return Ok(None);
                }
                Done::Ok
            }
            Step::Commit { on, scope } => {
                let call = Control::Commit(Commit {
                    id,
                    scope: scope.clone(),
                });
                match self.ask(run, on, &call) {
                    Err(why) => failed(why),
                    Ok(false) => return Ok(None),
                    Ok(true) => Done::Committed(replies(run, |reply| match reply {
                        Reply::Committed(committed) => Some(committed),
                        _ => None,
                    })),
                }
            }
            Step::Report => {
                self.check_partition(&run.run)?;
                match self.faults && self.dice.one_in(15) {
                    true => Done::Failed {
                        instance: None,
                        refusal: Refusal::new(Reason::RunAbandoned, "the controller called Abort"),
                    },
                    false => Done::Ok,
                }
            }
            Step::Journal => {
                let (drop, pinned) = (run.run.partition().dropped(), run.pinned.clone());
                self.coordinator.in_doubt = Some(InDoubt::Checkpoint { id, drop, pinned });
                Done::Ok
            }
            Step::Keep { on } => {
                let asked = self.ask(run, on, &Control::Resume(id, Decision::Keep));
                let failure = match asked {
                    Ok(false) => return Ok(None),
                    Ok(true) => None,
                    Err(why) => Some(why),
                };
                let kept = run.answers.keys().copied().map(instance).collect();
                Done::Kept { kept, failure }
            }
            Step::Await { on } => match self.ask(run, on, &Control::Await(id)) {
                Err(why) => failed(why),
                Ok(false) => return Ok(None),
                Ok(true) => Done::Ok,
            },
            Step::Publish => self.link(id, &run.run),
            Step::Record => {
                self.record_published(&run.run.partition().dropped());
                Done::Ok
            }
            Step::Settle { drop, .. } => {
                self.owe_settle(id, &run.pinned, Outcome::Published, drop);
                self.coordinator.in_doubt = None;
                Done::Ok
            }
            Step::Abandon { .. } => {
                self.owe(id, &run.pinned, &Control::Resume(id, Decision::Abandon));
                Done::Ok
            }
            Step::Bury { .. } => match self.bury(id) {
                true => Done::NameIsTombstone,
                false => Done::NameIsCheckpoint,
            },
            Step::Discard { abandon_first, .. } => {
                let mut at = run.pinned.clone();
                at.retain(|kind, _| abandon_first.iter().any(|i| i.kind == *kind));
                self.owe(id, &at, &Control::Resume(id, Decision::Abandon));
                self.owe_settle(id, &run.pinned, Outcome::Discarded, &[]);
                self.coordinator.in_doubt = None;
                Done::Ok
            }
            Step::End(_) => return Ok(None),
        };
        Ok(Some(done))
    }

    fn link(&mut self, id: CheckpointId, run: &CheckpointRun) -> check::Done {
        if self.disk.tombstones.contains(&id) {
            return check::Done::NameIsTombstone;
        }
        let saved = |whole: &belay_core::coordinator::closure::WholeEpisode| Saved {
            episode: whole.root.episode.clone(),
            parts: whole.parts.clone(),
        };
        let mut episodes: Vec<Saved> = run.closure().whole.iter().map(saved).collect();
        if self.mutation == Some(Mutation::NotWholePublished) {
            let broken = run.closure().restarts.iter().map(|restart| Saved {
                episode: restart.episode.clone(),
                parts: members(),
            });
            episodes.extend(broken);
        }
        self.disk.published.insert(id, Published { episodes });
        check::Done::NameIsCheckpoint
    }

    /// Each episode of the environment stands in exactly one class, and what is saved is whole.
    fn check_partition(&mut self, run: &CheckpointRun) -> Checked {
        let mut seen = BTreeSet::new();
        for entry in &run.partition().entries {
            if !seen.insert(entry.episode.clone()) {
                return broken(
                    Invariant::PartitionExact,
                    format!("{} stands there twice", entry.episode),
                );
            }
        }
        let left: Vec<&Episode> = self.admitted_at_capture.difference(&seen).collect();
        if !left.is_empty() {
            return broken(
                Invariant::PartitionExact,
                format!("{left:?} were admitted and are not in it"),
            );
        }
        Ok(())
    }
}

fn replies<T>(run: &Checkpointing, pick: impl Fn(Reply) -> Option<T>) -> Vec<(Instance, T)> {
    let picked = |(kind, reply): (&Kind, &Reply)| Some((instance(*kind), pick(reply.clone())?));
    run.answers.iter().filter_map(picked).collect()
}
