//! What the engine counts. Plain atomics, read by whoever renders them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of a histogram's buckets, in microseconds; one more bucket is for all that took longer.
pub const BOUNDS_US: [u64; 15] =
    [500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    sum_us: Counter,
    buckets: [Counter; BOUNDS_US.len() + 1],
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(BOUNDS_US.len());
        self.buckets[bucket].add(1);
        self.sum_us.add(us);
    }

    /// How many durations each bucket holds; not cumulative.
    #[must_use]
    pub fn buckets(&self) -> [u64; BOUNDS_US.len() + 1] {
        std::array::from_fn(|bucket| self.buckets[bucket].get())
    }

    /// How many durations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(Counter::get).sum()
    }

    /// Their sum, in microseconds.
    #[must_use]
    pub fn sum_us(&self) -> u64 {
        self.sum_us.get()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// The engine's counters.
        #[derive(Debug, Default)]
        pub struct BrokerMetrics {
            $($(#[$doc])* pub $name: Counter,)*
            /// How long writing a commit into a partition log took.
            pub log_append_seconds: Histogram,
            /// How long syncing a partition log took.
            pub log_sync_seconds: Histogram,
            /// How long syncing the settle journal took.
            pub settle_sync_seconds: Histogram,
            /// How long partitions that moved, or were to move, were served by nobody; told by the node that serves each of them afterwards.
            pub move_freeze_seconds: Histogram,
            /// How long syncing a group of the WAL took. Shared with the WAL's disk.
            pub wal_sync_seconds: Arc<Histogram>,
        }

        impl BrokerMetrics {
            /// Every counter by name.
            #[must_use]
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
            }

            /// How long syncs took, by the kind of log.
            #[must_use]
            pub fn sync_seconds(&self) -> [(&'static str, &Histogram); 3] {
                [("wal", &self.wal_sync_seconds), ("partition", &self.log_sync_seconds), ("settle", &self.settle_sync_seconds)]
            }
        }
    };
}

counters! {
    /// Messages accepted into the WAL.
    messages_accepted;
    /// Messages committed by partition owners of this node.
    messages_committed;
    /// Messages handed out under a lease and written to a client.
    messages_delivered;
    /// Leases acked.
    leases_acked;
    /// Leases extended.
    leases_extended;
    /// Leases handed back.
    leases_returned;
    /// Leases that ran out.
    leases_expired;
    /// Owner commits.
    commits;
    /// Owner commits that failed.
    commits_failed;
    /// Records of deleted topics, dropped after the leader confirmed the deletion.
    records_discarded;
    /// Records set aside in files for partitions that take nothing.
    records_parked;
    /// Records whose owner was away, accepted anew for another partition.
    records_rerouted;
    /// Rounds in which settle state could not be written or synced.
    settle_writes_failed;
    /// Housekeeping that could not do its part and tries again later: a directory that cannot be listed, retention that cannot be applied.
    housekeeping_failed;
    /// Damaged ranges found at open, on read or by the scrubber.
    damage_found;
    /// Messages skipped because they cannot be read.
    messages_corrupt_skipped;
    /// Messages dropped by retention before they were settled.
    messages_retention_dropped;
    /// Segments deleted by retention.
    segments_retired;
    /// Records copied into children.
    fanout_records_committed;
    /// Records lost to retention or damage before they were copied.
    fanout_records_dropped;
    /// Records whose source no longer has them: gaps declared in streams.
    stream_gaps;
    /// Streams that stopped because source and log disagree.
    streams_forked;
    /// Idle logs closed.
    idle_logs_closed;
    /// Messages whose idempotency key was known: answered again, and not stored.
    idempotent_repeats;
    /// Moves to this node that it has taken up; those of a former life once more.
    moves_begun;
    /// Moves that have made this node the owner.
    moves_flipped;
    /// Moves to this node that have ended without that.
    moves_aborted;
    /// Bytes that came here with moves, those that came again included.
    move_bytes_copied;
}
