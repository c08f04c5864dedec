//! The owner of one partition log, with the real stream table inside.

use std::collections::BTreeSet;

use veena_broker::streams::{Mark, Marks, Offer, Origin, Prev, Standing, StreamKey, StreamTable, Verdict};
use veena_contract::{LogId, StreamId};

use super::Rule;
use super::world::{Answer, Commit};

/// The one stream of the model.
pub const KEY: StreamKey = StreamKey { stream: StreamId(1), source: 0 };
const ORIGIN: Origin = Origin { id: 1, ordinal: 1, floor: 1 };

/// What a log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// A record: its sequence, and which message it is.
    Record { sequence: u64, id: u64 },
    /// A declared gap: sequences above `after` up to `through` are lost.
    Gap { after: u64, through: u64 },
}

impl Entry {
    pub fn end(self) -> u64 {
        match self {
            Self::Record { sequence, .. } => sequence,
            Self::Gap { through, .. } => through,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Waiting {
    last: u64,
    ids: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub log: Vec<Entry>,
    /// Entries below the high watermark.
    pub synced: usize,
    table: StreamTable,
    /// Commits that will be answered after a sync, in order of arrival.
    waiting: Vec<Waiting>,
    /// Messages that were answered as committed; none of them may be lost.
    pub answered: BTreeSet<u64>,
    /// The highest sequence seen, for the planted high-water rule.
    seen: u64,
}

impl Owner {
    pub fn new(log_id: LogId) -> Self {
        let table = StreamTable::from_marks(log_id, Marks::new());
        Self { log: Vec::new(), synced: 0, table, waiting: Vec::new(), answered: BTreeSet::new(), seen: 0 }
    }

    pub fn standing(&self) -> Standing {
        self.table.open(&KEY)
    }

    pub fn unsynced(&self) -> usize {
        self.log.len() - self.synced
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A commit arrives; `is_awaited` when its sender still waits for the answer. Gives the answer that can be given at once.
    pub fn on_commit(&mut self, rule: Rule, commit: &Commit, is_awaited: bool) -> Option<Answer> {
        let sequences: Vec<u64> = commit.records.iter().map(|(sequence, _)| *sequence).collect();
        let last_hash = commit.records.last().filter(|(sequence, _)| *sequence == commit.last).map_or(0, |(_, id)| hash(*id));
        let offer = Offer {
            key: KEY,
            origin: ORIGIN,
            log_id: commit.log_id,
            prev: commit.prev,
            sequences: &sequences,
            last: commit.last,
            last_hash,
        };
        let verdict = match rule {
            Rule::HighWaterDedup => {
                let skip = sequences.partition_point(|sequence| *sequence <= self.seen);
                self.seen = self.seen.max(commit.last);
                if skip == sequences.len() { Verdict::Known } else { Verdict::Append { skip, after: Prev::Begin } }
            }
            Rule::BeginFromAnyone if commit.prev == Prev::Begin => Verdict::Append { skip: 0, after: Prev::Begin },
            _ => self.table.judge(&offer),
        };
        match verdict {
            Verdict::Refuse(refusal) => return is_awaited.then_some(Answer::Refused(refusal)),
            Verdict::Known => {}
            Verdict::Append { skip, after } => self.append(commit, skip, after, last_hash),
        }
        if !is_awaited {
            return None;
        }
        let ids = commit.records.iter().map(|(_, id)| *id).collect();
        let waiting = Waiting { last: commit.last, ids };
        let is_known = matches!(verdict, Verdict::Known) && rule != Rule::HighWaterDedup && self.table.is_committed(&KEY, commit.last);
        if is_known || rule == Rule::AppendedAsCommitted {
            return Some(self.answer(waiting));
        }
        self.waiting.push(waiting);
        None
    }

    fn append(&mut self, commit: &Commit, skip: usize, after: Prev, last_hash: u32) {
        self.log.extend(commit.records[skip..].iter().map(|(sequence, id)| Entry::Record { sequence: *sequence, id: *id }));
        if commit.is_gap {
            self.log.push(Entry::Gap { after: after.mark().unwrap_or(0), through: commit.last });
        }
        // A planted mistake may append what the table already has.
        if self.table.open(&KEY).appended.is_none_or(|appended| appended < commit.last) {
            self.table.on_appended(KEY, ORIGIN, commit.last, last_hash);
        }
    }

    fn answer(&mut self, waiting: Waiting) -> Answer {
        self.answered.extend(waiting.ids);
        Answer::Committed { last: waiting.last }
    }

    /// The sync succeeds: everything written is below the high watermark, and whoever waits is answered.
    pub fn on_synced(&mut self) -> Vec<Answer> {
        self.synced = self.log.len();
        self.table.on_all_committed();
        std::mem::take(&mut self.waiting).into_iter().map(|waiting| self.answer(waiting)).collect()
    }

    /// The sync fails and the tail is given up.
    pub fn on_sync_failed(&mut self) {
        self.log.truncate(self.synced);
        self.table.rollback();
        self.waiting.clear();
    }

    /// The sync fails and the tail is kept, rewritten into a new segment.
    pub fn on_tail_rewritten(&mut self, rule: Rule) {
        if rule == Rule::RollbackBesideKeptTail {
            self.table.rollback();
            self.waiting.clear();
            self.synced = self.log.len();
        } else {
            self.reopen(self.log.len(), self.table.log_id());
        }
    }

    /// The owner starts again with the first `len` entries of its log: all that verifies is visible.
    pub fn reopen(&mut self, len: usize, log_id: LogId) {
        self.log.truncate(len);
        self.synced = len;
        self.waiting.clear();
        self.seen = self.log.last().map_or(0, |entry| entry.end());
        let mark = self.log.last().map(|entry| Mark {
            committed: entry.end(),
            hash: if let Entry::Record { id, .. } = entry { hash(*id) } else { 0 },
            origin: ORIGIN,
        });
        self.table = StreamTable::from_marks(log_id, mark.map(|mark| (KEY, mark)).into_iter().collect());
    }

    pub fn log_id(&self) -> LogId {
        self.table.log_id()
    }

    /// Nobody waits any longer.
    pub fn forget_waiting(&mut self) {
        self.waiting.clear();
    }

    /// Messages below the high watermark.
    pub fn visible(&self) -> BTreeSet<u64> {
        self.log[..self.synced].iter().filter_map(|entry| if let Entry::Record { id, .. } = entry { Some(*id) } else { None }).collect()
    }

    /// Is this message covered by a declared gap?
    pub fn is_in_gap(&self, sequence: u64) -> bool {
        self.log.iter().any(|entry| matches!(entry, Entry::Gap { after, through } if *after < sequence && sequence <= *through))
    }
}

pub fn hash(id: u64) -> u32 {
    u32::try_from(id).expect("few messages") + 1000
}
