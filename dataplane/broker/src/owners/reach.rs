//! Which nodes could not be reached when they were last called about streams. A hint: what is decided by it is right without it, and slower.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use veena_contract::{NodeId, PeerError, PeerRefusal, limits};

/// How long a failure is remembered.
const MEMORY: Duration = Duration::from_millis(limits::REROUTE_PROBE_MS);

/// Nodes that were away, and since when they were not asked.
#[derive(Default)]
pub struct Reach {
    failed: Mutex<BTreeMap<NodeId, Instant>>,
}

impl Reach {
    /// Was this node called a moment ago, and was not there? One that answers with a refusal is there.
    #[must_use]
    pub fn is_away(&self, node: &NodeId) -> bool {
        self.failed.lock().get(node).is_some_and(|at| at.elapsed() < MEMORY)
    }

    /// It was called.
    pub(super) fn note<T>(&self, node: &NodeId, called: &Result<T, PeerError>) {
        let is_there = match called {
            Ok(_) => true,
            Err(PeerError::Refused { refusal, .. }) => *refusal != PeerRefusal::NotServing,
            Err(_) => false,
        };
        if is_there {
            self.failed.lock().remove(node);
        } else {
            self.failed.lock().insert(node.clone(), Instant::now());
        }
    }
}
