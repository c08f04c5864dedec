//! Settle state of all partitions, how far their logs were published, and cursor positions, on their way to the node's one settle journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{error, warn};
use veena_contract::{LogId, limits};
use veena_storage::journal::Journal;

use crate::consume::frontier;
use crate::consume::lease::SettleState;
use crate::consume::promised::{self, Promise};
use crate::core::Core;
use crate::partition::{Partition, PartitionId};

/// Kinds of entries in the settle journal. Only grows.
const KIND_SETTLE: u8 = 1;
const KIND_CURSOR: u8 = 2;
const KIND_PROMISE: u8 = 3;

type Key = (u8, Vec<u8>);

/// The newest settle state of every log, and what of it is not in the journal yet.
pub struct SettleStore {
    journal: Arc<Mutex<Journal>>,
    newest: Mutex<BTreeMap<Key, Bytes>>,
    pending: Mutex<BTreeMap<Key, Option<Bytes>>>,
    queued: Mutex<Vec<Arc<Partition>>>,
    work: Notify,
}

impl SettleStore {
    /// A store over an open journal and what it held.
    #[must_use]
    pub fn new(journal: Journal, newest: BTreeMap<Key, Bytes>) -> Self {
        Self {
            journal: Arc::new(Mutex::new(journal)),
            newest: Mutex::new(newest),
            pending: Mutex::default(),
            queued: Mutex::default(),
            work: Notify::new(),
        }
    }

    /// The settle state kept for a log. Damaged bytes count as none: messages come again, none is lost.
    pub fn state(&self, log: LogId) -> Option<SettleState> {
        let bytes = self.newest.lock().get(&settle_key(log)).cloned()?;
        frontier::decode(&bytes).inspect_err(|_| error!(%log, "the settle state kept for a log cannot be read")).ok()
    }

    /// Keeps a log's settle state; written with the next round.
    pub fn keep(&self, log: LogId, state: &SettleState) {
        self.put(settle_key(log), Some(frontier::encode(state)));
    }

    /// Forgets a log that is gone.
    pub fn forget(&self, log: LogId) {
        self.put(settle_key(log), None);
    }

    /// Which log a partition had and up to where it was published. Damaged bytes count as none: the log is then believed.
    pub fn promise(&self, partition: PartitionId) -> Option<Promise> {
        let bytes = self.newest.lock().get(&promise_key(partition)).cloned()?;
        promised::decode(&bytes).inspect_err(|_| error!(?partition, "the promised end kept for a partition cannot be read")).ok()
    }

    /// Keeps up to where a partition's log was published; written with the next round.
    pub fn keep_promise(&self, partition: PartitionId, promise: &Promise) {
        self.put(promise_key(partition), Some(promised::encode(promise)));
    }

    /// Forgets the promise of a partition that is gone.
    pub fn forget_promise(&self, partition: PartitionId) {
        let key = promise_key(partition);
        if self.newest.lock().contains_key(&key) {
            self.put(key, None);
        }
    }

    /// The position kept for a cursor.
    pub fn cursor(&self, key: &[u8]) -> Option<Bytes> {
        self.newest.lock().get(&(KIND_CURSOR, key.to_vec())).cloned()
    }

    /// Keeps, or with `None` forgets, a cursor's position; written with the next round.
    pub fn keep_cursor(&self, key: &[u8], position: Option<Bytes>) {
        self.put((KIND_CURSOR, key.to_vec()), position);
    }

    fn put(&self, key: Key, value: Option<Bytes>) {
        match &value {
            Some(bytes) => self.newest.lock().insert(key.clone(), bytes.clone()),
            None => self.newest.lock().remove(&key),
        };
        self.pending.lock().insert(key, value);
        self.work.notify_one();
    }

    /// This partition's settle state has changed.
    pub fn queue(&self, partition: Arc<Partition>) {
        self.queued.lock().push(partition);
        self.work.notify_one();
    }

    /// Moves what changed into the journal. Blocking. Says whether anything was written.
    fn append_changed(&self) -> bool {
        let queued = std::mem::take(&mut *self.queued.lock());
        queued.iter().for_each(|partition| partition.take_settle(self));
        let pending = std::mem::take(&mut *self.pending.lock());
        if pending.is_empty() {
            return false;
        }
        let entries: Vec<(u8, &[u8], Option<&[u8]>)> =
            pending.iter().map(|((kind, key), value)| (*kind, key.as_slice(), value.as_deref())).collect();
        if let Err(error) = self.journal.lock().append(&entries) {
            warn!(%error, "settle state could not be written; tried again with the next round");
            let mut newer = self.pending.lock();
            for (key, value) in pending {
                newer.entry(key).or_insert(value);
            }
            return false;
        }
        true
    }

    fn sync(&self) -> bool {
        let synced = self.journal.lock().sync();
        synced
            .inspect_err(
                |error| error!(%error, "the settle journal could not be synced; after a power cut more acks come again than promised"),
            )
            .is_ok()
    }
}

fn settle_key(log: LogId) -> Key {
    (KIND_SETTLE, log.0.to_be_bytes().to_vec())
}

fn promise_key(partition: PartitionId) -> Key {
    (KIND_PROMISE, promised::key(partition))
}

/// Writes changed settle state every 100 ms and syncs it every `settle_sync_ms`, while there is any; once more at the end.
pub async fn run(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let sync_every = Duration::from_millis(core.config.settle_sync_ms);
    let mut sync_due: Option<Instant> = None;
    while !token.is_cancelled() {
        tokio::select! {
            () = core.settle.work.notified() => {
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(limits::SETTLE_APPEND_MS)) => {}
                    () = token.cancelled() => {}
                }
            }
            () = tokio::time::sleep_until(sync_due.unwrap_or_else(Instant::now)), if sync_due.is_some() => {}
            () = token.cancelled() => {}
        }
        let is_sync_due = sync_due.is_some_and(|due| due <= Instant::now());
        let worker = Arc::clone(&core);
        let has_written = core
            .ports
            .write_io
            .run(move || {
                let has_written = worker.settle.append_changed();
                if is_sync_due {
                    worker.settle.sync();
                }
                has_written
            })
            .await;
        if is_sync_due {
            sync_due = None;
        } else if has_written && sync_due.is_none() {
            sync_due = Some(Instant::now() + sync_every);
        }
    }
}

/// Writes and syncs everything now. Blocking. Says whether it is durable.
pub fn flush(store: &SettleStore) -> bool {
    store.append_changed();
    store.pending.lock().is_empty() && store.sync()
}
