//! The log and the vote, as the raft library asks for them.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{Entry, LogState, OptionalSend, RaftLogReader, StorageError, StorageIOError};
use rocksdb::{DB, Direction, IteratorMode};
use veena_consensus::raft::{MemberId, RaftTypes};

use crate::codec::{self, LOG, StoredEntry, StoredLogId, StoredVote, entry_index, entry_key};
use crate::open::{RaftStore, failed, family};
use crate::writer::Job;

type Failure = StorageError<MemberId>;

impl RaftStore {
    /// The entries of `start..end`: from memory, and from disk what is older.
    async fn read(&self, start: u64, end: u64) -> io::Result<Vec<StoredEntry>> {
        let (newer, from_disk_end) = {
            let tail = self.inner.tail.lock();
            let start = start.max(tail.purged.map_or(0, |id| id.index + 1));
            let end = end.min(tail.last.map_or(0, |id| id.index + 1));
            let in_memory = tail.first().unwrap_or(end).min(end);
            if in_memory <= start {
                return Ok(tail.read(start, end));
            }
            (tail.read(in_memory, end), in_memory)
        };
        let db = self.inner.db.clone();
        let mut entries = tokio::task::spawn_blocking(move || read_disk(&db, start, from_disk_end)).await.map_err(io::Error::other)??;
        entries.extend(newer);
        Ok(entries)
    }

    /// The position in front of `index`, for a log that ends there.
    async fn before(&self, index: u64) -> io::Result<Option<StoredLogId>> {
        let Some(previous) = index.checked_sub(1) else {
            return Ok(None);
        };
        let (in_memory, purged) = {
            let tail = self.inner.tail.lock();
            (tail.log_id(previous), tail.purged)
        };
        if in_memory.is_some() {
            return Ok(in_memory);
        }
        Ok(self.read(previous, index).await?.pop().map(|entry| entry.log_id).or(purged))
    }
}

fn read_disk(db: &DB, start: u64, end: u64) -> io::Result<Vec<StoredEntry>> {
    let log = family(db, LOG)?;
    let mut entries = Vec::new();
    for item in db.iterator_cf(log, IteratorMode::From(&entry_key(start), Direction::Forward)) {
        let (key, value) = item.map_err(failed)?;
        if entry_index(&key)? >= end {
            break;
        }
        entries.push(codec::decode("a log entry", &value)?);
    }
    Ok(entries)
}

impl RaftLogReader<RaftTypes> for RaftStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<RaftTypes>>, Failure> {
        let start = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        Ok(self.read(start, end).await.map_err(|e| StorageIOError::read_logs(&e))?)
    }
}

impl RaftLogStorage<RaftTypes> for RaftStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<RaftTypes>, Failure> {
        let tail = self.inner.tail.lock();
        Ok(LogState { last_purged_log_id: tail.purged, last_log_id: tail.last })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &StoredVote) -> Result<(), Failure> {
        let value = codec::encode(vote).map_err(|e| StorageIOError::write_vote(&e))?;
        self.inner.writer.run(|done| Job::Vote { value, done }).await.map_err(|e| StorageIOError::write_vote(&e))?;
        self.inner.tail.lock().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<StoredVote>, Failure> {
        Ok(self.inner.tail.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<StoredLogId>) -> Result<(), Failure> {
        let value = codec::encode(&committed).map_err(|e| StorageIOError::write(&e))?;
        self.inner.writer.latch().check().map_err(|e| StorageIOError::write(&e))?;
        self.inner.tail.lock().committed = committed;
        self.inner.writer.submit(Job::Committed { value });
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<StoredLogId>, Failure> {
        Ok(self.inner.tail.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<RaftTypes>) -> Result<(), Failure>
    where
        I: IntoIterator<Item = Entry<RaftTypes>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.inner.writer.latch().check().map_err(|e| StorageIOError::write_logs(&e))?;
        let mut encoded = Vec::new();
        let mut appended = Vec::new();
        for entry in entries {
            let value = codec::encode(&entry).map_err(|e| StorageIOError::write_logs(&e))?;
            appended.push((entry, value.len()));
            encoded.push(value);
        }
        let indexes: Vec<u64> = appended.iter().map(|(entry, _)| entry.log_id.index).collect();
        {
            let mut tail = self.inner.tail.lock();
            for (entry, bytes) in appended {
                tail.push(entry, bytes);
            }
        }
        let entries = indexes.into_iter().zip(encoded).collect();
        self.inner.writer.submit(Job::Append { entries, done: callback });
        Ok(())
    }

    async fn truncate(&mut self, log_id: StoredLogId) -> Result<(), Failure> {
        let from = log_id.index;
        let last = self.before(from).await.map_err(|e| StorageIOError::read_logs(&e))?;
        self.inner.writer.run(|done| Job::Truncate { from, done }).await.map_err(|e| StorageIOError::write_logs(&e))?;
        self.inner.tail.lock().truncate(from, last);
        Ok(())
    }

    async fn purge(&mut self, log_id: StoredLogId) -> Result<(), Failure> {
        let value = codec::encode(&log_id).map_err(|e| StorageIOError::write_logs(&e))?;
        let job = |done| Job::Purge { upto: log_id.index, value, done };
        self.inner.writer.run(job).await.map_err(|e| StorageIOError::write_logs(&e))?;
        self.inner.tail.lock().purge(log_id);
        Ok(())
    }
}
