//! The checkpoint contract's values, as the participant and the coordinator say them to each other.

use std::time::Duration;

use belay_core::{
    ids::{Instance, RolloutId},
    parts::{
        LedgerTip, Mark, Need, PartNeeded, PartSummary, PartitionEntry, PlannedEpisode, Restart, Standing,
    },
    refusal::{Blocker, Refusal},
};
use belay_proto::checkpoint as pb;

use super::{ToWire, cursor, digest, digest_to_wire, episode, instance, invalid, operation, optional_digest};
use crate::members::Member;

/// A mark.
pub fn mark(wire: pb::Mark) -> Result<Mark, Refusal> {
    Ok(Mark {
        rollout: RolloutId::new(&wire.rollout_id)?,
        attempt: wire.attempt,
    })
}

/// Marks and their version; unset reads as none at version 0.
pub fn mark_set(wire: Option<pb::MarkSet>) -> Result<(u64, Vec<Mark>), Refusal> {
    let wire = wire.unwrap_or_default();
    Ok((wire.version, all(wire.marks, mark)?))
}

/// A member of the mesh.
pub fn member(wire: pb::Member) -> Result<Member, Refusal> {
    Ok(Member {
        instance: instance(wire.instance)?,
        data: wire.data_address,
        control: wire.control_address,
    })
}

/// The members and their version; unset reads as none at version 0.
pub fn member_list(wire: Option<pb::MemberList>) -> Result<(u64, Vec<Member>), Refusal> {
    let wire = wire.unwrap_or_default();
    Ok((wire.version, all(wire.members, member)?))
}

/// A blocker. It only informs: an age that does not read is none.
pub fn blocker(wire: pb::Blocker) -> Result<Blocker, Refusal> {
    Ok(Blocker {
        episode: episode(wire.episode)?,
        instance: instance(wire.instance)?,
        step: wire.step.into(),
        age: wire
            .age
            .and_then(|age| Duration::try_from(age).ok())
            .unwrap_or_default(),
        reason: wire.reason.into(),
    })
}

/// A restart.
pub fn restart(wire: pb::Restart) -> Result<Restart, Refusal> {
    Ok(Restart {
        episode: episode(wire.episode)?,
        instance: instance(wire.instance)?,
        reason: wire.reason,
    })
}

/// What a participant captured of one episode.
pub fn part(wire: pb::CapturedPart) -> Result<PartSummary, Refusal> {
    Ok(PartSummary {
        episode: episode(wire.episode)?,
        execution: wire.execution.parse()?,
        root: wire.root,
        cursor: cursor(wire.cursor)?,
        needs: all(wire.needs, needed)?,
        ledger: wire
            .ledger
            .and_then(|tip| ledger_tip(tip).transpose())
            .transpose()?,
        revision: wire.revision,
        boundary: wire.boundary,
        task: optional_digest("task_digest", &wire.task_digest)?,
        finished: wire.finished,
    })
}

fn needed(wire: pb::PartNeeded) -> Result<PartNeeded, Refusal> {
    let need = match wire.need() {
        pb::Need::Whole => Need::Whole,
        // Unset says that no call was made yet: what is there must be as if one had begun.
        pb::Need::IfBegun | pb::Need::Unspecified => Need::IfBegun,
    };
    Ok(PartNeeded {
        instance: instance(wire.instance)?,
        need,
    })
}

/// `None` where the ledger has no row.
fn ledger_tip(wire: pb::LedgerTip) -> Result<Option<LedgerTip>, Refusal> {
    if wire.operation.is_none() {
        return Ok(None);
    }
    let parent = optional_digest("ledger.parent", &wire.parent)?;
    Ok(Some(LedgerTip {
        operation: operation(wire.operation)?,
        chain: digest("ledger.chain_hash", &wire.chain_hash)?,
        // The first row's parent is all zeros where a server writes it out.
        parent: parent.filter(|parent| *parent != [0; 32]),
    }))
}

/// One line of the partition: its class must be set.
pub fn partition_entry(wire: pb::PartitionEntry) -> Result<PartitionEntry, Refusal> {
    let standing = match wire.standing() {
        pb::Standing::Acknowledged => Standing::Acknowledged,
        pb::Standing::SavedRunning => Standing::SavedRunning,
        pb::Standing::SavedFinished => Standing::SavedFinished,
        pb::Standing::Restart => Standing::Restart,
        pb::Standing::LeftOut => Standing::LeftOut,
        pb::Standing::Retired => Standing::Retired,
        pb::Standing::Failed => Standing::Failed,
        pb::Standing::Unspecified => {
            let rule = format_args!(
                "{} is no class: every episode stands in exactly one",
                wire.standing
            );
            return Err(invalid("standing", rule));
        }
    };
    Ok(PartitionEntry {
        episode: episode(wire.episode)?,
        standing,
        reason: wire.reason,
    })
}

/// One episode of a restore's plan.
pub fn planned(wire: pb::PlannedEpisode) -> Result<PlannedEpisode, Refusal> {
    Ok(PlannedEpisode {
        saved: episode(wire.saved)?,
        attempt: wire.attempt,
        execution: wire.execution.parse()?,
        placement: all(wire.placement, |place| instance(Some(place)))?,
    })
}

fn all<W, T>(wire: Vec<W>, read: impl Fn(W) -> Result<T, Refusal>) -> Result<Vec<T>, Refusal> {
    wire.into_iter().map(read).collect()
}

impl ToWire for Mark {
    type Wire = pb::Mark;
    fn to_wire(&self) -> pb::Mark {
        pb::Mark {
            rollout_id: self.rollout.as_str().into(),
            attempt: self.attempt,
        }
    }
}

impl ToWire for Member {
    type Wire = pb::Member;
    fn to_wire(&self) -> pb::Member {
        pb::Member {
            instance: Some(self.instance.to_wire()),
            data_address: self.data.clone(),
            control_address: self.control.clone(),
        }
    }
}

impl ToWire for Blocker {
    type Wire = pb::Blocker;
    fn to_wire(&self) -> pb::Blocker {
        pb::Blocker {
            episode: Some(self.episode.to_wire()),
            instance: Some(self.instance.to_wire()),
            step: self.step.to_string(),
            age: Some(self.age.to_wire()),
            reason: self.reason.to_string(),
        }
    }
}

impl ToWire for Restart {
    type Wire = pb::Restart;
    fn to_wire(&self) -> pb::Restart {
        pb::Restart {
            episode: Some(self.episode.to_wire()),
            instance: Some(self.instance.to_wire()),
            reason: self.reason.clone(),
        }
    }
}

impl ToWire for PartSummary {
    type Wire = pb::CapturedPart;
    fn to_wire(&self) -> pb::CapturedPart {
        pb::CapturedPart {
            episode: Some(self.episode.to_wire()),
            execution: self.execution.to_string(),
            root: self.root,
            cursor: Some(self.cursor.to_wire()),
            needs: self.needs.iter().map(ToWire::to_wire).collect(),
            ledger: self.ledger.map(|tip| tip.to_wire()),
            revision: self.revision,
            boundary: self.boundary.clone(),
            task_digest: self.task.map(|task| digest_to_wire(&task)).unwrap_or_default(),
            finished: self.finished,
        }
    }
}

impl ToWire for PartNeeded {
    type Wire = pb::PartNeeded;
    fn to_wire(&self) -> pb::PartNeeded {
        let need = match self.need {
            Need::Whole => pb::Need::Whole,
            Need::IfBegun => pb::Need::IfBegun,
        };
        pb::PartNeeded {
            instance: Some(self.instance.to_wire()),
            need: need.into(),
        }
    }
}

impl ToWire for LedgerTip {
    type Wire = pb::LedgerTip;
    fn to_wire(&self) -> pb::LedgerTip {
        pb::LedgerTip {
            operation: Some(self.operation.to_wire()),
            chain_hash: digest_to_wire(&self.chain),
            parent: self
                .parent
                .map(|parent| digest_to_wire(&parent))
                .unwrap_or_default(),
        }
    }
}

impl ToWire for PartitionEntry {
    type Wire = pb::PartitionEntry;
    fn to_wire(&self) -> pb::PartitionEntry {
        let standing = match self.standing {
            Standing::Acknowledged => pb::Standing::Acknowledged,
            Standing::SavedRunning => pb::Standing::SavedRunning,
            Standing::SavedFinished => pb::Standing::SavedFinished,
            Standing::Restart => pb::Standing::Restart,
            Standing::LeftOut => pb::Standing::LeftOut,
            Standing::Retired => pb::Standing::Retired,
            Standing::Failed => pb::Standing::Failed,
        };
        pb::PartitionEntry {
            episode: Some(self.episode.to_wire()),
            standing: standing.into(),
            reason: self.reason.clone(),
        }
    }
}

impl ToWire for PlannedEpisode {
    type Wire = pb::PlannedEpisode;
    fn to_wire(&self) -> pb::PlannedEpisode {
        pb::PlannedEpisode {
            saved: Some(self.saved.to_wire()),
            attempt: self.attempt,
            execution: self.execution.to_string(),
            placement: self.placement.iter().map(Instance::to_wire).collect(),
        }
    }
}
