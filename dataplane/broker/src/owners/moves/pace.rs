//! How fast a copy goes: one piece at a time on either side, so that few bytes are in memory, and on a node that is used with a pause after
//! each that is as long as the piece took: copies together have half of its disk. A partition that has stopped is in nobody's way, and waits
//! for nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use veena_contract::limits;

use crate::core::Core;

const PAUSE_MAX: Duration = Duration::from_millis(limits::MOVE_PAUSE_MS_MAX);

/// One side of copies on this node.
pub struct Pace {
    turns: Semaphore,
    /// How much the node had done for others at the end of the last piece.
    done: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { turns: Semaphore::new(1), done: AtomicU64::new(0) }
    }
}

impl Pace {
    /// Does the work on one piece in its turn.
    pub async fn take<T>(&self, core: &Core, work: impl Future<Output = T>) -> T {
        let Ok(_turn) = self.turns.acquire().await else { return work.await };
        let began = Instant::now();
        let done = work.await;
        if self.is_used(core) {
            sleep(began.elapsed().min(PAUSE_MAX)).await;
        }
        done
    }

    /// Has the node done something for others since the last piece?
    fn is_used(&self, core: &Core) -> bool {
        let counts = &core.metrics;
        let counted = [
            &counts.messages_accepted,
            &counts.messages_committed,
            &counts.messages_delivered,
            &counts.leases_acked,
            &counts.fanout_records_committed,
        ];
        let now = counted.iter().map(|count| count.get()).sum();
        self.done.swap(now, Ordering::Relaxed) != now
    }
}
