//! How fast a copy goes: one piece at a time on either side, so that few bytes are in memory, and on a node that is used with a pause after
//! each that is as long as the piece took: copies together have half of its disk. A partition that has stopped is in nobody's way, and waits
//! for nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use veena_contract::limits;

use crate::metrics::BrokerMetrics;

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
    pub async fn take<T>(&self, counts: &BrokerMetrics, work: impl Future<Output = T>) -> T {
        let Ok(_turn) = self.turns.acquire().await else { return work.await };
        let began = Instant::now();
        let done = work.await;
        if self.is_used(counts) {
            sleep(began.elapsed().min(PAUSE_MAX)).await;
        }
        done
    }

    /// Has the node done something for others since the last piece?
    fn is_used(&self, counts: &BrokerMetrics) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: Duration = Duration::from_millis(30);

    /// How long each of these takes: the piece, or, of a node that is used, its pause too.
    async fn takes(pace: &Pace, counts: &BrokerMetrics, piece: Duration) -> Duration {
        let began = Instant::now();
        pace.take(counts, async { sleep(piece).await }).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_has_half_of_a_node_that_is_used_and_all_of_one_that_is_not() {
        let (pace, counts) = (Pace::default(), BrokerMetrics::default());
        assert_eq!(takes(&pace, &counts, PIECE).await, PIECE, "nobody uses it");
        counts.messages_accepted.add(1);
        assert_eq!(takes(&pace, &counts, PIECE).await, PIECE * 2);
        assert_eq!(takes(&pace, &counts, PIECE).await, PIECE, "nobody has since");
        counts.leases_acked.add(1);
        assert_eq!(takes(&pace, &counts, PAUSE_MAX * 10).await, PAUSE_MAX * 11, "no pause is longer");
    }

    #[tokio::test(start_paused = true)]
    async fn pieces_go_one_at_a_time_and_one_that_nobody_waits_for_keeps_no_other() {
        let (pace, counts) = (Pace::default(), BrokerMetrics::default());
        let began = Instant::now();
        tokio::join!(takes(&pace, &counts, PIECE), takes(&pace, &counts, PIECE), takes(&pace, &counts, PIECE));
        assert_eq!(began.elapsed(), PIECE * 3);
        let left = tokio::time::timeout(PIECE, pace.take(&counts, std::future::pending::<()>())).await;
        assert!(left.is_err());
        assert_eq!(takes(&pace, &counts, PIECE).await, PIECE);
    }
}
