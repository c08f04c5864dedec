//! Where a member draws its randomness from.

use std::fmt;
use std::sync::Arc;

use veena_contract::{Entropy, WallClock};

use crate::raft::seed_elections;

/// What a member runs on: tokio's clock and tasks, and this entropy. With seeded entropy on one thread, a run repeats.
#[derive(Clone)]
pub struct Runtime {
    entropy: Arc<dyn Entropy>,
    clock: Option<Arc<dyn WallClock>>,
}

impl Runtime {
    /// A runtime that draws from `entropy`.
    #[must_use]
    pub fn new(entropy: Arc<dyn Entropy>) -> Self {
        Self { entropy, clock: None }
    }

    /// The same, with the time of day, which is said in records of what was done. Nothing else looks at it.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn WallClock>) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// The time of day; 0 if there is no clock.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.clock.as_ref().map_or(0, |clock| clock.now_ms())
    }

    /// The source of identities.
    #[must_use]
    pub fn entropy(&self) -> &Arc<dyn Entropy> {
        &self.entropy
    }

    /// Seeds the jitter of elections. It is one per process, since the raft library asks for it without saying for which member.
    pub(crate) fn seed(&self) {
        seed_elections(self.entropy.next_u64());
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}
