//! A run of restore.

use super::*;

pub struct Restoring {
    pub(super) id: CheckpointId,
    pub(super) source: CheckpointId,
    pub(super) plan: Plan,
    pub(super) marks: MarkList,
    pub(super) run: RestoreRun,
    pub(super) step: back::Step,
    pub(super) answers: BTreeMap<Kind, KeepAnswer>,
}

impl Run {
    pub(super) fn restore(
        id: CheckpointId,
        source: CheckpointId,
        plan: Plan,
        marks: MarkList,
        (run, step): (RestoreRun, back::Step),
    ) -> Self {
        let answers = BTreeMap::new();
        Self::Restore(Box::new(Restoring {
            id,
            source,
            plan,
            marks,
            run,
            step,
            answers,
        }))
    }
}

impl World {
    /// Restores a checkpoint. The controller's own state goes back with it, or it does not: then what is restored is not claimed.
    pub fn begin_restore(&mut self, source: CheckpointId) {
        let id = self.next_id();
        let saved = self.disk.published[&source].episodes.clone();
        let mut fresh: Vec<ExecutionId> = saved.iter().map(|_| ExecutionId(self.fresh())).collect();
        let place = |part: &Instance, _: &RolloutId| Some(part.clone());
        let book = &self.coordinator.book;
        let planned = plan::plan(source, &saved, &Scope::default(), book, &place, &mut || {
            fresh.pop().expect("one for each")
        });
        let mut plan = planned.expect("every server is there");
        if self.mutation == Some(Mutation::AttemptHandedOutAgain) {
            plan.episodes
                .iter_mut()
                .for_each(|planned| planned.attempt = planned.saved.attempt + 1);
        }
        for planned in &plan.episodes {
            self.born.insert(planned.execution, self.tally.crashes);
        }
        let begun = RestoreRun::begin(members());
        self.coordinator.run = Some(Run::restore(id, source, plan, self.mark_list(), begun));
    }

    pub(super) fn restore_step(&mut self, mut run: Restoring) -> Checked {
        if let Some(done) = self.restore_done(&mut run)? {
            run.answers.clear();
            run.step = run.run.after(done);
        }
        match &run.step {
            back::Step::End(back::Ending::Restored) => self.tally.restores += 1,
            back::Step::End(back::Ending::Abandoned(_)) => self.tally.abandoned += 1,
            _ => self.coordinator.run = Some(Run::Restore(Box::new(run))),
        }
        Ok(())
    }

    fn restore_call(&self, run: &Restoring) -> Control {
        Control::Restore(Restore {
            id: run.id,
            source: run.source,
            marks: run.marks.clone(),
            plan: run.plan.episodes.clone(),
            shards: Vec::new(),
        })
    }

    fn restore_done(&mut self, run: &mut Restoring) -> Checked<Option<back::Done>> {
        use back::{Done, Step};
        Ok(Some(match run.step.clone() {
            Step::Stage { on } | Step::Restage { on } => {
                let Some(kind) = next_unanswered(&on, &run.answers) else {
                    return Ok(Some(Done::Ok));
                };
                let call = self.restore_call(run);
                match self.send_now(kind, &call) {
                    None => {}
                    Some(Ok(_)) => drop(run.answers.insert(kind, KeepAnswer::Kept)),
                    Some(Err(refusal)) => {
                        return Ok(Some(Done::Failed {
                            instance: Some(instance(kind)),
                            refusal,
                        }));
                    }
                }
                return Ok(None);
            }
            Step::Activate => {
                self.activate_plan(run)?;
                Done::Ok
            }
            Step::Keep { on } => {
                let Some(kind) = next_unanswered(&on, &run.answers) else {
                    let answers = run
                        .answers
                        .iter()
                        .map(|(kind, answer)| (instance(*kind), answer.clone()))
                        .collect();
                    return Ok(Some(Done::Answers(answers)));
                };
                let answer = match self.send_now(kind, &Control::Resume(run.id, Decision::Keep)) {
                    None => KeepAnswer::Silent,
                    Some(Ok(_)) => KeepAnswer::Kept,
                    Some(Err(_)) => KeepAnswer::NeedsStaging,
                };
                if answer == KeepAnswer::Kept {
                    let at = self.machine(kind).incarnation();
                    self.coordinator.opened.insert(instance(kind), at);
                }
                run.answers.insert(kind, answer);
                return Ok(None);
            }
            Step::Pause { .. } => Done::Ok,
            Step::Record => {
                self.coordinator.in_doubt = None;
                Done::Ok
            }
            Step::Abandon { on } => {
                let at = on
                    .iter()
                    .map(|i| (i.kind, self.machine(i.kind).incarnation()))
                    .collect();
                self.owe(run.id, &at, &Control::Resume(run.id, Decision::Abandon));
                Done::Ok
            }
            Step::Undo { .. } | Step::End(_) => return Ok(None),
        }))
    }

    fn activate_plan(&mut self, run: &Restoring) -> Checked {
        for planned in &run.plan.episodes {
            if !self.handed_out.insert(planned.episode()) {
                let what = format!("{} is handed out a second time", planned.episode());
                return broken(Invariant::OneAttempt, what);
            }
        }
        let (id, source, plan, marks) = (run.id, run.source, run.plan.clone(), run.marks.clone());
        self.raise(&plan.superseded(), Why::Superseded);
        let attempts = plan
            .episodes
            .iter()
            .map(|planned| (&planned.saved.rollout, planned.attempt));
        let rows = self.coordinator.book.handed_out(attempts);
        self.coordinator.book.rollouts.extend(rows);
        for planned in &plan.episodes {
            let back = self.dice.one_in(2);
            let asked = self
                .rollouts
                .get_mut(&planned.saved.rollout)
                .expect("a rollout of this history");
            asked.attempt = planned.attempt;
            if back || asked.result.is_none() {
                (asked.result, asked.acknowledged) = (None, false);
            }
        }
        self.coordinator.in_doubt = Some(InDoubt::Restore {
            id,
            source,
            plan,
            marks,
        });
        Ok(())
    }
}
