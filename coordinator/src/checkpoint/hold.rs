//! The partition goes out; with `hold` the mesh stays closed until Publish, Abort, the end of the stream, or the time is over.

use belay_core::{
    coordinator::checkpoint_run::Done,
    refusal::{Reason, Refusal},
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{Driver, answer, nothing_held, refuse};
use crate::{
    coordinator::RunCommand,
    events::{CheckpointEvent, PublishedReport},
};

/// Who called Publish or Abort, and waits for the run's end.
pub(super) enum Waiting {
    Publish(oneshot::Sender<Result<PublishedReport, Refusal>>),
    Abort(oneshot::Sender<Result<(), Refusal>>),
}

impl Waiting {
    /// The run has ended.
    pub(super) fn answer(self, end: &CheckpointEvent) {
        match (self, end) {
            (Self::Publish(reply), CheckpointEvent::Published(report)) => answer(reply, Ok(report.clone())),
            (Self::Publish(reply), CheckpointEvent::Abandoned(failure)) => {
                answer(reply, Err(failure.refusal.clone()));
            }
            (Self::Abort(reply), _) => answer(reply, Ok(())),
            (Self::Publish(_), _) => {}
        }
    }
}

impl Driver {
    pub(super) async fn report_and_hold(&mut self) -> Done {
        self.events
            .tell(CheckpointEvent::Partition(self.run.partition().clone()));
        let Some(hold) = self.options.hold else {
            while let Ok(command) = self.commands.try_recv() {
                refuse(command, nothing_held(self.id, self.run.stage()));
            }
            return Done::Ok;
        };
        self.events.tell(CheckpointEvent::Held(hold));
        let began = Instant::now();
        let given_up = |why: String| Done::Failed {
            instance: None,
            refusal: Refusal::new(Reason::RunAbandoned, why),
        };
        let done = tokio::select! {
            command = self.commands.recv() => match command {
                Some(RunCommand::Publish { controller_state, reply }) => {
                    self.controller_state = controller_state;
                    self.waiting = Some(Waiting::Publish(reply));
                    Done::Ok
                }
                Some(RunCommand::Abort { reply }) => {
                    self.waiting = Some(Waiting::Abort(reply));
                    given_up("Abort was called".into())
                }
                Some(RunCommand::Removed(instance)) => given_up(format!("{instance} was removed from the mesh")),
                None => given_up("nobody can publish it any more".into()),
            },
            () = self.events.closed() => given_up("the stream of the held checkpoint ended before Publish".into()),
            () = sleep(hold) => {
                given_up(format!("neither Publish nor Abort came within the hold timeout of {hold:.1?}"))
            }
            (instance, refusal) = self.lease.lost() => Done::Failed { instance: Some(instance), refusal },
        };
        // The hold is the controller's time, not the run's.
        self.deadline += began.elapsed();
        done
    }
}
