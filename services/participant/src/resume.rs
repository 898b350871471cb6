//! Join, Renew, Resume and Settle.

use std::{sync::Arc, time::Duration};

use belay_core::{
    ids::CheckpointId,
    participant::{Decision, Fence, Join, Outcome, Phase, ResumeTurn, Resumed, Settle, SettleTurn},
    parts::Mark,
    refusal::{Reason, Refusal},
};
use belay_mesh::members::Member;

use crate::{
    control::{Control, Inner},
    owner::StateOwner,
};

impl<O: StateOwner> Inner<O> {
    pub(crate) fn join(
        self: &Arc<Self>,
        fence: &Fence,
        call: Join,
        members_version: u64,
        members: Vec<Member>,
    ) -> Result<Phase, Refusal> {
        let mut control = self.control();
        // First all that a data call needs, then the door: nobody must find it open without marks or members.
        let marks = Join {
            marks: call.marks,
            open: false,
        };
        let open = Join {
            open: call.open,
            ..Join::default()
        };
        self.turn(&mut control, |machine, now| machine.join(now, fence, &marks))?;
        self.members.install(members_version, members);
        self.turn(&mut control, |machine, now| machine.join(now, fence, &open))
    }

    pub(crate) fn renew(
        self: &Arc<Self>,
        fence: &Fence,
        id: CheckpointId,
    ) -> Result<Option<Duration>, Refusal> {
        self.turn(&mut self.control(), |machine, now| machine.renew(now, fence, id))
    }

    pub(crate) async fn resume(
        self: &Arc<Self>,
        fence: Fence,
        id: CheckpointId,
        decision: Decision,
    ) -> Result<Resumed, Refusal> {
        let resumed = {
            let mut control = self.control();
            match self.turn(&mut control, |machine, now| {
                machine.resume(now, &fence, id, decision)
            })? {
                ResumeTurn::Done(resumed) => resumed,
                ResumeTurn::Activate { superseded } => self.activate(&mut control, id, superseded)?,
            }
        };
        if decision == Decision::Abandon {
            self.writer_stopped(id).await?;
        }
        Ok(resumed)
    }

    /// The staged records go live, then the door opens.
    fn activate(
        self: &Arc<Self>,
        control: &mut Control<O>,
        id: CheckpointId,
        superseded: Vec<Mark>,
    ) -> Result<Resumed, Refusal> {
        let Some((_, mut staged)) = control.staged.take_if(|(staged, _)| *staged == id) else {
            let instance = self.shared.instance();
            return Err(Refusal::new(
                Reason::Internal,
                format!("{instance} no longer has the records that {id} staged; restart this process and restore again"),
            )
            .instance(instance)
            .with("checkpoint_id", id));
        };
        // A rollout that was retired since it was staged does not come to life.
        self.shared.read(|machine, _| {
            staged.retain(|(planned, _)| !machine.marks().refuses(&planned.episode()));
        });
        if self.shared.read(|machine, _| machine.is_open()) {
            // Beside the living: parts of lower attempts can be here whose next attempt is placed elsewhere.
            let owner = self.owner.clone();
            self.tasks.spawn(async move { owner.retire(superseded).await });
        }
        let activated = staged.len() as u64;
        self.ask(control, id, "activate", |owner| owner.activate(staged))?;
        self.turn(control, |machine, now| machine.activated(now, id, activated))
    }

    pub(crate) async fn settle(self: &Arc<Self>, fence: Fence, call: Settle) -> Result<u64, Refusal> {
        let dropped = {
            let mut control = self.control();
            match self.turn(&mut control, |machine, now| machine.settle(now, &fence, &call))? {
                SettleTurn::Done(dropped) => dropped,
                SettleTurn::Drop => self.drop_left_out(&mut control, &call)?,
            }
        };
        if call.outcome == Outcome::Discarded {
            self.writer_stopped(call.id).await?;
        }
        Ok(dropped)
    }

    fn drop_left_out(self: &Arc<Self>, control: &mut Control<O>, call: &Settle) -> Result<u64, Refusal> {
        let marks = &call.drop.marks;
        let dropped = if marks.is_empty() {
            0
        } else {
            self.ask(control, call.id, "drop_unclaimed", |owner| {
                owner.drop_unclaimed(marks)
            })?
        };
        self.turn(control, |machine, _| machine.settled(call, dropped));
        Ok(dropped)
    }
}
