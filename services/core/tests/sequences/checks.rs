//! What is looked at after every step.

use std::collections::BTreeMap;

use belay_core::{
    ids::{Episode, Kind, RolloutId},
    invariants::Invariant,
    participant::{Admit, Phase},
};

use crate::world::{Checked, GRACE, World, broken};

impl World {
    pub fn check(&mut self) -> Checked {
        let probe = Episode::new(RolloutId::new("probe").expect("legal"), 0);
        for kind in Kind::ALL {
            self.check_admission(kind, &probe)?;
            self.check_lease(kind)?;
            self.check_marks(kind)?;
        }
        self.check_disk()?;
        let mut running: BTreeMap<&RolloutId, &Episode> = BTreeMap::new();
        for task in self.tasks.values() {
            if let Some(other) = running.insert(&task.episode.rollout, &task.episode) {
                return broken(
                    Invariant::OneAttempt,
                    format!("{other} and {} run at once", task.episode),
                );
            }
        }
        Ok(())
    }

    fn check_admission(&mut self, kind: Kind, probe: &Episode) -> Checked {
        let now = self.now;
        let phase = self.machine(kind).phase();
        let admitted = match self.machine(kind).admit(now, probe, "probe".into()) {
            Ok(Admit::Admitted(permit)) => {
                self.release(kind, permit);
                true
            }
            _ => false,
        };
        if admitted != (phase == Phase::Idle) {
            return broken(
                Invariant::OpenOnlyInIdle,
                format!("{kind} in {phase} admits: {admitted}"),
            );
        }
        Ok(())
    }

    fn check_lease(&mut self, kind: Kind) -> Checked {
        let server = &self.servers[&kind];
        let silence = self.now.saturating_sub(server.heard);
        if server.machine.phase().is_closed() && server.machine.phase() != Phase::Restored && silence > GRACE
        {
            return broken(
                Invariant::LeaseEnds,
                format!("{kind} is closed, and heard nothing for {silence:?}"),
            );
        }
        Ok(())
    }

    /// What is retired everywhere is refused by everybody who is open.
    fn check_marks(&mut self, kind: Kind) -> Checked {
        let machine = &self.servers[&kind].machine;
        if machine.phase() != Phase::Idle {
            return Ok(());
        }
        for (rollout, attempt) in &self.retired {
            let forgetting = self
                .coordinator
                .chores
                .iter()
                .any(|chore| chore.rollout == *rollout);
            let episode = Episode::new(rollout.clone(), *attempt);
            if !forgetting && !machine.marks().refuses(&episode) {
                return broken(
                    Invariant::OneAttempt,
                    format!("{kind} does not refuse {episode}, which is retired"),
                );
            }
        }
        Ok(())
    }

    fn check_disk(&self) -> Checked {
        if let Some(id) = self
            .disk
            .tombstones
            .iter()
            .find(|id| self.disk.published.contains_key(id))
        {
            return broken(
                Invariant::AbandonedGone,
                format!("{id} has both a tombstone and a checkpoint.json"),
            );
        }
        if let Some((id, kind)) = self
            .disk
            .shards
            .keys()
            .find(|(id, _)| self.disk.swept.contains(id))
        {
            return broken(
                Invariant::AbandonedGone,
                format!("{kind} wrote {id} after it was given up by all"),
            );
        }
        for (id, published) in &self.disk.published {
            for saved in &published.episodes {
                for part in saved.parts.iter().filter(|part| part.kind != Kind::PolicyModel) {
                    let shard = self.disk.shards.get(&(*id, part.kind)).into_iter().flatten();
                    if !shard
                        .map(|(episode, _)| episode)
                        .any(|episode| *episode == saved.episode)
                    {
                        return broken(
                            Invariant::CheckpointWhole,
                            format!("{id} names {} at {part}, and has no record", saved.episode),
                        );
                    }
                }
            }
        }
        Ok(())
    }
}
