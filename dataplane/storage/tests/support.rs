//! Randomness that repeats.

use std::sync::atomic::{AtomicU64, Ordering};

use veena_contract::Entropy;

/// A seeded generator (splitmix64).
pub struct Seeded(AtomicU64);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Entropy for Seeded {
    fn next_u64(&self) -> u64 {
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
