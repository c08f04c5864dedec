//! Settle state of all partitions, how far their logs were published, and cursor positions, on their way to the node's one settle journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{error, info, warn};
use veena_contract::{Confirmed, LinkGone, LogId, PartitionIndex, limits};
use veena_storage::journal::{Change, Journal};

use crate::consume::frontier;
use crate::consume::lease::SettleState;
use crate::consume::promised::{self, Promise};
use crate::core::Core;
use crate::fanout::position;
use crate::partition::{Partition, PartitionId};

/// Kinds of entries in the settle journal. Only grows.
const KIND_SETTLE: u8 = 1;
const KIND_CURSOR: u8 = 2;
const KIND_PROMISE: u8 = 3;

/// How soon a journal that has failed is tried again.
const RETRY: Duration = Duration::from_millis(limits::SETTLE_APPEND_MS);

type Key = (u8, Vec<u8>);

/// The newest settle state of every log, and what of it is not in the journal yet.
pub struct SettleStore {
    journal: Arc<Mutex<Journal>>,
    newest: Mutex<BTreeMap<Key, Bytes>>,
    pending: Mutex<BTreeMap<Key, Option<Bytes>>>,
    queued: Mutex<Vec<Arc<Partition>>>,
    work: Notify,
    is_failing: AtomicBool,
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
            is_failing: AtomicBool::new(false),
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

    /// Keeps a cursor's position; written with the next round.
    pub fn keep_cursor(&self, key: &[u8], position: Bytes) {
        self.put((KIND_CURSOR, key.to_vec()), Some(position));
    }

    /// Forgets the position of an attachment's cursor in one parent partition; written with the next round.
    pub fn forget_cursor(&self, why: &Confirmed<LinkGone>, index: PartitionIndex) {
        self.put((KIND_CURSOR, position::key(why.fact().epoch, index).to_vec()), None);
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

    /// Moves what changed into the journal. Blocking.
    fn append_changed(&self) -> Appended {
        // Held from before the changes are taken: of two rounds at once, the later one appends the newer state.
        let mut journal = self.journal.lock();
        let queued = std::mem::take(&mut *self.queued.lock());
        queued.iter().for_each(|partition| partition.take_settle(self));
        let pending = std::mem::take(&mut *self.pending.lock());
        if pending.is_empty() {
            return Appended::Nothing;
        }
        let entries: Vec<Change<'_>> = pending.iter().map(|((kind, key), value)| (*kind, key.as_slice(), value.as_deref())).collect();
        let appended = journal.append(&entries);
        let Err(error) = appended else {
            return Appended::All;
        };
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            warn!(%error, "settle state cannot be written; tried again until it can");
        }
        let mut newer = self.pending.lock();
        for (key, value) in pending {
            newer.entry(key).or_insert(value);
        }
        Appended::Failed
    }

    /// Makes the journal durable; one that has failed begins a new file here. Blocking.
    fn sync(&self) -> bool {
        let synced = self.journal.lock().sync();
        match synced {
            Ok(()) => {
                if self.is_failing.swap(false, Ordering::Relaxed) {
                    info!("settle state is written again");
                }
                true
            }
            Err(error) => {
                if !self.is_failing.swap(true, Ordering::Relaxed) {
                    error!(%error, "the settle journal cannot be synced; until it can, a crash brings more acks again than promised");
                }
                false
            }
        }
    }

    /// One round: what changed is appended, and synced when that is due or the journal has failed. Blocking.
    fn round(&self, is_sync_due: bool) -> Round {
        let appended = self.append_changed();
        let has_failed = appended == Appended::Failed;
        let is_synced = (is_sync_due || has_failed).then(|| self.sync());
        if !has_failed || is_synced != Some(true) {
            return Round { appended, is_synced };
        }
        // A new file was begun: what could not be appended goes there at once, and is durable with a sync of its own.
        let appended = self.append_changed();
        Round { appended, is_synced: Some(self.sync()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Appended {
    Nothing,
    All,
    Failed,
}

struct Round {
    appended: Appended,
    /// `None` when no sync was tried.
    is_synced: Option<bool>,
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
    // A sync that falls due while a round gathers waits for that round's write: it must be due that much earlier.
    let sync_every = Duration::from_millis(core.config.settle_sync_ms.saturating_sub(limits::SETTLE_APPEND_MS));
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
        let Round { appended, is_synced } = core.ports.write_io.run(move || worker.settle.round(is_sync_due)).await;
        if is_synced == Some(true) {
            sync_due = None;
        }
        if appended == Appended::Failed || is_synced == Some(false) {
            sync_due = Some(Instant::now() + RETRY);
        } else if appended == Appended::All && sync_due.is_none() {
            sync_due = Some(Instant::now() + sync_every);
        }
    }
}

/// Writes and syncs everything now. Blocking. Says whether it is durable.
#[must_use = "what is not durable is lost with the process"]
pub fn flush(store: &SettleStore) -> bool {
    let Round { appended, is_synced } = store.round(true);
    appended != Appended::Failed && is_synced == Some(true)
}
