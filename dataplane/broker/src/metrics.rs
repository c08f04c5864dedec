//! What the engine counts. Plain atomics, read by whoever renders them.

use std::sync::atomic::{AtomicU64, Ordering};

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

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// The engine's counters.
        #[derive(Debug, Default)]
        pub struct BrokerMetrics {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl BrokerMetrics {
            /// Every counter by name.
            #[must_use]
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.get()),)*]
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
}
