//! The engine in numbers, topic by topic, for whoever watches it. Reading them opens no log, keeps none warm and waits for no I/O.

use veena_contract::{Offset, PartitionIndex, TenantId, TopicName};

use crate::metrics::Counter;

/// What one partition counts since the process began. Hot paths touch these atomics and nothing else.
#[derive(Debug, Default)]
pub struct PartitionCounts {
    /// Messages taken from clients for it.
    pub produced: Counter,
    /// Bytes of their payloads.
    pub produced_bytes: Counter,
    /// Messages handed out under a lease and written to a client.
    pub consumed: Counter,
    /// Bytes of their payloads.
    pub consumed_bytes: Counter,
    /// Leases extended.
    pub extended: Counter,
    /// Leases handed back.
    pub returned: Counter,
    /// Messages skipped because they cannot be read.
    pub corrupt_skipped: Counter,
    /// Messages dropped by retention before they were settled.
    pub retention_dropped: Counter,
    /// Gaps that its sources declared: records that were lost before they came here.
    pub gaps: Counter,
}

impl PartitionCounts {
    /// One message was taken from a client.
    pub fn on_produced(&self, payload_bytes: usize) {
        self.produced.add(1);
        self.produced_bytes.add(payload_bytes as u64);
    }

    /// One message was written to a client.
    pub fn on_consumed(&self, payload_bytes: usize) {
        self.consumed.add(1);
        self.consumed_bytes.add(payload_bytes as u64);
    }

    /// Has anything been counted?
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        let taken = [&self.produced, &self.consumed, &self.extended, &self.returned];
        let lost = [&self.corrupt_skipped, &self.retention_dropped, &self.gaps];
        taken.iter().chain(&lost).all(|counter| counter.get() == 0)
    }
}

/// One log and its consumers in numbers. Those of a closed log are what they were when it was closed: nothing changes while it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogNumbers {
    /// Files.
    pub segments: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// The first offset that consumers do not see yet.
    pub high_watermark: Offset,
    /// The first offset that is not settled.
    pub frontier: Offset,
    /// Messages leased now.
    pub leased: u64,
    /// Messages settled beyond the frontier.
    pub acked_ahead: u64,
}

impl LogNumbers {
    /// Messages that consumers may see and nobody has settled.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.high_watermark.0.saturating_sub(self.frontier.0).saturating_sub(self.acked_ahead)
    }
}

/// One partition in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionNumbers {
    /// Which.
    pub index: PartitionIndex,
    /// Messages taken from clients for it.
    pub produced: u64,
    /// Bytes of their payloads.
    pub produced_bytes: u64,
    /// Messages written to clients under a lease.
    pub consumed: u64,
    /// Bytes of their payloads.
    pub consumed_bytes: u64,
    /// Leases extended.
    pub extended: u64,
    /// Leases handed back.
    pub returned: u64,
    /// Messages skipped because they cannot be read.
    pub corrupt_skipped: u64,
    /// Messages dropped by retention before they were settled.
    pub retention_dropped: u64,
    /// Gaps that its sources declared.
    pub gaps: u64,
    /// Its log; `None` when this process has not opened it yet.
    pub log: Option<LogNumbers>,
}

impl PartitionNumbers {
    /// The counts as they are now, beside the log's numbers.
    #[must_use]
    pub fn of(index: PartitionIndex, counts: &PartitionCounts, log: Option<LogNumbers>) -> Self {
        Self {
            index,
            produced: counts.produced.get(),
            produced_bytes: counts.produced_bytes.get(),
            consumed: counts.consumed.get(),
            consumed_bytes: counts.consumed_bytes.get(),
            extended: counts.extended.get(),
            returned: counts.returned.get(),
            corrupt_skipped: counts.corrupt_skipped.get(),
            retention_dropped: counts.retention_dropped.get(),
            gaps: counts.gaps.get(),
            log,
        }
    }
}

/// One living topic in numbers: those of its partitions that this process has used.
#[derive(Clone, Debug)]
pub struct TopicNumbers {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its name.
    pub name: TopicName,
    /// Its used partitions, by index.
    pub partitions: Vec<PartitionNumbers>,
}

/// One (attachment, parent partition) in numbers.
#[derive(Clone, Debug)]
pub struct CursorNumbers {
    /// Whose it is.
    pub tenant: TenantId,
    /// The parent.
    pub parent: TopicName,
    /// The child.
    pub child: TopicName,
    /// Which partition of the parent.
    pub partition: PartitionIndex,
    /// Records copied since the process began.
    pub committed: u64,
    /// Records lost to retention or damage before they were copied, since the attachment.
    pub dropped: u64,
    /// Records of the parent not copied yet; `None` before the parent's log has been opened.
    pub lag: Option<u64>,
}

/// The data directory in numbers, as of the last sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryNumbers {
    /// Bytes free for us on its disk; 0 before the first sweep.
    pub available_bytes: u64,
    /// Bytes set aside and not removed yet.
    pub quarantined_bytes: u64,
    /// Bytes of records that wait in files for partitions that take nothing.
    pub parked_bytes: u64,
}
