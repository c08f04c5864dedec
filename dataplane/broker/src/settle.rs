//! Settle state of all partitions, how far their logs were published, and cursor positions, on their way to the node's one settle journal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{error, info};
use veena_contract::{AttachEpoch, CatalogView, Confirmed, CopyMoved, LinkGone, LogId, PartitionIndex, TopicGone, TopicId, limits};
use veena_storage::journal::{Change, Journal, JournalError};

use crate::consume::frontier;
use crate::consume::lease::SettleState;
use crate::consume::promised::{self, Promise};
use crate::core::Core;
use crate::fanout::position;
use crate::metrics::BrokerMetrics;
use crate::partition::{Partition, PartitionId};

/// Kinds of entries in the settle journal. Only grows.
const KIND_SETTLE: u8 = 1;
const KIND_CURSOR: u8 = 2;
pub(crate) const KIND_PROMISE: u8 = 3;

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
    /// Held by whoever syncs. Nobody who appends waits for it.
    syncing: Mutex<()>,
    /// When something was appended that no sync has been begun for.
    unsynced_since: Mutex<Option<Instant>>,
    unsynced: Notify,
    /// Why the newest state is in memory alone, while it cannot be written.
    failing: Mutex<Option<String>>,
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
            syncing: Mutex::default(),
            unsynced_since: Mutex::default(),
            unsynced: Notify::new(),
            failing: Mutex::default(),
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

    /// Keeps the position with which a cursor comes here with its partition, or that it comes with none: what this node kept of it before, when
    /// it owned the partition, is old.
    pub fn replace_cursor(&self, epoch: AttachEpoch, index: PartitionIndex, position: Option<Bytes>) {
        self.put((KIND_CURSOR, position::key(epoch, index)), position);
    }

    /// Forgets the position of a cursor in a partition that has moved to another node; written with the next round.
    pub fn forget_moved_cursor(&self, why: &Confirmed<CopyMoved>, epoch: AttachEpoch) {
        self.put((KIND_CURSOR, position::key(epoch, why.fact().index)), None);
    }

    /// The topics that something is kept for and that are not in the catalog.
    pub fn unknown_topics(&self, view: &CatalogView) -> BTreeSet<TopicId> {
        let newest = self.newest.lock();
        let topics: BTreeSet<TopicId> =
            of_kind(&newest, KIND_PROMISE).filter_map(|key| Some(TopicId(u64::from_be_bytes(*key.first_chunk()?)))).collect();
        topics.into_iter().filter(|topic| view.topic_by_id(*topic).is_none()).collect()
    }

    /// The attachments that a position is kept for and that are not in the catalog, with the partition it is of.
    pub fn unknown_links(&self, view: &CatalogView) -> Vec<(AttachEpoch, PartitionIndex)> {
        let kept: Vec<_> = of_kind(&self.newest.lock(), KIND_CURSOR).filter_map(|key| position::of_key(key)).collect();
        if kept.is_empty() {
            return kept;
        }
        let links = view.by_id.values().flat_map(|topic| &topic.children);
        let known: BTreeSet<AttachEpoch> = links.map(|link| link.epoch).collect();
        kept.into_iter().filter(|(epoch, _)| !known.contains(epoch)).collect()
    }

    /// Forgets what is kept for the partitions of a topic that is gone; written with the next round. A node that was away when the topic was
    /// deleted never closed them.
    pub fn forget_topic(&self, why: &Confirmed<TopicGone>) {
        let topic = why.fact().topic;
        let kept: Vec<PartitionIndex> = {
            let newest = self.newest.lock();
            let index = |key: &Vec<u8>| Some(PartitionIndex(u32::from_be_bytes(*key.strip_prefix(&topic.0.to_be_bytes())?.first_chunk()?)));
            of_kind(&newest, KIND_PROMISE).filter_map(index).collect()
        };
        for index in kept {
            let partition = PartitionId { topic, index };
            if let Some(kept) = self.promise(partition) {
                self.forget(kept.log);
            }
            self.forget_promise(partition);
        }
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

    /// Why acks are in memory alone now, if they are: the disk is full, say. They are written once they can be.
    pub fn failing(&self) -> Option<String> {
        self.failing.lock().clone()
    }

    /// Moves what changed into the journal. Says whether anything had. Blocking.
    fn append_changed(&self) -> Result<bool, JournalError> {
        // Held from before the changes are taken: of two rounds at once, the later one appends the newer state.
        let mut journal = self.journal.lock();
        let queued = std::mem::take(&mut *self.queued.lock());
        queued.iter().for_each(|partition| partition.take_settle(self));
        let pending = std::mem::take(&mut *self.pending.lock());
        if pending.is_empty() {
            return Ok(false);
        }
        let entries: Vec<Change<'_>> = pending.iter().map(|((kind, key), value)| (*kind, key.as_slice(), value.as_deref())).collect();
        journal.append(&entries).map(|()| true).inspect_err(|_| {
            let mut newer = self.pending.lock();
            for (key, value) in pending {
                newer.entry(key).or_insert(value);
            }
        })
    }

    /// Makes the journal durable; one that has failed begins a new file here. Others append while a sync runs, and not while a new file is
    /// written. Blocking.
    fn sync(&self, metrics: &BrokerMetrics) -> Result<(), JournalError> {
        let _alone = self.syncing.lock();
        let mut journal = self.journal.lock();
        if journal.is_synced() {
            return Ok(());
        }
        let began = Instant::now();
        let synced = match journal.begin_sync() {
            None => journal.sync(),
            Some(pending) => {
                drop(journal);
                let outcome = pending.run();
                self.journal.lock().end_sync(&pending, outcome)
            }
        };
        metrics.settle_sync_seconds.observe(began.elapsed());
        synced
    }

    /// Makes what was appended so far durable. Blocking. Says whether it is.
    fn sync_round(&self, metrics: &BrokerMetrics) -> bool {
        *self.unsynced_since.lock() = None;
        let synced = self.sync(metrics);
        metrics.settle_writes_failed.add(u64::from(synced.is_err()));
        self.note(synced.as_ref().err());
        synced.is_ok()
    }

    fn note_unsynced(&self) {
        self.unsynced_since.lock().get_or_insert_with(Instant::now);
        self.unsynced.notify_one();
    }

    /// One round: what changed is appended, and synced when that is asked for or the journal has failed. Blocking.
    fn round(&self, metrics: &BrokerMetrics, must_sync: bool) -> Round {
        let mut appended = self.append_changed();
        let has_failed = appended.is_err();
        let mut synced = (must_sync || has_failed).then(|| self.sync(metrics));
        if has_failed && matches!(synced, Some(Ok(()))) {
            // A new file was begun: what could not be appended goes there at once, and is durable with a sync of its own.
            appended = self.append_changed();
            synced = Some(self.sync(metrics));
        }
        let is_synced = synced.as_ref().map(Result::is_ok);
        let failure = appended.as_ref().err().or_else(|| synced.as_ref().and_then(|synced| synced.as_ref().err()));
        if failure.is_some() || appended.as_ref().is_ok_and(|has_written| *has_written) || is_synced.is_some() {
            metrics.settle_writes_failed.add(u64::from(failure.is_some()));
            self.note(failure);
        }
        let appended = match appended {
            Ok(true) => Appended::All,
            Ok(false) => Appended::Nothing,
            Err(_) => Appended::Failed,
        };
        Round { appended, is_synced }
    }

    /// Says it once when writing begins to fail, and once when it works again.
    fn note(&self, failure: Option<&JournalError>) {
        let mut failing = self.failing.lock();
        match (failure, failing.is_some()) {
            (Some(error), false) => error!(
                %error,
                "settle state cannot be written, and is tried again until it can; until then a crash brings more acks again than promised"
            ),
            (None, true) => info!("settle state is written again"),
            _ => {}
        }
        *failing = failure.map(ToString::to_string);
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

/// The keys of one kind.
fn of_kind(newest: &BTreeMap<Key, Bytes>, kind: u8) -> impl Iterator<Item = &Vec<u8>> {
    newest.range((kind, Vec::new())..(kind + 1, Vec::new())).map(|((_, key), _)| key)
}

fn settle_key(log: LogId) -> Key {
    (KIND_SETTLE, log.0.to_be_bytes().to_vec())
}

fn promise_key(partition: PartitionId) -> Key {
    (KIND_PROMISE, promised::key(partition))
}

/// Writes changed settle state every 100 ms while there is any, however long a sync takes meanwhile.
pub async fn run(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let mut again_at: Option<Instant> = None;
    while !token.is_cancelled() {
        tokio::select! {
            () = core.settle.work.notified() => {
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(limits::SETTLE_APPEND_MS)) => {}
                    () = token.cancelled() => {}
                }
            }
            () = tokio::time::sleep_until(again_at.unwrap_or_else(Instant::now)), if again_at.is_some() => {}
            () = token.cancelled() => {}
        }
        let worker = Arc::clone(&core);
        let Round { appended, is_synced } = core.ports.write_io.run(move || worker.settle.round(&worker.metrics, false)).await;
        again_at = (appended == Appended::Failed).then(|| Instant::now() + RETRY);
        if appended == Appended::All && is_synced != Some(true) {
            core.settle.note_unsynced();
        }
    }
}

/// Syncs the journal `settle_sync_ms` after something changed that is in no sync yet.
pub async fn run_syncs(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    // What changed has waited for the write already.
    let sync_after = Duration::from_millis(core.config.settle_sync_ms.saturating_sub(limits::SETTLE_APPEND_MS));
    while !token.is_cancelled() {
        tokio::select! {
            () = core.settle.unsynced.notified() => {}
            () = token.cancelled() => break,
        }
        let since = *core.settle.unsynced_since.lock();
        let Some(since) = since else { continue };
        let mut due = since + sync_after;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = token.cancelled() => return,
            }
            let worker = Arc::clone(&core);
            if core.ports.write_io.run(move || worker.settle.sync_round(&worker.metrics)).await {
                break;
            }
            due = Instant::now() + RETRY;
        }
    }
}

/// Writes and syncs everything now. Blocking. Says whether it is durable.
#[must_use = "what is not durable is lost with the process"]
pub fn flush(core: &Core) -> bool {
    let Round { appended, is_synced } = core.settle.round(&core.metrics, true);
    appended != Appended::Failed && is_synced == Some(true)
}

#[cfg(test)]
mod tests;
