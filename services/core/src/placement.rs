//! Where a rollout's parts live: rendezvous hashing (protocol 2). Each replica gets a score for the rollout, and the
//! highest wins, so a replica that joins or leaves moves only the rollouts that it wins or had.

use crate::ids::{Instance, RolloutId};

/// The replica that a rollout is placed on at its seed. `None` when there are no replicas.
pub fn place<'a>(
    rollout: &RolloutId,
    replicas: impl IntoIterator<Item = &'a Instance>,
) -> Option<&'a Instance> {
    replicas
        .into_iter()
        .max_by_key(|replica| (score(rollout, replica), replica.replica))
}

fn score(rollout: &RolloutId, replica: &Instance) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(rollout.as_str().as_bytes());
    hasher.update(b"\0");
    hasher.update(replica.to_string().as_bytes());
    let digest = hasher.finalize();
    let head: [u8; 8] = digest.as_bytes()[..8].try_into().unwrap_or_default();
    u64::from_le_bytes(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Kind;

    fn replicas(n: u32) -> Vec<Instance> {
        (0..n)
            .map(|replica| Instance::new(Kind::Resources, "counter", replica).unwrap())
            .collect()
    }

    fn rollout(n: u32) -> RolloutId {
        RolloutId::new(&format!("task-{n}")).unwrap()
    }

    #[test]
    fn rollouts_spread_over_the_replicas() {
        let replicas = replicas(4);
        let mut counts = [0_u32; 4];
        for n in 0..4_000 {
            counts[place(&rollout(n), &replicas).unwrap().replica as usize] += 1;
        }
        assert!(
            counts.iter().all(|&count| (850..1_150).contains(&count)),
            "{counts:?}"
        );
        assert_eq!(place(&rollout(0), &[]), None);
    }

    #[test]
    fn a_new_replica_moves_only_what_it_wins() {
        let (four, five) = (replicas(4), replicas(5));
        let mut moved = 0;
        for n in 0..4_000 {
            let (before, after) = (
                place(&rollout(n), &four).unwrap(),
                place(&rollout(n), &five).unwrap(),
            );
            assert!(before == after || after.replica == 4, "{before} -> {after}");
            moved += u32::from(before != after);
        }
        assert!(
            (650..950).contains(&moved),
            "{moved} of 4,000 moved, about 800 expected"
        );
    }
}
