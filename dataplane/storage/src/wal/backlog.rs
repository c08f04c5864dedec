//! Reading records of former opens, in bounded steps. Sealed segments are verified here, not at open.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::{ControlFlow, Range};

use bytes::Bytes;
use veena_contract::{StreamId, WalSeq, limits};

use super::append::Shared;
use super::format::{RECORD_ALIGN, RecordHeader, SEGMENT_HEADER_BYTES};
use super::replay::{FileSource, Found, Source, next_header, record_end, scan};
use super::segments::Segment;
use super::{Destination, RecordKind, Wal, WalIoError, WalRecord, failed};
use crate::disk::OpenMode;

/// A stretch of one stream in which records are damaged or gone, and none is intact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalGap {
    /// The stream.
    pub stream: StreamId,
    /// The first that is missing.
    pub first: WalSeq,
    /// The position behind the last that is missing.
    pub end: WalSeq,
    /// Where they were to go, of those that still tell. Told apart by this, gaps may overlap.
    pub destination: Option<Destination>,
}

/// A piece of the backlog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Intact records, in order.
    pub records: Vec<WalRecord>,
    /// Where to go on; the end that was asked for when there is no more.
    pub next: WalSeq,
    /// What is missing between `from` and `next`, in no order.
    pub gaps: Vec<WalGap>,
    /// Where records are missing without saying more, and of streams that the log no longer knows: they lie wholly below the checkpoint.
    pub lost_below: Vec<Range<WalSeq>>,
}

/// The backlog was not read.
#[derive(Debug, thiserror::Error)]
pub enum WalReadError {
    /// The file system failed; a repeat may succeed.
    #[error(transparent)]
    Io(#[from] WalIoError),
    /// A record is intact and of a kind this build does not know.
    #[error("record {seq} is of kind {kind}, which this version does not know")]
    UnknownKind {
        /// The record.
        seq: WalSeq,
        /// Its kind.
        kind: u8,
    },
}

/// Where a sequence stands, remembered from the last step.
#[derive(Clone, Copy)]
pub(super) struct Hint {
    seq: WalSeq,
    generation: u64,
    position: u64,
}

struct Reading<'a> {
    shared: &'a Shared,
    backlog: Backlog,
    bytes: usize,
    bytes_max: usize,
    unknown: Option<(WalSeq, u8)>,
}

/// Records that are missing in a segment, and the bytes between those before and behind them.
struct Hole {
    sequences: Range<WalSeq>,
    places: Range<u64>,
}

impl Wal {
    /// Reads records of `from..end`, about `bytes_max` bytes of bodies at most (at least one record if there is one). Blocks.
    ///
    /// # Errors
    /// [`WalReadError`]. Damage is not an error: it is told as gaps.
    pub fn read_backlog(&self, from: WalSeq, end: WalSeq, bytes_max: usize) -> Result<Backlog, WalReadError> {
        let shared = &*self.handle.shared;
        let end = end.min(shared.durable_end());
        let backlog = Backlog { next: from, ..Backlog::default() };
        let mut reading = Reading { shared, backlog, bytes: 0, bytes_max, unknown: None };
        while reading.backlog.next < end && reading.bytes < bytes_max {
            let Some((segment, limit)) = shared.segment_of(reading.backlog.next, end) else {
                reading.miss(end);
                break;
            };
            if segment.first > reading.backlog.next {
                reading.miss(segment.first.min(end));
                continue;
            }
            let outcome = reading.read_segment(&segment, limit);
            if !shared.has_segment(segment.generation) {
                // recycled meanwhile: whatever was read may be of its next use, and nobody needs it any more
                reading.backlog.records.retain(|record| record.seq >= limit || record.seq < segment.first);
                reading.backlog.gaps.retain(|gap| gap.first >= limit || gap.first < segment.first);
                reading.backlog.lost_below.retain(|range| range.start >= limit || range.start < segment.first);
                reading.backlog.next = limit;
                continue;
            }
            outcome?;
            if let Some((seq, kind)) = reading.unknown {
                if reading.backlog.records.is_empty() {
                    return Err(WalReadError::UnknownKind { seq, kind });
                }
                break;
            }
        }
        Ok(reading.backlog)
    }

    /// Below this the log holds nothing any more.
    #[must_use]
    pub fn oldest(&self) -> WalSeq {
        let log = self.handle.shared.log.lock();
        log.segments.front().map_or(log.next_seq, |segment| segment.first)
    }
}

impl Shared {
    /// The segment that holds `seq`, or the next one above it, and where it ends.
    fn segment_of(&self, seq: WalSeq, end: WalSeq) -> Option<(Segment, WalSeq)> {
        let log = self.log.lock();
        let above = log.segments.partition_point(|segment| segment.first <= seq);
        let at = above.saturating_sub(1);
        let segment = log.segments.get(at)?.clone();
        let limit = log.segments.get(at + 1).map_or(end, |next| next.first.min(end));
        Some((segment, limit))
    }

    fn has_segment(&self, generation: u64) -> bool {
        self.log.lock().segments.iter().any(|segment| segment.generation == generation)
    }

    fn hint_for(&self, seq: WalSeq, generation: u64) -> u64 {
        let hints = self.hints.lock();
        let hint = hints.iter().find(|hint| hint.seq == seq && hint.generation == generation);
        hint.map_or(SEGMENT_HEADER_BYTES as u64, |hint| hint.position)
    }

    fn remember(&self, hint: Hint) {
        let mut hints: parking_lot::MutexGuard<'_, VecDeque<Hint>> = self.hints.lock();
        hints.truncate(limits::WAL_READ_HINTS_MAX - 1);
        hints.push_front(hint);
    }

    /// May a record of this stream stand at this sequence?
    fn is_place_of(&self, head: &RecordHeader) -> bool {
        if head.seq >= self.opened_end {
            return head.stream == self.stream;
        }
        let known = self.former.iter().find(|stream| stream.first <= head.seq && head.seq < stream.end);
        known.is_none_or(|stream| stream.stream == head.stream)
    }
}

impl Reading<'_> {
    fn read_segment(&mut self, segment: &Segment, limit: WalSeq) -> Result<(), WalReadError> {
        let file = self.shared.disk.open(&segment.path, OpenMode::Read).map_err(failed(&segment.path, "open"))?;
        let mut source = FileSource::new(file).map_err(failed(&segment.path, "measure"))?;
        let from = self.shared.hint_for(self.backlog.next, segment.generation);
        let mut holes = Vec::new();
        let mut behind = from;
        let mut is_cut_short = false;
        let outcome = scan(&mut source, segment.generation, from, &mut |found| {
            let Found::Record { at, end, head, body } = found else { return ControlFlow::Continue(()) };
            if head.seq >= limit {
                return ControlFlow::Break(());
            }
            if head.seq < self.backlog.next {
                behind = end;
                return ControlFlow::Continue(());
            }
            if !self.shared.is_place_of(&head) {
                return ControlFlow::Continue(());
            }
            let Some(kind) = RecordKind::from_code(head.kind) else {
                self.unknown = Some((head.seq, head.kind));
                is_cut_short = true;
                return ControlFlow::Break(());
            };
            if head.seq > self.backlog.next {
                holes.push(Hole { sequences: self.backlog.next..head.seq, places: behind..at });
            }
            behind = end;
            let (seq, stream, destination) = (head.seq, head.stream, head.destination);
            self.backlog.records.push(WalRecord { seq, stream, kind, destination, body: Bytes::copy_from_slice(body) });
            self.backlog.next = head.seq.next();
            self.bytes += body.len();
            if self.backlog.next >= limit {
                return ControlFlow::Break(());
            }
            if self.bytes >= self.bytes_max {
                is_cut_short = true;
                self.shared.remember(Hint { seq: self.backlog.next, generation: segment.generation, position: end });
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        outcome.map_err(failed(&segment.path, "read"))?;
        if !is_cut_short && self.backlog.next < limit {
            holes.push(Hole { sequences: self.backlog.next..limit, places: behind..source.len() });
            self.backlog.next = limit;
        }
        for hole in holes {
            self.look_into(&mut source, segment.generation, hole).map_err(failed(&segment.path, "read"))?;
        }
        Ok(())
    }

    /// Tells what is missing in a hole: records whose headers are intact by their destinations, everything else by its stream alone.
    fn look_into(&mut self, source: &mut FileSource, generation: u64, hole: Hole) -> io::Result<()> {
        let mut known: BTreeMap<(StreamId, Destination), Range<WalSeq>> = BTreeMap::new();
        let mut unknown: Option<Range<WalSeq>> = None;
        let mut lose = |range: Range<WalSeq>| {
            if !range.is_empty() {
                unknown = Some(unknown.as_ref().map_or(range.start, |unknown| unknown.start)..range.end);
            }
        };
        let mut next = hole.sequences.start;
        let mut at = hole.places.start;
        while let Some((place, head)) = next_header(source, generation, at)?.filter(|(place, _)| *place < hole.places.end) {
            at = record_end(source.len(), place, head.body_len).unwrap_or(place + RECORD_ALIGN as u64);
            if head.seq < next || head.seq >= hole.sequences.end || !self.shared.is_place_of(&head) {
                continue;
            }
            lose(next..head.seq);
            next = head.seq.next();
            known.entry((head.stream, head.destination)).or_insert(head.seq..next).end = next;
        }
        lose(next..hole.sequences.end);
        let known = known.into_iter();
        self.backlog.gaps.extend(known.map(|((stream, destination), Range { start: first, end })| WalGap {
            stream,
            first,
            end,
            destination: Some(destination),
        }));
        unknown.into_iter().for_each(|range| self.lose(range));
        Ok(())
    }

    /// Whatever stands between `next` and `to` is missing.
    fn miss(&mut self, to: WalSeq) {
        self.lose(self.backlog.next..to);
        self.backlog.next = to.max(self.backlog.next);
    }

    /// One gap per stream concerned.
    fn lose(&mut self, Range { start: from, end: to }: Range<WalSeq>) {
        let own = (self.shared.stream, self.shared.opened_end, WalSeq(u64::MAX));
        let known_from = self.shared.former.first().map_or(self.shared.opened_end, |stream| stream.first);
        if from < known_from {
            self.backlog.lost_below.push(from..to.min(known_from));
        }
        let former = self.shared.former.iter().map(|stream| (stream.stream, stream.first, stream.end));
        for (stream, first, end) in former.chain([own]) {
            let (first, end) = (first.max(from), end.min(to));
            if first < end {
                self.backlog.gaps.push(WalGap { stream, first, end, destination: None });
            }
        }
    }
}
