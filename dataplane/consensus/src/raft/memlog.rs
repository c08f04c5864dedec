//! A log in memory, for the simulator and for tests. What it took is durable as long as a clone of it lives.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{Entry, LogId, LogState, OptionalSend, RaftLogReader, StorageError, StorageIOError, Vote};
use parking_lot::Mutex;

use super::types::{MemberId, RaftTypes};
use crate::{FrozenState, SnapshotStore, StoreFuture, StoredSnapshot};

type Failure = StorageError<MemberId>;

#[derive(Default)]
struct Inner {
    entries: BTreeMap<u64, Entry<RaftTypes>>,
    purged: Option<LogId<MemberId>>,
    vote: Option<Vote<MemberId>>,
    committed: Option<LogId<MemberId>>,
    snapshot: Option<StoredSnapshot>,
    latched: Option<String>,
    /// How long each write takes.
    takes: Duration,
}

impl Inner {
    fn check(&self) -> io::Result<()> {
        match &self.latched {
            Some(reason) => Err(io::Error::other(reason.clone())),
            None => Ok(()),
        }
    }
}

/// The in-memory log. Clones share it: start a member again on a clone, and it finds everything it was told is durable.
#[derive(Clone, Default)]
pub struct MemLog {
    inner: Arc<Mutex<Inner>>,
}

impl MemLog {
    /// An empty log.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets every write from now on fail with `reason`, as a disk does whose sync failed.
    pub fn fail_writes(&self, reason: &str) {
        self.inner.lock().latched = Some(reason.to_owned());
    }

    /// Lets writes succeed again, as a restart on a repaired disk does.
    pub fn heal(&self) {
        self.inner.lock().latched = None;
    }

    /// Lets every write from now on take so long, as on a slow disk.
    pub fn slow_writes(&self, takes: Duration) {
        self.inner.lock().takes = takes;
    }

    async fn take_time(&self) {
        let takes = self.inner.lock().takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
    }

    /// Forgets that the last `entries` were committed, as a power cut does: that mark is written and not synced.
    pub fn lose_committed(&self, entries: u64) {
        let mut inner = self.inner.lock();
        let at = inner.committed.map(|id| id.index.saturating_sub(entries));
        let before = at.and_then(|at| inner.entries.get(&at).map(|entry| entry.log_id));
        inner.committed = before;
    }

    /// How many entries are kept.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.inner.lock().entries.len()
    }
}

impl RaftLogReader<RaftTypes> for MemLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<RaftTypes>>, Failure> {
        Ok(self.inner.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<RaftTypes> for MemLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<RaftTypes>, Failure> {
        let inner = self.inner.lock();
        let last = inner.entries.last_key_value().map(|(_, entry)| entry.log_id);
        Ok(LogState { last_purged_log_id: inner.purged, last_log_id: last.or(inner.purged) })
    }

    async fn get_log_reader(&mut self) -> Self::LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<MemberId>) -> Result<(), Failure> {
        self.take_time().await;
        let mut inner = self.inner.lock();
        inner.check().map_err(|e| StorageIOError::write_vote(&e))?;
        inner.vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<MemberId>>, Failure> {
        Ok(self.inner.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId<MemberId>>) -> Result<(), Failure> {
        let mut inner = self.inner.lock();
        inner.check().map_err(|e| StorageIOError::write(&e))?;
        inner.committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<MemberId>>, Failure> {
        Ok(self.inner.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<RaftTypes>) -> Result<(), Failure>
    where
        I: IntoIterator<Item = Entry<RaftTypes>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.take_time().await;
        let mut inner = self.inner.lock();
        let outcome = inner.check();
        if outcome.is_ok() {
            inner.entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        }
        drop(inner);
        callback.log_io_completed(outcome);
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<MemberId>) -> Result<(), Failure> {
        self.take_time().await;
        let mut inner = self.inner.lock();
        inner.check().map_err(|e| StorageIOError::write_logs(&e))?;
        inner.entries.split_off(&log_id.index);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId<MemberId>) -> Result<(), Failure> {
        let mut inner = self.inner.lock();
        inner.check().map_err(|e| StorageIOError::write_logs(&e))?;
        inner.entries = inner.entries.split_off(&(log_id.index + 1));
        inner.purged = Some(log_id);
        Ok(())
    }
}

impl SnapshotStore for MemLog {
    fn save_snapshot(&self, meta: Vec<u8>, state: FrozenState) -> StoreFuture<'_, Vec<u8>> {
        Box::pin(async move {
            let data = state();
            let mut inner = self.inner.lock();
            inner.check()?;
            inner.snapshot = Some(StoredSnapshot { meta, data: data.clone() });
            Ok(data)
        })
    }

    fn load_snapshot(&self) -> StoreFuture<'_, Option<StoredSnapshot>> {
        Box::pin(async move { Ok(self.inner.lock().snapshot.clone()) })
    }

    fn closed(&self) -> Box<dyn Fn() -> bool + Send + Sync> {
        // There is nothing to close.
        Box::new(|| true)
    }
}
