//! The checkpoint control plane of a server, written once: core and store behind gRPC, with a few functions to fill in.
//!
//! A checkpoint of a mesh is a consistent cut through all of its servers. Each server takes part in it through a
//! *participant*, which closes the door for new work, waits until the work in progress has come to a boundary, captures, writes,
//! opens again, and later restores. All of that is here. A server adds two things:
//!
//! - its data calls come in through a [`Gate`]: a [`Permit`] is counted work that a checkpoint waits for;
//! - its state is behind a [`StateOwner`]: what cannot be saved, capture, stage, activate, retire, forget.
//!
//! # Making a server a participant
//!
//! 1. Let each data call [`enter`](Gate::enter) the gate, and keep the permit until what it changed is recorded. A step that is
//!    safe to run twice and takes long holds no permit while it waits; it takes one before it applies what came back.
//! 2. Key the state by episode *and* execution, and refuse what does not fit: state is made by a seed or by a restore only
//!    (`EPISODE_UNKNOWN`), and belongs to one life of the episode (`STALE_EXECUTION`).
//! 3. Implement [`StateOwner`]. `capture` copies references, not bytes; the bytes are made later, in the background.
//! 4. Tie them together with [`Participant::new`], and serve [`Participant::into_service`] on the control port.
//!
//! The whole of a small server, a checkpoint of it, and a restore into another process:
//!
//! ```
//! use std::{
//!     collections::BTreeMap,
//!     sync::{Arc, Mutex},
//! };
//!
//! use belay_core::{
//!     ids::{CheckpointId, Episode, ExecutionId, RolloutId},
//!     parts::{Mark, PartSummary, PlannedEpisode, Restart},
//!     refusal::{Reason, Refusal},
//! };
//! use belay_participant::{
//!     Capture, CapturedPart, Gate, Participant, ServerCommon, StateOwner,
//! };
//! use bytes::Bytes;
//!
//! /// Counts, for each episode.
//! struct Counter {
//!     gate: Gate,
//!     sessions: Mutex<BTreeMap<Episode, Session>>,
//! }
//!
//! #[derive(Clone, Copy)]
//! struct Session {
//!     execution: ExecutionId,
//!     count: u64,
//! }
//!
//! // What the server is for: its data calls. Only the gate reminds of checkpoints.
//! impl Counter {
//!     async fn seed(&self, episode: &Episode, execution: ExecutionId) -> Result<(), Refusal> {
//!         let _permit = self.gate.enter(episode, "seed").await?;
//!         let mut sessions = self.sessions.lock().expect("no panic holds this lock");
//!         sessions.entry(episode.clone()).or_insert(Session { execution, count: 0 });
//!         Ok(())
//!     }
//!
//!     async fn increment(&self, episode: &Episode, execution: ExecutionId) -> Result<u64, Refusal> {
//!         // Waits here while the mesh is closed. From here to the end of the call a checkpoint waits for us.
//!         let _permit = self.gate.enter(episode, "increment").await?;
//!         let mut sessions = self.sessions.lock().expect("no panic holds this lock");
//!         match sessions.get_mut(episode) {
//!             Some(session) if session.execution == execution => {
//!                 session.count += 1;
//!                 Ok(session.count)
//!             }
//!             Some(_) => Err(Refusal::new(Reason::StaleExecution, "another life of it is held here").episode(episode)),
//!             None => Err(Refusal::new(Reason::EpisodeUnknown, "neither seeded nor restored here").episode(episode)),
//!         }
//!     }
//! }
//!
//! // What a checkpoint needs to know of it.
//! impl StateOwner for Counter {
//!     type Staged = u64;
//!
//!     fn capture(&self, _id: CheckpointId, scope: &[Episode], _restarts: &[Restart]) -> Capture {
//!         let sessions = self.sessions.lock().expect("no panic holds this lock");
//!         let part = |episode: &Episode| {
//!             let Session { execution, count } = *sessions.get(episode)?;
//!             Some(CapturedPart {
//!                 summary: PartSummary::new(episode.clone(), execution),
//!                 size: 8,
//!                 record: Arc::new(move || Bytes::copy_from_slice(&count.to_le_bytes())),
//!             })
//!         };
//!         Capture { parts: scope.iter().filter_map(part).collect(), ..Capture::default() }
//!     }
//!
//!     fn stage(&self, planned: &PlannedEpisode, payload: Bytes) -> Result<u64, Refusal> {
//!         let count = payload.as_ref().try_into().map_err(|_| {
//!             let message = format!("the record of {} is not a count", planned.saved);
//!             Refusal::new(Reason::InvalidCheckpoint, message)
//!         })?;
//!         Ok(u64::from_le_bytes(count))
//!     }
//!
//!     fn activate(&self, staged: Vec<(PlannedEpisode, u64)>) {
//!         let mut sessions = self.sessions.lock().expect("no panic holds this lock");
//!         for (planned, count) in staged {
//!             sessions.retain(|episode, _| episode.rollout != planned.saved.rollout);
//!             sessions.insert(planned.episode(), Session { execution: planned.execution, count });
//!         }
//!     }
//!
//!     fn drop_unclaimed(&self, marks: &[Mark]) -> u64 {
//!         let mut sessions = self.sessions.lock().expect("no panic holds this lock");
//!         let before = sessions.len();
//!         for mark in marks {
//!             sessions.retain(|episode, _| episode.rollout != mark.rollout || episode.attempt > mark.attempt);
//!         }
//!         (before - sessions.len()) as u64
//!     }
//!
//!     async fn retire(&self, marks: Vec<Mark>) {
//!         self.drop_unclaimed(&marks);
//!     }
//!
//!     fn may_forget(&self, rollout: &RolloutId) -> Result<(), Refusal> {
//!         let sessions = self.sessions.lock().expect("no panic holds this lock");
//!         match sessions.keys().find(|episode| episode.rollout == *rollout) {
//!             Some(live) => Err(Refusal::new(Reason::RolloutLive, format!("{live} is live here"))),
//!             None => Ok(()),
//!         }
//!     }
//!
//!     fn forget(&self, _rollout: &RolloutId) {} // nothing is kept of what was retired
//!
//!     fn counts(&self) -> BTreeMap<&'static str, u64> {
//!         let sessions = self.sessions.lock().expect("no panic holds this lock");
//!         BTreeMap::from([("sessions", sessions.len() as u64)])
//!     }
//! }
//!
//! // How it is put together. A process then lets `server.data(...).control(participant.into_service()).run(...)` serve both halves
//! // on their ports; here they stay in the process.
//! fn start(common: &ServerCommon) -> (Arc<Counter>, Participant<Counter>) {
//!     let gate = common.gate();
//!     let counter = Arc::new(Counter { gate: gate.clone(), sessions: Mutex::default() });
//!     let (_server, options) = common.server();
//!     let participant = Participant::new(options, gate, counter.clone(), Default::default());
//!     (counter, participant)
//! }
//!
//! // And what a coordinator does with it.
//! # use belay_mesh::wire::ToWire;
//! use belay_proto::checkpoint::{self as pb, checkpoint_participant_client::CheckpointParticipantClient};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let root = tempfile::tempdir()?;
//! let common = ServerCommon::new("resources/my-counter/0".parse()?, root.path(), "example");
//! let (counter, participant) = start(&common);
//! let mut control = CheckpointParticipantClient::new(participant.into_service());
//! # let fence = |counter: &Counter| Some(pb::Fence { coordinator_epoch: 1, incarnation: counter.gate.incarnation().to_string() });
//! # let timeout = Some(prost_types::Duration { seconds: 30, nanos: 0 });
//! # let execution: ExecutionId = "01900000-0000-7000-8000-000000000000".parse()?;
//! # let episode = Episode::new(RolloutId::new("r-1")?, 0);
//! # let (checkpoint_id, restore_id) = ("00000001-00000001".to_owned(), "00000001-00000002".to_owned());
//! # let keep = pb::Decision::Keep.into();
//!
//! // A fresh process serves nothing until a coordinator lets it.
//! assert_eq!(counter.seed(&episode, execution).await.unwrap_err().reason, Reason::NotJoined);
//! control.join(pb::JoinRequest { fence: fence(&counter), open: true, ..Default::default() }).await?;
//! counter.seed(&episode, execution).await?;
//! counter.increment(&episode, execution).await?;
//! counter.increment(&episode, execution).await?;
//!
//! // A checkpoint: close, capture, open again; the write goes on in the background.
//! let prepared = control
//!     .prepare(pb::PrepareRequest { fence: fence(&counter), checkpoint_id: checkpoint_id.clone(), timeout, ..Default::default() })
//!     .await?
//!     .into_inner();
//! assert_eq!(prepared.phase(), pb::Phase::Prepared);
//! control
//!     .commit(pb::CommitRequest { fence: fence(&counter), checkpoint_id: checkpoint_id.clone(), timeout, scope: vec![episode.to_wire()] })
//!     .await?;
//! control
//!     .resume(pb::ResumeRequest { fence: fence(&counter), checkpoint_id: checkpoint_id.clone(), decision: keep })
//!     .await?;
//! let durable = control
//!     .r#await(pb::AwaitRequest { fence: fence(&counter), checkpoint_id: checkpoint_id.clone(), timeout })
//!     .await?
//!     .into_inner();
//! assert_eq!(counter.increment(&episode, execution).await?, 3); // not in the checkpoint
//!
//! // The process dies. Another one restores what was saved, as the next attempt in a new life.
//! # let execution: ExecutionId = "01900000-0000-7000-8000-000000000001".parse()?;
//! let (counter, participant) = start(&common);
//! let mut control = CheckpointParticipantClient::new(participant.into_service());
//! control
//!     .restore(pb::RestoreRequest {
//!         fence: fence(&counter),
//!         checkpoint_id: restore_id.clone(),
//!         source: checkpoint_id,
//!         timeout,
//!         marks: None,
//!         plan: vec![pb::PlannedEpisode {
//!             saved: Some(episode.to_wire()),
//!             attempt: 1,
//!             execution: execution.to_string(),
//!             placement: vec![common.instance.to_wire()],
//!         }],
//!         shards: vec![pb::Shard {
//!             instance: Some(common.instance.to_wire()),
//!             manifest: durable.manifest,
//!             digest: durable.digest,
//!         }],
//!     })
//!     .await?;
//! control
//!     .resume(pb::ResumeRequest { fence: fence(&counter), checkpoint_id: restore_id, decision: keep })
//!     .await?;
//!
//! let restored = Episode::new(episode.rollout.clone(), 1);
//! assert_eq!(counter.increment(&restored, execution).await?, 3);
//! // The attempt that it replaces is refused, by the gate.
//! let stale = counter.increment(&episode, execution).await.unwrap_err();
//! assert_eq!((stale.reason, stale.get("next_attempt")), (Reason::StaleAttempt, Some("1")));
//! # Ok(())
//! # }
//! ```
//!
//! # Inside
//!
//! Every decision is [`belay_core::participant::Machine`]'s, a plain value without I/O. Here it is behind two locks: the gate's,
//! which a data call takes for a moment, and the one that orders control calls, under which the owner's functions run. A handler
//! takes turns and waits in between; what takes long (a write, a restore's reading, a retire) is a task that handlers only wait
//! for, so a connection that breaks cancels nothing and a retry finds the work where it was.

mod common;
mod control;
mod convert;
pub mod gate;
mod grpc;
pub mod owner;
pub mod participant;
mod persist;
mod prepare;
mod restore;
mod resume;
mod retire;
mod shared;
mod status;

pub use common::{DEFAULT_DOOR, DEFAULT_PATIENCE, DEFAULT_RECORD_LIMIT, ServerCommon};
pub use gate::{Gate, GateOptions, Permit};
pub use owner::{Capture, CapturedPart, EncodeRecord, StateOwner};
pub use participant::{Participant, ParticipantOptions};
