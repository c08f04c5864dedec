//! The end of the log in memory: entries are readable from here as soon as they are handed to the writer.

use std::collections::BTreeMap;

use veena_contract::limits;

use crate::codec::{StoredEntry, StoredLogId, StoredVote};

/// Positions, and the newest entries. Entries that are not written yet are always here.
pub(crate) struct Tail {
    entries: BTreeMap<u64, (StoredEntry, usize)>,
    bytes: usize,
    /// Behind the last entry that is in RocksDB.
    written_end: u64,
    pub(crate) purged: Option<StoredLogId>,
    pub(crate) last: Option<StoredLogId>,
    pub(crate) vote: Option<StoredVote>,
    pub(crate) committed: Option<StoredLogId>,
}

impl Tail {
    pub(crate) fn new(
        purged: Option<StoredLogId>,
        last: Option<StoredLogId>,
        vote: Option<StoredVote>,
        committed: Option<StoredLogId>,
    ) -> Self {
        let last = last.or(purged);
        let written_end = last.map_or(0, |id| id.index + 1);
        Self { entries: BTreeMap::new(), bytes: 0, written_end, purged, last, vote, committed }
    }

    /// Adds an entry that is on its way to the writer.
    pub(crate) fn push(&mut self, entry: StoredEntry, bytes: usize) {
        self.last = Some(entry.log_id);
        self.bytes += bytes;
        if let Some((_, replaced)) = self.entries.insert(entry.log_id.index, (entry, bytes)) {
            self.bytes -= replaced;
        }
    }

    /// Notes that every entry below `end` is in RocksDB, and lets old ones go.
    pub(crate) fn on_written(&mut self, end: u64) {
        self.written_end = self.written_end.max(end);
        while self.bytes > limits::METADATA_TAIL_BYTES_MAX {
            match self.entries.first_key_value() {
                Some((index, _)) if *index < self.written_end => self.drop_first(),
                _ => break,
            }
        }
    }

    fn drop_first(&mut self) {
        if let Some((_, (_, bytes))) = self.entries.pop_first() {
            self.bytes -= bytes;
        }
    }

    /// Forgets the entries from `from` on; `last` is what is left.
    pub(crate) fn truncate(&mut self, from: u64, last: Option<StoredLogId>) {
        let gone = self.entries.split_off(&from);
        self.bytes -= gone.values().map(|(_, bytes)| bytes).sum::<usize>();
        self.written_end = self.written_end.min(from);
        self.last = last;
    }

    /// Forgets the entries up to and with `upto`.
    pub(crate) fn purge(&mut self, upto: StoredLogId) {
        while self.entries.first_key_value().is_some_and(|(index, _)| *index <= upto.index) {
            self.drop_first();
        }
        self.purged = Some(upto);
        if self.last < self.purged {
            self.last = self.purged;
        }
    }

    /// The position of an entry that is in memory.
    pub(crate) fn log_id(&self, index: u64) -> Option<StoredLogId> {
        self.entries.get(&index).map(|(entry, _)| entry.log_id)
    }

    /// Where the entries in memory begin, if they reach to the end of the log without a hole.
    pub(crate) fn first(&self) -> Option<u64> {
        self.entries.first_key_value().map(|(index, _)| *index)
    }

    /// The entries of `start..end` that are in memory.
    pub(crate) fn read(&self, start: u64, end: u64) -> Vec<StoredEntry> {
        if start >= end {
            return Vec::new();
        }
        self.entries.range(start..end).map(|(_, (entry, _))| entry.clone()).collect()
    }
}
