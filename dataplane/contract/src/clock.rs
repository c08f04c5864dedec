//! Time of day and randomness come in through these, so that a simulated run repeats. Durations are measured with the runtime's clock.

/// The time of day.
pub trait WallClock: Send + Sync + 'static {
    /// Milliseconds since 1970-01-01 UTC. May step in either direction; callers that need monotone time take the maximum themselves.
    fn now_ms(&self) -> u64;
}

/// Randomness for identities and nonces. Implementations for production MUST be unpredictable.
pub trait Entropy: Send + Sync + 'static {
    /// 64 random bits.
    fn next_u64(&self) -> u64;

    /// 128 random bits.
    fn next_u128(&self) -> u128 {
        (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64())
    }
}
