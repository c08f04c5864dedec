//! Which records of the WAL were accepted anew for another partition. Whoever reads the WAL, or a file of it, leaves them out: the `moved` record
//! that stands for each is sent, and nothing else. No I/O.
//!
//! What must never happen: a record is read for its destination while nobody knows yet what the WAL says further on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use veena_contract::{StreamId, WalSeq};
use veena_storage::wal::moved::{Moved, MovedError, MovedFrom};
use veena_storage::wal::{Destination, RecordKind, WalGap, WalRecord};

/// Records of one stream for one destination.
type Source = (StreamId, Destination);

/// The records that were moved, in stretches: as many as there were turns between moving and committing at a destination, not as there were
/// records.
#[derive(Default)]
pub struct MovedRecords {
    /// First and last of each stretch.
    stretches: Mutex<BTreeMap<Source, BTreeMap<WalSeq, WalSeq>>>,
    is_known: AtomicBool,
}

fn source_of(group: u64, from: MovedFrom) -> Source {
    (from.stream, Destination { group, partition: from.partition })
}

impl MovedRecords {
    /// Everything that former lives moved is known.
    pub fn set_known(&self) {
        self.is_known.store(true, Ordering::Release);
    }

    /// Is everything that former lives moved known? Before that, nothing of theirs may be sent.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    /// A durable record says so; it goes to a log of `group`.
    pub fn add(&self, group: u64, from: MovedFrom, behind: Option<WalSeq>) {
        let mut all = self.stretches.lock();
        let stretches = all.entry(source_of(group, from)).or_default();
        match stretches.range_mut(..=from.seq).next_back() {
            Some((_, last)) if *last >= from.seq => {}
            Some((_, last)) if Some(*last) == behind => *last = from.seq,
            _ => drop(stretches.insert(from.seq, from.seq)),
        }
    }

    /// Was this record moved?
    pub fn has(&self, stream: StreamId, destination: Destination, seq: WalSeq) -> bool {
        self.has_all(stream, destination, seq, seq)
    }

    /// Is all of this gap of what was moved?
    pub fn has_gap(&self, gap: &WalGap) -> bool {
        let last = WalSeq(gap.end.0.saturating_sub(1));
        gap.destination.is_some_and(|destination| self.has_all(gap.stream, destination, gap.first, last))
    }

    fn has_all(&self, stream: StreamId, destination: Destination, first: WalSeq, last: WalSeq) -> bool {
        let all = self.stretches.lock();
        let stretch = all.get(&(stream, destination)).and_then(|stretches| stretches.range(..=first).next_back());
        stretch.is_some_and(|(_, end)| *end >= last)
    }

    /// The WAL has nothing any more below this.
    pub fn forget_below(&self, oldest: WalSeq) {
        self.stretches.lock().retain(|_, stretches| {
            stretches.retain(|_, last| *last >= oldest);
            !stretches.is_empty()
        });
    }
}

/// The message of a record, and its name for life when that is not the record's own.
///
/// # Errors
/// [`MovedError`].
pub fn message_of(record: &WalRecord) -> Result<(Option<veena_contract::MessageId>, bytes::Bytes), MovedError> {
    match record.kind {
        RecordKind::Accept => Ok((None, record.body.clone())),
        RecordKind::Moved => Moved::decode(&record.body).map(|moved| (Some(moved.id), moved.body)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Destination = Destination { group: 1, partition: 0 };

    fn from(seq: u64) -> MovedFrom {
        MovedFrom { stream: StreamId(7), seq: WalSeq(seq), partition: 0 }
    }

    fn known(moved: &MovedRecords, of: impl Iterator<Item = u64>) -> Vec<u64> {
        of.filter(|seq| moved.has(StreamId(7), TO, WalSeq(*seq))).collect()
    }

    #[test]
    fn what_was_moved_one_behind_the_other_is_one_stretch_and_what_lies_between_others_was_not_moved() {
        let moved = MovedRecords::default();
        moved.add(1, from(3), None);
        moved.add(1, from(8), Some(WalSeq(3)));
        moved.add(1, from(9), Some(WalSeq(8)));
        moved.add(1, from(20), None);
        moved.add(1, from(22), Some(WalSeq(21)));
        assert_eq!(known(&moved, 0..30), [3, 4, 5, 6, 7, 8, 9, 20, 22], "of other destinations are those between");
        assert_eq!(moved.stretches.lock()[&(StreamId(7), TO)].len(), 3);
        assert!(!moved.has(StreamId(8), TO, WalSeq(3)) && !moved.has(StreamId(7), Destination { partition: 1, ..TO }, WalSeq(3)));
        moved.add(1, from(8), Some(WalSeq(3)));
        assert_eq!(known(&moved, 0..10), [3, 4, 5, 6, 7, 8, 9], "told twice");
        let gap = |first, end| WalGap { stream: StreamId(7), first: WalSeq(first), end: WalSeq(end), destination: Some(TO) };
        assert!(moved.has_gap(&gap(4, 10)) && !moved.has_gap(&gap(4, 11)) && !moved.has_gap(&gap(2, 4)));
        moved.forget_below(WalSeq(10));
        assert_eq!(known(&moved, 0..30), [20, 22]);
        moved.forget_below(WalSeq(30));
        assert!(moved.stretches.lock().is_empty());
    }
}
