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
/// The same for an owner on another node: each of its commits costs a call besides.
const PACE_ELSEWHERE: Duration = Duration::from_millis(4);
/// A destination with this many records waiting is not paced.
const PACED_RECORDS_MAX: usize = limits::DISPATCH_PACED_RECORDS_MAX;
/// How long a destination waits for records of a former life that are still being read.
const FORMER_PAUSE: Duration = Duration::from_millis(10);
/// How often a destination that is held looks whether its topic is gone.
const HELD_PAUSE: Duration = Duration::from_secs(1);
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
    /// The owner is another node.
    is_elsewhere: bool,
    /// Passes that failed since something was committed.
    failed_passes: u32,
    /// Since when a pass is under way.
    pub(super) pass_began: Option<Instant>,
    /// Is something taken out of memory that its owner does not have?
    taking: Taking,
    /// What is in memory may be in a file too, where a next life finds it.
    may_be_filed: bool,
    /// The last record that was moved, if nothing has left since.
    last_moved: Option<WalSeq>,
    /// Rises whenever something leaves because it is committed, or the topic is gone.
    departures: u64,
}

/// Who takes records out of memory without their owner having them. One at a time: what is moved is in no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Taking {
    /// Nobody.
    #[default]
    Nothing,
    /// They are written into a file.
    Parking,
    /// They are accepted anew for another destination.
    Moving,
    /// It is unknown whether they were: until a restart nothing is sent.
    Held,
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
        self.last_moved = None;
        self.windows.clear();
        self.former.drain(..).chain(self.records.drain(..)).collect()
    }

    /// What of the queue could be set aside, if the destination has not moved for long.
    pub fn stuck(&self, now: Instant) -> Option<Stuck> {
        let hangs = self.pass_began.is_some_and(|began| now - began > Duration::from_millis(limits::PARK_AFTER_MS));
        let is_stuck = hangs || self.failed_passes >= limits::PARK_AFTER_PASSES;
        let front = self.front().filter(|_| is_stuck && self.taking == Taking::Nothing)?;
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
        self.last_moved = None;
        self.bytes -= bytes;
        (bytes, former)
    }

    /// What to send now, or how long to wait for company first.
    pub(super) fn next(&mut self, now: Instant, may_former_come: bool, is_moved_known: bool) -> Next {
        if self.taking == Taking::Held {
            return Next::Wait(HELD_PAUSE);
        }
        if !is_moved_known && !self.parked.is_empty() {
            return Next::Wait(FORMER_PAUSE);
        }
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
        let pace = if self.is_elsewhere { PACE_ELSEWHERE } else { PACE };
        let due = self.last_sent.map_or(now, |last| last + pace);
        if self.records.len() < PACED_RECORDS_MAX && due > now {
            return Next::Wait(due - now);
        }
        self.last_sent = Some(now);
        Next::Send(head(if self.former.is_empty() { self.records.iter() } else { self.former.iter() }))
    }

    /// The partition is owned since this change, here or on another node. A new owner is asked where each stream stands.
    pub(super) fn note_owner(&mut self, epoch: OwnershipEpoch, is_elsewhere: bool) {
        self.is_elsewhere = is_elsewhere;
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
            self.last_moved = None;
        }
        Settled { has_moved, bytes: queued + loaded_bytes, former_bytes }
    }

    /// How many passes failed since something was committed.
    pub(super) fn failed_passes(&self) -> u32 {
        self.failed_passes
    }

    /// Does the owner take this stream, as far as is known? Then it need not be asked first.
    pub(super) fn is_taken(&self, stream: StreamId) -> bool {
        let is_open = |window: &SenderWindow| !window.needs_open() && window.stopped().is_none();
        self.failed_passes == 0 && self.windows.get(&stream).is_some_and(is_open)
    }

    /// Somebody is about to write what is in memory into a file; says whether he may.
    pub(super) fn begin_park(&mut self) -> bool {
        let may = self.taking == Taking::Nothing;
        if may {
            self.taking = Taking::Parking;
        }
        may
    }

    /// He is done.
    pub(super) fn end_park(&mut self) {
        self.taking = Taking::Nothing;
    }

    /// A file that should be gone is not.
    pub(super) fn keep_from_moving(&mut self) {
        self.may_be_filed = true;
    }

    /// Where those of this life's records begin of which no attempt can have had an effect. Of earlier lives nobody knows that.
    fn movable_from(&self, stream: StreamId) -> usize {
        let window = self.windows.get(&stream);
        self.records.partition_point(|record| window.is_some_and(|window| !window.may_move(record.seq.0)))
    }

    /// Is there something that may be accepted anew for another destination?
    pub(super) fn has_movable(&self, stream: StreamId) -> bool {
        self.taking == Taking::Nothing && !self.may_be_filed && self.movable_from(stream) < self.records.len()
    }

    /// Takes hold of the oldest records that may be moved, about `bytes_max` bytes of them, and says which record before the first was moved
    /// too, if none is between. They stay until it is known what became of them.
    pub(super) fn begin_move(&mut self, stream: StreamId, bytes_max: usize) -> Option<(Vec<WalRecord>, Option<WalSeq>)> {
        if !self.has_movable(stream) {
            return None;
        }
        let from = self.movable_from(stream);
        let mut bytes = 0;
        let fits = |record: &&WalRecord| {
            let has_room = bytes < bytes_max;
            bytes += record.body.len();
            has_room
        };
        let records: Vec<_> = self.records.range(from..).take(limits::COMMIT_RECORDS_MAX).take_while(fits).cloned().collect();
        let before = from.checked_sub(1).map(|before| self.records[before].seq);
        self.taking = Taking::Moving;
        Some((records, self.last_moved.filter(|last| before.is_none_or(|before| before < *last))))
    }

    /// They were not moved.
    pub(super) fn end_move(&mut self) {
        self.taking = Taking::Nothing;
    }

    /// Perhaps they were.
    pub(super) fn hold(&mut self) {
        self.taking = Taking::Held;
    }

    /// They were: they leave. Answers their bytes.
    pub(super) fn take_moved(&mut self, moved: &[WalRecord]) -> usize {
        self.taking = Taking::Nothing;
        let Some((first, last)) = moved.first().zip(moved.last()) else { return 0 };
        let from = self.records.partition_point(|record| record.seq < first.seq);
        let end = self.records.partition_point(|record| record.seq <= last.seq);
        let bytes = self.records.drain(from..end).map(|record| record.body.len()).sum();
        self.bytes -= bytes;
        self.departures += 1;
        self.last_moved = Some(last.seq);
        bytes
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
    fn what_is_written_into_a_file_is_not_moved_and_what_is_moved_is_not_written_into_a_file() {
        let mut queue = DestinationQueue::default();
        (10..14).for_each(|seq| queue.push(record(2, seq), false));
        (0..limits::PARK_AFTER_PASSES).for_each(|_| assert!(queue.on_failed_pass().0 > Duration::ZERO));
        assert!(queue.begin_park() && !queue.has_movable(StreamId(2)) && queue.begin_move(StreamId(2), 9).is_none());
        queue.end_park();
        assert!(queue.stuck(Instant::now()).is_some());
        let departures = queue.departures();
        let (moved, behind) = queue.begin_move(StreamId(2), 2).expect("never sent");
        assert_eq!((moved.iter().map(|record| record.seq.0).collect::<Vec<_>>(), behind), (vec![10, 11], None));
        assert!(queue.stuck(Instant::now()).is_none() && !queue.begin_park(), "while it is open what becomes of them");
        assert_eq!((queue.take_moved(&moved), queue.front(), queue.bytes()), (2, Some(WalSeq(12)), 2));
        assert!(queue.departures() > departures, "a file that was begun before is given up");
        let (moved, behind) = queue.begin_move(StreamId(2), 1).expect("never sent");
        assert_eq!((moved.len(), behind), (1, Some(WalSeq(11))), "nothing lies between");
        queue.end_move();
        queue.settle(StreamId(2), 12);
        assert_eq!(queue.begin_move(StreamId(2), 1).expect("never sent").1, None, "12 does");
        queue.hold();
        assert!(matches!(queue.next(Instant::now(), false, true), Next::Wait(_)) && !queue.begin_park(), "nobody knows");
        let mut queue = DestinationQueue::default();
        queue.push(record(2, 10), false);
        queue.keep_from_moving();
        assert!(!queue.has_movable(StreamId(2)), "it may be in a file");
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
        assert!(matches!(queue.next(Instant::now(), true, true), Next::Wait(_)), "records of a former life may still come");
        assert!(matches!(queue.next(Instant::now(), false, true), Next::Send(_)));
    }

    #[test]
    fn a_destination_under_load_is_sent_to_less_often_on_another_node() {
        let mut queue = DestinationQueue::default();
        (0..3).for_each(|seq| queue.push(record(2, seq), false));
        let pause = |queue: &mut DestinationQueue, now| match queue.next(now, false, true) {
            Next::Wait(pause) => pause,
            Next::Send(_) => Duration::ZERO,
            _ => panic!("there is no file"),
        };
        let now = Instant::now();
        assert_eq!(pause(&mut queue, now), Duration::ZERO, "it was quiet");
        assert_eq!(pause(&mut queue, now), PACE);
        queue.note_owner(OwnershipEpoch::default(), true);
        assert_eq!(pause(&mut queue, now), PACE_ELSEWHERE);
        (3..PACED_RECORDS_MAX as u64).for_each(|seq| queue.push(record(2, seq), false));
        assert_eq!(pause(&mut queue, now), Duration::ZERO, "enough for a commit of its own");
    }
}
