//! Which partition a message goes to. Pure.

use std::sync::atomic::{AtomicU32, Ordering};

use veena_contract::PartitionIndex;

/// FNV-1a, 32 bits, over the key's raw bytes, modulo the partition count (http-contract 3). Clients rely on it.
#[must_use]
pub fn partition_of_key(key: &[u8], partitions: u32) -> PartitionIndex {
    const OFFSET_BASIS: u32 = 2_166_136_261;
    const PRIME: u32 = 16_777_619;
    let hash = key.iter().fold(OFFSET_BASIS, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME));
    PartitionIndex(hash % partitions)
}

/// Keyless messages go round the partitions, from a random start, so that partition 0 is not the hot one.
#[derive(Debug)]
pub struct Rotation(AtomicU32);

impl Rotation {
    /// A rotation that starts anywhere.
    #[must_use]
    pub fn starting_at(random: u64) -> Self {
        Self(AtomicU32::new(u32::try_from(random & u64::from(u32::MAX)).expect("invariant: masked to 32 bits")))
    }

    /// The next partition.
    pub fn next(&self, partitions: u32) -> PartitionIndex {
        PartitionIndex(self.0.fetch_add(1, Ordering::Relaxed) % partitions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_hashes_as_every_client_expects() {
        // Published FNV-1a vectors: "" -> 0x811c9dc5, "a" -> 0xe40c292c, "foobar" -> 0xbf9cf968.
        assert_eq!(partition_of_key(b"", u32::MAX).get(), 0x811c_9dc5);
        assert_eq!(partition_of_key(b"a", u32::MAX).get(), 0xe40c_292c);
        assert_eq!(partition_of_key(b"foobar", 3).get(), 0xbf9c_f968 % 3);
    }

    #[test]
    fn the_rotation_visits_every_partition() {
        let rotation = Rotation::starting_at(5);
        let mut seen: Vec<u32> = (0..3).map(|_| rotation.next(3).get()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
    }
}
