//! Retire and Forget.

use std::{borrow::Cow, sync::Arc, time::Duration};

use belay_core::{
    ids::{Episode, RolloutId},
    participant::{Fence, MarkList},
    parts::Mark,
    refusal::{Blocker, Reason, Refusal},
};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tracing::error;

use crate::{
    control::{Control, Inner, panic_text},
    owner::StateOwner,
};

/// At most this many unfinished attempts are listed in a reply.
const MAX_UNFINISHED: usize = 10_000;

/// A retire whose attempts have not all ended.
pub(crate) struct RetireTask {
    began: Duration,
    /// `Some` once it has ended; an error is the owner's panic.
    ended: watch::Receiver<Option<Result<(), Refusal>>>,
}

impl<O: StateOwner> Inner<O> {
    /// Raises the marks, stops what they name; replies what still runs at the timeout.
    pub(crate) async fn retire(
        self: &Arc<Self>,
        fence: Fence,
        call: MarkList,
        timeout: Duration,
    ) -> Result<Vec<Blocker>, Refusal> {
        let deadline = Instant::now() + timeout;
        let (marks, began, mut ended) = {
            let mut control = self.control();
            let mut marks = self.turn(&mut control, |machine, now| machine.retire(now, &fence, &call))?;
            if marks.is_empty() {
                return Ok(Vec::new());
            }
            marks.sort_unstable_by(|a, b| (&a.rollout, a.attempt).cmp(&(&b.rollout, b.attempt)));
            let (began, ended) = self.retire_task(&mut control, &marks);
            (marks, began, ended)
        };
        let waited = timeout_at(deadline, ended.wait_for(Option::is_some)).await;
        match waited {
            Ok(Ok(result)) => result.clone().unwrap_or(Ok(())).map(|()| Vec::new()),
            _ => Ok(self.unfinished(&marks, began)),
        }
    }

    /// The task that stops these attempts: the one that runs, or a new one.
    fn retire_task(
        self: &Arc<Self>,
        control: &mut Control<O>,
        marks: &[Mark],
    ) -> (Duration, watch::Receiver<Option<Result<(), Refusal>>>) {
        let attempts = attempts(marks);
        if let Some(task) = control.retires.get(&attempts) {
            return (task.began, task.ended.clone());
        }
        let (tell, ended) = watch::channel(None);
        let began = self.shared.now();
        control.retires.insert(
            attempts.clone(),
            RetireTask {
                began,
                ended: ended.clone(),
            },
        );
        let (inner, marks) = (self.clone(), marks.to_vec());
        self.tasks.spawn(async move {
            let work = tokio::spawn({
                let owner = inner.owner.clone();
                async move { owner.retire(marks).await }
            });
            let result = work.await.map_err(|failed| inner.retire_panicked(failed));
            // Forgotten before it is told: a Retire that comes after the reply begins anew.
            inner.control().retires.remove(&attempts);
            tell.send_replace(Some(result));
        });
        (began, ended)
    }

    fn unfinished(&self, marks: &[Mark], began: Duration) -> Vec<Blocker> {
        let (working, now) = self
            .shared
            .read(|machine, now| (machine.unfinished(now, marks, MAX_UNFINISHED), now));
        if !working.is_empty() {
            return working;
        }
        // Nothing counted is at work, yet the owner has not finished: it knows more than the gate does.
        let instance = self.shared.instance();
        attempts(&marks[..marks.len().min(MAX_UNFINISHED)])
            .into_iter()
            .map(|episode| Blocker {
                episode,
                instance: instance.clone(),
                step: Cow::Borrowed("retire"),
                age: now.saturating_sub(began),
                reason: Cow::Borrowed("the attempt is being stopped, with others of the same call"),
            })
            .collect()
    }

    fn retire_panicked(&self, failed: tokio::task::JoinError) -> Refusal {
        let text = match failed.try_into_panic() {
            Ok(panic) => panic_text(&*panic),
            Err(cancelled) => cancelled.to_string(),
        };
        let instance = self.shared.instance();
        error!(%instance, "retire panicked: {text}");
        Refusal::new(
            Reason::Internal,
            format!("{instance} failed in retire: {text}; this is a defect, see its log; the marks are set, retire again"),
        )
        .instance(instance)
    }

    /// Drops what is remembered of rollouts that are over, all of them or none; with `check` only asks.
    pub(crate) fn forget(
        self: &Arc<Self>,
        fence: &Fence,
        rollouts: &[RolloutId],
        version: u64,
        check: bool,
    ) -> Result<u64, Refusal> {
        let mut control = self.control();
        let concerned = self.turn(&mut control, |machine, now| {
            machine.may_forget(now, fence, rollouts, version)
        })?;
        for rollout in &concerned {
            let stopping = |attempts: &Vec<Episode>| attempts.iter().any(|e| e.rollout == *rollout);
            if control.retires.keys().any(stopping) {
                return Err(self.still_stops(rollout));
            }
            self.owner.may_forget(rollout)?;
        }
        if check {
            return Ok(0);
        }
        for rollout in &concerned {
            self.owner.forget(rollout);
        }
        Ok(self.turn(&mut control, |machine, _| machine.forget(&concerned, version)))
    }

    fn still_stops(&self, rollout: &RolloutId) -> Refusal {
        let instance = self.shared.instance();
        Refusal::new(
            Reason::RetireIncomplete,
            format!(
                "{rollout} is retired and still stops at {instance}: forget it when its retire has ended"
            ),
        )
        .with("rollout_id", rollout)
        .instance(instance)
    }
}

/// The highest attempt that each mark stops.
fn attempts(marks: &[Mark]) -> Vec<Episode> {
    let episode = |mark: &Mark| Episode::new(mark.rollout.clone(), mark.attempt);
    marks.iter().map(episode).collect()
}
