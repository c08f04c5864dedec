//! The delay gate: a record is due its parent's commit time plus the delay. Never early. Pure.
//!
//! Commit times of one partition never step back, so the first record that is not due holds everything behind it.

use veena_storage::partition::StoredRecord;

/// What of a slab may go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The first `count` records are due; at least one.
    Open {
        /// How many.
        count: usize,
    },
    /// Nothing is due before `wait_ms` from now.
    Closed {
        /// How long.
        wait_ms: u64,
    },
}

/// Judges a slab that is not empty. `now_ms` is the owner's wall clock.
#[must_use]
pub fn judge(slab: &[StoredRecord], delay_ms: u64, now_ms: u64) -> Gate {
    let due = |record: &StoredRecord| record.commit_ms.saturating_add(delay_ms);
    let count = slab.iter().take_while(|record| due(record) <= now_ms).count();
    match (count, slab.first()) {
        (0, Some(first)) => Gate::Closed { wait_ms: due(first) - now_ms },
        _ => Gate::Open { count },
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use veena_contract::{MessageId, Offset, StreamId};

    use super::*;

    fn record(offset: u64, commit_ms: u64) -> StoredRecord {
        let id = MessageId { stream: StreamId(1), sequence: offset };
        StoredRecord { offset: Offset(offset), sequence: offset, id, commit_ms, body: Bytes::new() }
    }

    #[test]
    fn nothing_passes_before_it_is_due() {
        let slab = [record(0, 100), record(1, 150), record(2, 150), record(3, 400)];
        assert_eq!(judge(&slab, 50, 149), Gate::Closed { wait_ms: 1 });
        assert_eq!(judge(&slab, 50, 150), Gate::Open { count: 1 });
        assert_eq!(judge(&slab, 50, 200), Gate::Open { count: 3 });
        assert_eq!(judge(&slab, 0, 400), Gate::Open { count: 4 });
    }

    #[test]
    fn the_longest_delay_does_not_wrap() {
        assert_eq!(judge(&[record(0, u64::MAX - 1)], u64::MAX, 5), Gate::Closed { wait_ms: u64::MAX - 5 });
    }
}
