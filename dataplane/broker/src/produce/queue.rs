//! The queue of one destination: what waits in memory and in files, in which order it is sent, and what of it is in the way. No I/O.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use veena_contract::{OwnershipEpoch, StreamId, WalSeq, limits};
use veena_storage::wal::WalRecord;
use veena_storage::wal::parked::ParkedFile;

use crate::produce::backlog::is_lost;
use crate::produce::mend::Place;
use crate::produce::park::Stuck;
use crate::produce::parked::{DoneFile, ParkedQueue};
use crate::streams::SenderWindow;

/// A destination under load is sent to at most this often, so that records share frames, syncs and checks; one that was quiet is sent to at
/// once.
const PACE: Duration = Duration::from_millis(1);
/// A destination with this many records waiting is not paced.
const PACED_RECORDS_MAX: usize = limits::DISPATCH_PACED_RECORDS_MAX;
/// How long a destination waits for records of a former life that are still being read.
const FORMER_PAUSE: Duration = Duration::from_millis(10);
const BACKOFF_MS_MIN: u64 = 50;
const BACKOFF_MS_MAX: u64 = 1000;

/// Records accepted on this node for one partition and not yet committed there, oldest first.
#[derive(Default)]
pub struct DestinationQueue {
    /// Set aside in files: they go before all others.
    pub parked: ParkedQueue,
    /// Of former lives of the node: they go first, so that no later record of a key overtakes an earlier one.
    pub(super) former: VecDeque<WalRecord>,
    /// Of this life.
    pub(super) records: VecDeque<WalRecord>,
    bytes: usize,
    /// Somebody dispatches it.
    pub(super) is_running: bool,
    last_sent: Option<Instant>,
    pub(super) windows: BTreeMap<StreamId, SenderWindow>,
    /// The ownership under which the windows were opened.
    epoch: OwnershipEpoch,
    /// Passes that failed since something was committed.
    failed_passes: u32,
    /// Since when a pass is under way.
    pub(super) pass_began: Option<Instant>,
    /// Rises whenever something leaves because it is committed, or the topic is gone.
    departures: u64,
}

/// What a destination does next.
pub(super) enum Next {
    /// These records, of one stream.
    Send(Vec<WalRecord>),
    /// Reads a piece of a file.
    Load(Arc<ParkedFile>, Place),
    /// Gives up a file that is done.
    Discard(DoneFile),
    /// Nothing yet.
    Wait(Duration),
}

impl DestinationQueue {
    /// Is nothing queued, and nothing under way?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.has_nothing() && !self.is_running
    }

    pub(super) fn push(&mut self, record: WalRecord, is_former: bool) {
        self.bytes += record.body.len();
        if is_former {
            self.former.push_back(record);
        } else {
            self.records.push_back(record);
        }
    }

    /// Bytes of bodies that wait, in memory and in files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64 + self.parked.bytes()
    }

    /// How many records wait, in memory and in files.
    #[must_use]
    pub fn len(&self) -> usize {
        self.former.len() + self.records.len() + self.parked.len()
    }

    pub(super) fn has_nothing(&self) -> bool {
        self.former.is_empty() && self.records.is_empty() && self.parked.is_empty()
    }

    /// The oldest record that only the WAL keeps and that is not known to be committed.
    #[must_use]
    pub fn front(&self) -> Option<WalSeq> {
        let oldest = |records: &VecDeque<WalRecord>| records.front().map(|record| record.seq);
        [oldest(&self.former), oldest(&self.records)].into_iter().flatten().min()
    }

    /// Takes everything out of memory (the topic is gone). What is in files is taken out by itself.
    pub fn drain(&mut self) -> Vec<WalRecord> {
        self.bytes = 0;
        self.departures += 1;
        self.windows.clear();
        self.former.drain(..).chain(self.records.drain(..)).collect()
    }

    /// What of the queue could be set aside, if the destination has not moved for long.
    pub fn stuck(&self, now: Instant) -> Option<Stuck> {
        let hangs = self.pass_began.is_some_and(|began| now - began > Duration::from_millis(limits::PARK_AFTER_MS));
        let is_stuck = hangs || self.failed_passes >= limits::PARK_AFTER_PASSES;
        let front = self.front().filter(|_| is_stuck)?;
        Some(Stuck { front, bytes: self.bytes })
    }

    /// How often something has left: as long as this stays, everything in memory stays too.
    pub fn departures(&self) -> u64 {
        self.departures
    }

    /// Records in memory behind `after` and below `end`, about `bytes_max` bytes of them, in order.
    pub fn records_behind(&self, after: Option<WalSeq>, end: WalSeq, bytes_max: usize) -> Vec<WalRecord> {
        let mut bytes = 0;
        let behind = |records: &VecDeque<WalRecord>| records.partition_point(|record| Some(record.seq) <= after);
        let former = self.former.range(behind(&self.former)..);
        let all = former.chain(self.records.range(behind(&self.records)..));
        let fits = |record: &&WalRecord| {
            let has_room = bytes < bytes_max;
            bytes += record.body.len();
            has_room && record.seq < end
        };
        all.take_while(fits).cloned().collect()
    }

    /// Everything up to `last` is in files now: it leaves memory. Answers the bytes that left, and how many of them were of former lives.
    pub fn drop_parked(&mut self, last: WalSeq) -> (usize, usize) {
        let take = |records: &mut VecDeque<WalRecord>| -> usize {
            let count = records.partition_point(|record| record.seq <= last);
            records.drain(..count).map(|record| record.body.len()).sum()
        };
        let former = take(&mut self.former);
        let bytes = former + take(&mut self.records);
        self.bytes -= bytes;
        (bytes, former)
    }

    /// What to send now, or how long to wait for company first.
    pub(super) fn next(&mut self, now: Instant, may_former_come: bool) -> Next {
        if let Some(done) = self.parked.take_done() {
            return Next::Discard(done);
        }
        if let Some((file, from)) = self.parked.next_piece() {
            return Next::Load(file, from);
        }
        if self.parked.loaded().next().is_some() {
            return Next::Send(head(self.parked.loaded()));
        }
        if self.former.is_empty() && may_former_come {
            return Next::Wait(FORMER_PAUSE);
        }
        let due = self.last_sent.map_or(now, |last| last + PACE);
        if self.records.len() < PACED_RECORDS_MAX && due > now {
            return Next::Wait(due - now);
        }
        self.last_sent = Some(now);
        Next::Send(head(if self.former.is_empty() { self.records.iter() } else { self.former.iter() }))
    }

    /// The partition is owned since this change. A new owner is asked where each stream stands.
    pub(super) fn note_epoch(&mut self, epoch: OwnershipEpoch) {
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.windows.values_mut().for_each(SenderWindow::on_lost);
        }
    }

    /// Everything of `stream` up to `through` is committed.
    pub(super) fn settle(&mut self, stream: StreamId, through: u64) -> Settled {
        let mut count = 0;
        let mut take = |records: &mut VecDeque<WalRecord>| {
            let mut bytes = 0;
            while let Some(record) = records.pop_front_if(|record| record.stream == stream && record.seq.0 <= through) {
                count += 1;
                bytes += record.body.len();
            }
            bytes
        };
        let former_bytes = take(&mut self.former);
        let queued = former_bytes + take(&mut self.records);
        self.bytes -= queued;
        let (loaded, loaded_bytes) = self.parked.settle(stream, through);
        let has_moved = count + loaded > 0;
        if has_moved {
            self.departures += 1;
            self.failed_passes = 0;
        }
        Settled { has_moved, bytes: queued + loaded_bytes, former_bytes }
    }

    /// A pass has failed. Answers how long to wait before the next, and how many bytes of files are no longer loaded.
    pub(super) fn on_failed_pass(&mut self) -> (Duration, usize) {
        let doublings = self.failed_passes.min(BACKOFF_MS_MAX.ilog2());
        self.failed_passes = self.failed_passes.saturating_add(1);
        (Duration::from_millis((BACKOFF_MS_MIN << doublings).min(BACKOFF_MS_MAX)), self.parked.unload())
    }
}

/// What left a queue.
pub(super) struct Settled {
    pub has_moved: bool,
    pub bytes: usize,
    /// Of them, those queued as records of former lives.
    pub former_bytes: usize,
}

/// Records of one stream from the front, as many as one commit takes, or what stands for lost ones, alone. Bodies are shared, not copied.
fn head<'a>(records: impl Iterator<Item = &'a WalRecord>) -> Vec<WalRecord> {
    let mut bytes = 0;
    let mut records = records.take(limits::COMMIT_RECORDS_MAX).peekable();
    let Some((stream, first)) = records.peek().map(|first| (first.stream, first.seq)) else {
        return Vec::new();
    };
    if let Some(lost) = records.next_if(|first| is_lost(first)) {
        return vec![lost.clone()];
    }
    let fits = |record: &&WalRecord| {
        bytes += record.body.len();
        record.stream == stream && !is_lost(record) && (bytes <= limits::COMMIT_BYTES_MAX || record.seq == first)
    };
    records.take_while(fits).cloned().collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use veena_storage::wal::{Destination, RecordKind};

    use super::*;

    fn record(stream: u128, seq: u64) -> WalRecord {
        let destination = Destination { group: 1, partition: 0 };
        WalRecord { seq: WalSeq(seq), stream: StreamId(stream), kind: RecordKind::Accept, destination, body: Bytes::from_static(b"x") }
    }

    #[test]
    fn the_oldest_record_bounds_the_checkpoint_wherever_it_stands() {
        let mut queue = DestinationQueue::default();
        for (stream, seq) in [(2, 100), (1, 50), (1, 51), (2, 101)] {
            queue.push(record(stream, seq), stream == 1);
        }
        assert_eq!(queue.front(), Some(WalSeq(50)), "a record of a former life came after a newer one");
        assert_eq!(head(queue.former.iter()).iter().map(|record| record.seq.0).collect::<Vec<_>>(), [50, 51], "and goes first");
        queue.settle(StreamId(2), 100);
        assert_eq!(queue.front(), Some(WalSeq(50)));
        queue.settle(StreamId(1), 51);
        assert_eq!(queue.front(), Some(WalSeq(101)));
        queue.settle(StreamId(2), 101);
        assert!(queue.is_empty());
        queue.push(record(2, 102), false);
        assert!(matches!(queue.next(Instant::now(), true), Next::Wait(_)), "records of a former life may still come");
        assert!(matches!(queue.next(Instant::now(), false), Next::Send(_)));
    }
}
