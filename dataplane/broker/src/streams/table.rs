//! The owner's side: what each stream has brought into one partition log.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use veena_contract::{Confirmed, LogId, StreamId, StreamsEnded, limits};

use super::{Mark, Marks, Origin, Prev, StreamKey};

/// How many streams one log keeps marks of; over it, an unknown stream is refused until others are finished.
pub const STREAMS_PER_LOG_MAX: usize = limits::STREAMS_PER_LOG_MAX;

/// One commit as offered by a sender.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Which stream.
    pub key: StreamKey,
    /// Where the stream comes from, and which of its kind are still alive.
    pub origin: Origin,
    /// The log the sender believes it is talking to.
    pub log_id: LogId,
    /// What the records follow.
    pub prev: Prev,
    /// The records' sequences, strictly rising, above `prev`.
    pub sequences: &'a [u64],
    /// The position after the commit; at or above the last sequence. Above it, the rest is an advance without a record.
    pub last: u64,
    /// Hash of the record whose sequence is `last`; 0 when `last` names no record.
    pub last_hash: u32,
}

/// What the owner does with an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Append all records but the first `skip`, which the log holds already. With none left it is an advance: a frame without records.
    Append {
        /// How many leading records the log holds.
        skip: usize,
        /// The stream's position before this append.
        after: Prev,
    },
    /// The log holds everything. Answer only once [`StreamTable::is_committed`] says so for the offer's `last`.
    Known,
    /// Nothing is appended, now or because of this offer later.
    Refuse(Refusal),
}

/// Why an offer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The offer names another log.
    OtherLog,
    /// `prev` is above everything this log has of the stream.
    PrevAhead,
    /// The stream is unknown and `prev` is not its beginning.
    UnknownStream,
    /// The source has said that this stream is finished.
    Finished,
    /// The log's record at `last` is another one.
    Forked,
    /// Too many streams.
    TableFull,
    /// Sequences do not rise, or do not fit `prev` and `last`.
    Malformed,
}

impl Cause {
    /// Every cause. Only grows.
    pub const ALL: [Self; 7] =
        [Self::OtherLog, Self::PrevAhead, Self::UnknownStream, Self::Finished, Self::Forked, Self::TableFull, Self::Malformed];

    /// Its number between nodes; never used again for another.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::OtherLog => 1,
            Self::PrevAhead => 2,
            Self::UnknownStream => 3,
            Self::Finished => 4,
            Self::Forked => 5,
            Self::TableFull => 6,
            Self::Malformed => 7,
        }
    }

    /// The cause of a number; `None` if only newer nodes know it.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.number() == number)
    }
}

/// A refusal, with what the owner knows of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Refusal {
    /// Why.
    pub cause: Cause,
    /// What an `open` would have answered.
    pub standing: Standing,
}

/// What a log knows of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Standing {
    /// This log.
    pub log_id: LogId,
    /// The last sequence written, synced or not.
    pub appended: Option<u64>,
    /// The last sequence below the high watermark.
    pub committed: Option<u64>,
    /// Hash of the record at `committed`; 0 when there is none, or the position is an advance without a record.
    pub hash: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Point {
    last: u64,
    hash: u32,
    origin: Origin,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Entry {
    committed: Option<Point>,
    /// Appended and not committed, oldest first.
    pending: VecDeque<Point>,
}

impl Entry {
    fn newest(&self) -> Option<&Point> {
        self.pending.back().or(self.committed.as_ref())
    }

    fn appended(&self) -> Option<u64> {
        self.newest().map(|point| point.last)
    }

    /// Is it the stream of an attachment? Those of a WAL carry its id.
    fn is_attached(&self) -> bool {
        self.newest().is_some_and(|point| point.origin.id == 0)
    }
}

/// The stream table of one partition log. Every change of the log is told to it, in the log's order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamTable {
    log_id: LogId,
    entries: BTreeMap<StreamKey, Entry>,
    /// Streams with something pending.
    unsettled: BTreeSet<StreamKey>,
    /// Per origin the oldest living stream, as committed.
    floors: BTreeMap<u64, u32>,
}

impl StreamTable {
    /// The table of a log whose verified records and snapshots give these marks.
    #[must_use]
    pub fn from_marks(log_id: LogId, marks: Marks) -> Self {
        let mut table = Self { log_id, entries: BTreeMap::new(), unsettled: BTreeSet::new(), floors: BTreeMap::new() };
        for (key, Mark { committed, hash, origin }) in marks {
            let point = Point { last: committed, hash, origin };
            table.entries.insert(key, Entry { committed: Some(point), pending: VecDeque::new() });
            raise_floor(&mut table.floors, origin);
        }
        table.retire();
        table
    }

    /// The log this is the table of.
    #[must_use]
    pub fn log_id(&self) -> LogId {
        self.log_id
    }

    /// How many streams have marks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Has no stream a mark?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Answers an `open`.
    #[must_use]
    pub fn open(&self, key: &StreamKey) -> Standing {
        let entry = self.entries.get(key);
        let committed = entry.and_then(|entry| entry.committed);
        Standing {
            log_id: self.log_id,
            appended: entry.and_then(Entry::appended),
            committed: committed.map(|point| point.last),
            hash: committed.map_or(0, |point| point.hash),
        }
    }

    /// Judges an offer; changes nothing.
    #[must_use]
    pub fn judge(&self, offer: &Offer<'_>) -> Verdict {
        let refuse = |cause| Verdict::Refuse(Refusal { cause, standing: self.open(&offer.key) });
        if offer.log_id != self.log_id {
            return refuse(Cause::OtherLog);
        }
        if !is_well_formed(offer) {
            return refuse(Cause::Malformed);
        }
        if self.is_finished(offer.origin) {
            return refuse(Cause::Finished);
        }
        let entry = self.entries.get(&offer.key);
        let Some(appended) = entry.and_then(Entry::appended) else {
            return match offer.prev {
                Prev::Seq(_) => refuse(Cause::UnknownStream),
                Prev::Begin if self.entries.len() >= STREAMS_PER_LOG_MAX => refuse(Cause::TableFull),
                Prev::Begin => Verdict::Append { skip: 0, after: Prev::Begin },
            };
        };
        if offer.prev.mark().is_some_and(|prev| prev > appended) {
            return refuse(Cause::PrevAhead);
        }
        if offer.last > appended {
            let skip = offer.sequences.partition_point(|sequence| *sequence <= appended);
            return Verdict::Append { skip, after: Prev::Seq(appended) };
        }
        let newest = entry.and_then(Entry::newest).map_or(0, |point| point.hash);
        if offer.last == appended && offer.last_hash != 0 && newest != 0 && offer.last_hash != newest {
            return refuse(Cause::Forked);
        }
        Verdict::Known
    }

    /// Is everything of this stream up to `last` below the high watermark?
    #[must_use]
    pub fn is_committed(&self, key: &StreamKey, last: u64) -> bool {
        self.entries.get(key).and_then(|entry| entry.committed).is_some_and(|point| point.last >= last)
    }

    /// An offer judged [`Verdict::Append`] has been written; not synced.
    pub fn on_appended(&mut self, key: StreamKey, origin: Origin, last: u64, hash: u32) {
        let entry = self.entries.entry(key).or_default();
        debug_assert!(entry.appended().is_none_or(|appended| appended < last), "a stream's position only rises");
        entry.pending.push_back(Point { last, hash, origin });
        self.unsettled.insert(key);
    }

    /// What this stream appended up to `up_to` is below the high watermark now.
    pub fn on_committed(&mut self, key: &StreamKey, up_to: u64) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let mut newest = None;
        while entry.pending.front().is_some_and(|point| point.last <= up_to) {
            newest = entry.pending.pop_front();
        }
        if entry.pending.is_empty() {
            self.unsettled.remove(key);
        }
        let Some(point) = newest else { return };
        entry.committed = Some(point);
        if raise_floor(&mut self.floors, point.origin) {
            self.retire();
        }
    }

    /// Everything appended is below the high watermark now.
    pub fn on_all_committed(&mut self) {
        for key in std::mem::take(&mut self.unsettled) {
            self.on_committed(&key, u64::MAX);
        }
    }

    /// A sync failed and the log gave up its tail: what was appended and not committed is not in the log.
    ///
    /// When the tail is kept (rewritten into a new segment) build a new table from the log instead: rolled back marks beside kept records
    /// would let every one of them in twice.
    pub fn rollback(&mut self) {
        for key in std::mem::take(&mut self.unsettled) {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.pending.clear();
            if entry.committed.is_none() {
                self.entries.remove(&key);
            }
        }
    }

    /// The committed marks, for a snapshot of the table.
    #[must_use]
    pub fn committed_marks(&self) -> Marks {
        let mark = |point: &Point| Mark { committed: point.last, hash: point.hash, origin: point.origin };
        self.entries.iter().filter_map(|(key, entry)| Some((*key, mark(entry.committed.as_ref()?)))).collect()
    }

    /// The streams of attachments.
    #[must_use]
    pub fn attached(&self) -> BTreeSet<StreamId> {
        self.entries.iter().filter(|(_, entry)| entry.is_attached()).map(|(key, _)| key.stream).collect()
    }

    /// Forgets streams of attachments that have ended; one with something appended and not committed stays for another time.
    ///
    /// The log's next snapshot of the table is the first without them: a log that is opened anew before that has them again. Their senders
    /// must be at rest: a late offer of a stream that was forgotten comes in as that of a new one.
    pub fn forget(&mut self, why: &Confirmed<StreamsEnded>) {
        for stream in why.fact().streams.iter().copied() {
            let of_stream = StreamKey { stream, source: 0 }..=StreamKey { stream, source: u32::MAX };
            self.entries.extract_if(of_stream, |_, entry| entry.is_attached() && entry.pending.is_empty()).for_each(drop);
        }
    }

    /// Has the source said, in a committed record, that streams as old as this one are finished? A late offer of one must not come in as new.
    fn is_finished(&self, origin: Origin) -> bool {
        self.floors.get(&origin.id).is_some_and(|floor| origin.ordinal < *floor)
    }

    /// Forgets finished streams. The entry that raised the floor stays, and with it the floor, also over a restart.
    fn retire(&mut self) {
        let floors = &self.floors;
        self.entries.retain(|_, entry| {
            let Some(point) = entry.committed else { return true };
            !entry.pending.is_empty() || floors.get(&point.origin.id).is_none_or(|floor| point.origin.ordinal >= *floor)
        });
    }
}

fn is_well_formed(offer: &Offer<'_>) -> bool {
    let rises = offer.sequences.is_sorted_by(|a, b| a < b);
    let above_prev = offer.prev.mark().is_none_or(|prev| offer.last >= prev && offer.sequences.first().is_none_or(|first| *first > prev));
    rises && above_prev && offer.sequences.last().is_none_or(|last| *last <= offer.last)
}

/// Remembers the floor a commit carried; origin 0 has none. Says whether it rose.
fn raise_floor(floors: &mut BTreeMap<u64, u32>, origin: Origin) -> bool {
    // A floor above the stream that carries it would retire its own bearer: such a floor is not believed.
    if origin.id == 0 || origin.floor > origin.ordinal {
        return false;
    }
    let floor = floors.entry(origin.id).or_default();
    let rose = origin.floor > *floor;
    *floor = origin.floor.max(*floor);
    rose
}

#[cfg(test)]
mod tests;
