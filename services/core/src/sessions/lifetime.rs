//! How long a session stays that nobody calls (protocol 3.2 rule 6).
//!
//! Each use moves a session's end on by the table's time to live. Times are open time: it stands still while the mesh is
//! closed and between a crash and a restore, and so does what is left of a session's life. One that is in use, by a tool call
//! or a verifier, has no end.

use std::time::Duration;

use super::{
    session::Session,
    table::{Ended, Sessions},
};
use crate::ids::{Episode, ExecutionId};

impl<S> Session<S> {
    /// When it ends if nobody calls it. One in use gets an end when the use is over.
    pub(super) fn ends(&self) -> Option<Duration> {
        let idle = self.in_flight.is_none() && self.verifying == 0;
        self.ends.filter(|_| idle)
    }

    fn is_over(&self, now: Duration) -> bool {
        self.ends().is_some_and(|ends| ends <= now)
    }
}

impl<S: Clone> Sessions<S> {
    /// Sessions that nobody calls for so long can be ended; `None`: they stay until they are closed or retired.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Option<Duration>) -> Self {
        self.ttl = ttl;
        self
    }

    /// A session was used, at `now` of the open time: its time to live begins anew. Due after a seed, when a call or a verify
    /// begins, and when it has ended. Nothing for a session that is not held.
    pub fn touch(&mut self, episode: &Episode, execution: ExecutionId, now: Duration) {
        let ends = self.ttl.and_then(|ttl| now.checked_add(ttl));
        if let Some(session) = self.session_mut(episode, execution) {
            session.ends = ends;
        }
    }

    /// A verifier begins to read a session: it is in use until [`end_verify`](Self::end_verify).
    pub fn begin_verify(&mut self, episode: &Episode, execution: ExecutionId) {
        if let Some(session) = self.session_mut(episode, execution) {
            session.verifying += 1;
        }
    }

    /// The verifier is done, or came to nothing.
    pub fn end_verify(&mut self, episode: &Episode, execution: ExecutionId) {
        if let Some(session) = self.session_mut(episode, execution) {
            session.verifying = session.verifying.saturating_sub(1);
        }
    }

    /// The sessions that [`expire`](Self::expire) would end at `now`.
    pub fn expired(&self, now: Duration) -> impl Iterator<Item = Episode> + '_ {
        self.live_sessions()
            .filter(move |(_, session)| session.is_over(now))
            .map(|(episode, _)| episode)
    }

    /// Ends the episode's session if its time to live is over at `now`; true if it was. Later calls are told so.
    pub fn expire(&mut self, episode: &Episode, now: Duration) -> bool {
        let (Some(ttl), Some(session)) = (self.ttl, self.live_session(episode)) else {
            return false;
        };
        let (over, execution) = (session.is_over(now), session.execution);
        if over {
            self.end(episode, execution, Ended::Expired(ttl));
        }
        over
    }

    /// The end of a session that goes live by a restore: it has what it had left, but no more than this table gives.
    pub(super) fn ends_restored(&self, time_left: Option<Duration>, now: Duration) -> Option<Duration> {
        let ttl = self.ttl?;
        now.checked_add(time_left.map_or(ttl, |left| left.min(ttl)))
    }
}
