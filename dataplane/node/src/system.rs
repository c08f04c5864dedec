//! The real clock and the real randomness.

use rand::Rng;
use veena_contract::{Entropy, WallClock};

/// The machine's time of day.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    fn now_ms(&self) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is given")]
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Unguessable randomness: ChaCha in each thread, seeded and reseeded by the operating system, which is asked once for many draws.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn next_u64(&self) -> u64 {
        rand::rng().next_u64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_past_the_day_this_was_written() {
        assert!(SystemClock.now_ms() > 1_764_000_000_000);
    }

    #[test]
    fn two_draws_differ() {
        assert_ne!(OsEntropy.next_u128(), OsEntropy.next_u128());
    }
}
