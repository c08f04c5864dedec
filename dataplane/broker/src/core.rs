//! What all parts of the engine share: the ports, the WAL, the topics, the counters.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use veena_contract::{NodeId, PartitionIndex, StreamId, TopicId, TopicRecord, WalSeq, limits};
use veena_storage::partition::FrameCache;
use veena_storage::turns::Turns;
use veena_storage::wal::{Destination, Wal, WalOpened, WalStream};

use crate::consume::lease::MonoMs;
use crate::fanout::reconcile::Fanout;
use crate::key_uses::KeyUses;
use crate::metrics::BrokerMetrics;
use crate::owners::elsewhere::QueueState;
use crate::owners::moves::Moves;
use crate::owners::reach::Reach;
use crate::partition::{Partition, PartitionId};
use crate::ports::{BrokerConfig, BrokerPorts};
use crate::produce::discard::Orphans;
use crate::produce::intake::Intake;
use crate::produce::moved::MovedRecords;
use crate::produce::park::ParkedFiles;
use crate::quota::Quotas;
use crate::quota::exchange::Ledgers;
use crate::quota::stored::{StoredBytes, StoredKey};
use crate::settle::SettleStore;
use crate::streams::{Origin, Source};
use crate::topics::{Topic, Topics};
use crate::usage::Usage;

/// The shared middle of the engine.
pub struct Core {
    /// What was configured.
    pub config: BrokerConfig,
    /// The world.
    pub ports: BrokerPorts,
    /// The ingress WAL.
    pub wal: Wal,
    /// Living topics.
    pub topics: Topics,
    /// Settle state and cursor positions.
    pub settle: SettleStore,
    /// Decoded frames for readers.
    pub frames: Arc<FrameCache>,
    /// What is on its way from the WAL.
    pub dispatch: DispatchState,
    /// Records of topics that are gone.
    pub orphans: Orphans,
    /// Files of records set aside.
    pub parked: ParkedFiles,
    /// Records of the WAL that another partition got.
    pub moved: MovedRecords,
    /// Owners that were away.
    pub reach: Reach,
    /// Held by whoever has records accepted anew.
    pub reroutes: Semaphore,
    /// Cursors.
    pub fanout: Fanout,
    /// What consumers of one node have at another.
    pub queue: QueueState,
    /// Partitions that come and go.
    pub moves: Moves,
    /// Counters.
    pub metrics: BrokerMetrics,
    /// The stream of owner-synchronous produces, minted at boot; only ids come from it.
    pub direct_stream: StreamId,
    /// Produces under way.
    pub intake: Intake,
    /// What tenants with limits use each second.
    pub quota: Quotas,
    /// What tenants with limits store.
    pub stored: StoredBytes,
    /// What is stored on this node, as of the last tally.
    pub stored_here: Mutex<BTreeMap<StoredKey, u64>>,
    /// What tenants have used.
    pub usage: Usage,
    /// When keys were last used.
    pub key_uses: KeyUses,
    /// As the leader of the metadata: the shares of limits that nodes were given.
    pub ledgers: Ledgers,
    /// No new produce, no new waits.
    pub is_stopping: AtomicBool,
    /// Less room is free than the reserve; or a write found none since it was last looked at.
    pub is_disk_low: AtomicBool,
    /// Bytes free on the data disk, as of the last sweep.
    pub disk_available_bytes: AtomicU64,
    /// Bytes set aside, as of the last sweep.
    pub quarantined_bytes: AtomicU64,
    /// Held by whoever looks through what was set aside, for somebody who has asked.
    pub quarantine_walk: Arc<tokio::sync::Mutex<()>>,
    /// Is the WAL moving?
    pub wal_pulse: WalPulse,
    wal_identity: WalIdentity,
    direct_next: AtomicU64,
    open_logs: Mutex<BTreeSet<PartitionId>>,
    failed_logs: Mutex<BTreeSet<PartitionId>>,
    prepared_dirs: Mutex<BTreeSet<PathBuf>>,
    /// Turns of tenants at other nodes.
    turns: Mutex<BTreeMap<NodeId, Turns>>,
    started: Instant,
}

/// Which WAL this is and which of its streams may still have undispatched records.
struct WalIdentity {
    id: u64,
    ordinal: u32,
    stream: StreamId,
    begin: WalSeq,
    older: Vec<WalStream>,
    floor: Mutex<u32>,
}

/// Since when the WAL has synced nothing.
#[derive(Default)]
pub struct WalPulse {
    quiet_since: AtomicU64,
}

impl WalPulse {
    /// A group was synced, or nothing waits for a sync.
    pub fn beat(&self, now: MonoMs) {
        self.quiet_since.store(now, Ordering::Release);
    }

    /// Have records waited for long without any sync? `has_staged` says whether any wait now.
    pub fn is_stalled(&self, has_staged: bool, now: MonoMs) -> bool {
        if !has_staged {
            self.beat(now);
            return false;
        }
        now.saturating_sub(self.quiet_since.load(Ordering::Acquire)) > limits::WAL_STALL_MS
    }
}

/// What the dispatcher has in hand, over all destinations.
#[derive(Default)]
pub struct DispatchState {
    bytes: AtomicUsize,
    enqueued_end: AtomicU64,
    active: Mutex<BTreeMap<PartitionId, Arc<Partition>>>,
    /// Where the reader of former opens' records stands; `None` once it is through.
    backlog: Mutex<Option<WalSeq>>,
    /// Of the bytes queued, those of former lives.
    former_bytes: AtomicUsize,
    /// This life's records no longer wait for those of former lives.
    is_order_given_up: AtomicBool,
    progress: Notify,
    checkpoint: AtomicU64,
}

impl DispatchState {
    /// Bytes of bodies queued for dispatch.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes were queued.
    pub fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes left a queue.
    pub fn sub_bytes(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Everything below is queued, or was.
    pub fn set_enqueued_end(&self, end: WalSeq) {
        self.enqueued_end.store(end.0, Ordering::Release);
    }

    /// Bytes queued of former lives.
    pub fn former_bytes(&self) -> usize {
        self.former_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of a former life were queued.
    pub fn add_former(&self, bytes: usize) {
        self.former_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of a former life left a queue.
    pub fn sub_former(&self, bytes: usize) {
        self.former_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Everything below is queued already, of former lives too.
    pub fn read_to(&self) -> WalSeq {
        self.backlog.lock().unwrap_or(WalSeq(u64::MAX))
    }

    /// Must this life's records wait, since earlier ones of a former life may still be read?
    pub fn may_former_come(&self) -> bool {
        !self.is_order_given_up.load(Ordering::Relaxed) && self.backlog.lock().is_some()
    }

    /// Destinations that stand still keep the reader from going on: the others wait no longer.
    pub fn give_up_order(&self) -> bool {
        !self.is_order_given_up.swap(true, Ordering::Relaxed)
    }

    /// A destination has records.
    pub fn activate(&self, partition: &Arc<Partition>) {
        self.active.lock().insert(partition.id, Arc::clone(partition));
    }

    /// A destination's queue is empty. The caller holds the queue's lock.
    pub fn deactivate(&self, partition: &Partition) {
        self.active.lock().remove(&partition.id);
        self.note_progress();
    }

    /// Something was committed: a checkpoint may be due.
    pub fn note_progress(&self) {
        self.progress.notify_one();
    }

    /// Completes when something was committed since the last call.
    pub async fn progressed(&self) {
        self.progress.notified().await;
    }

    /// Where the reader of former records stands.
    pub fn set_backlog(&self, position: Option<WalSeq>) {
        *self.backlog.lock() = position;
        self.note_progress();
    }

    /// Destinations that have records.
    pub fn active(&self) -> Vec<Arc<Partition>> {
        self.active.lock().values().cloned().collect()
    }

    /// How many records wait, over all destinations, in memory and in files.
    pub fn queued(&self) -> usize {
        self.active().iter().map(|partition| partition.queue.lock().len()).sum()
    }

    /// The WAL position below which everything is committed at its owner. The order of reads matters: what is queued after the first read
    /// lies at or above it.
    pub fn done_below(&self, orphans: &Orphans) -> WalSeq {
        let end = WalSeq(self.enqueued_end.load(Ordering::Acquire));
        if veena_contract::sabotage::is("checkpoint_before_commit") {
            return end;
        }
        let backlog = *self.backlog.lock();
        // Orphans go to queues when their topic turns out to live, queues to orphans when it is gone: looked at before and after.
        let orphaned_before = orphans.front();
        let queued = self.active().iter().filter_map(|partition| partition.queue.lock().front()).min();
        [Some(end), backlog, orphaned_before, queued, orphans.front()].into_iter().flatten().min().unwrap_or(end)
    }

    /// The last durable checkpoint.
    pub fn checkpoint(&self) -> WalSeq {
        WalSeq(self.checkpoint.load(Ordering::Acquire))
    }

    /// A checkpoint is durable.
    pub fn set_checkpoint(&self, below: WalSeq) {
        self.checkpoint.store(below.0, Ordering::Release);
    }
}

impl Core {
    /// The middle of an engine whose WAL and settle store are open.
    #[must_use]
    pub fn new(
        config: BrokerConfig,
        ports: BrokerPorts,
        wal: Wal,
        opened: &WalOpened,
        settle: SettleStore,
        frames: Arc<FrameCache>,
        parked: ParkedFiles,
    ) -> Self {
        let dispatch = DispatchState::default();
        dispatch.set_enqueued_end(opened.end);
        dispatch.set_checkpoint(opened.checkpoint);
        dispatch.set_backlog((opened.checkpoint < opened.end).then_some(opened.checkpoint));
        let moved = MovedRecords::default();
        if opened.checkpoint >= opened.end && !parked.has_found() {
            moved.set_known();
        }
        let older = parked.streams_beside(opened);
        let floor = older.iter().map(|stream| stream.ordinal).min().unwrap_or(opened.ordinal);
        let direct_stream = StreamId(ports.entropy.next_u128());
        Self {
            config,
            wal,
            topics: Topics::default(),
            settle,
            frames,
            dispatch,
            orphans: Orphans::default(),
            parked,
            moved,
            reach: Reach::default(),
            reroutes: Semaphore::new(limits::REROUTES_AT_ONCE_MAX),
            fanout: Fanout::default(),
            queue: QueueState::default(),
            moves: Moves::default(),
            metrics: BrokerMetrics::default(),
            direct_stream,
            intake: Intake::default(),
            quota: Quotas::default(),
            stored: StoredBytes::default(),
            stored_here: Mutex::default(),
            usage: Usage::default(),
            key_uses: KeyUses::default(),
            ledgers: Ledgers::default(),
            is_stopping: AtomicBool::new(false),
            is_disk_low: AtomicBool::new(false),
            disk_available_bytes: AtomicU64::new(0),
            quarantined_bytes: AtomicU64::new(0),
            quarantine_walk: Arc::default(),
            wal_pulse: WalPulse::default(),
            wal_identity: WalIdentity {
                id: opened.wal_id,
                ordinal: opened.ordinal,
                stream: opened.stream,
                begin: opened.end,
                older,
                floor: Mutex::new(floor),
            },
            direct_next: AtomicU64::new(0),
            open_logs: Mutex::default(),
            failed_logs: Mutex::default(),
            prepared_dirs: Mutex::default(),
            turns: Mutex::default(),
            started: Instant::now(),
            ports,
        }
    }

    /// Milliseconds on the process's monotone clock.
    #[must_use]
    pub fn now_ms(&self) -> MonoMs {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Microseconds on the same clock.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// A write of messages found no room: produce is refused at once, and not only when the room is looked at again.
    pub fn on_no_space(&self) {
        self.is_disk_low.store(true, Ordering::Relaxed);
    }

    /// Do records wait for a sync of the WAL that does not come? It takes no more of them then.
    #[must_use]
    pub fn is_wal_stalled(&self) -> bool {
        self.wal_pulse.is_stalled(self.wal.has_staged(), self.now_ms())
    }

    /// Where records of a topic's partition go.
    #[must_use]
    pub fn destination_of(record: &TopicRecord, partition: PartitionIndex) -> Destination {
        Destination { group: record.id.0, partition: partition.get() }
    }

    /// The partition a WAL record is for, while its topic lives here.
    pub fn destination(&self, destination: Destination) -> Option<(Arc<Topic>, Arc<Partition>)> {
        let id = TopicId(destination.group);
        let topic = match self.topics.get(id) {
            Some(topic) => topic,
            None => self.topics.of(self, self.ports.catalog.view().topic_by_id(id)?),
        };
        if topic.is_gone() {
            return None;
        }
        let partition = topic.partition(PartitionIndex(destination.partition))?;
        Some((topic, partition))
    }

    /// The identity of the WAL.
    #[must_use]
    pub fn wal_id(&self) -> u64 {
        self.wal_identity.id
    }

    /// The stream new WAL records get.
    #[must_use]
    pub fn wal_stream(&self) -> StreamId {
        self.wal_identity.stream
    }

    /// Where a WAL stream comes from, for the owner's table.
    #[must_use]
    pub fn wal_origin(&self, stream: StreamId) -> Origin {
        let identity = &self.wal_identity;
        let ordinal = identity.older.iter().find(|older| older.stream == stream).map_or(identity.ordinal, |older| older.ordinal);
        Origin { id: identity.id, ordinal, floor: *identity.floor.lock() }
    }

    /// What this node still has of a WAL stream for one destination, whose oldest queued record of the stream is `first_queued`. Everything
    /// before that record was confirmed by the destination's owner once, and is here no longer.
    #[must_use]
    pub fn stream_source(&self, stream: StreamId, first_queued: WalSeq) -> Source {
        let identity = &self.wal_identity;
        let (begin, end) = identity
            .older
            .iter()
            .find(|older| older.stream == stream)
            .map_or((identity.begin.0, u64::MAX), |older| (older.first.0, older.end.0));
        let here = first_queued.0.max(begin);
        Source { begin, owed_from: here, retained_from: here, end }
    }

    /// A checkpoint has passed: streams that lie wholly below it, and of which no file is left, are finished.
    pub fn raise_stream_floor(&self, checkpoint: WalSeq) {
        let identity = &self.wal_identity;
        let living = identity.older.iter().filter(|older| older.end > checkpoint).map(|older| older.ordinal).min();
        let living = living.into_iter().chain(self.parked.oldest_ordinal()).min();
        *identity.floor.lock() = living.unwrap_or(identity.ordinal);
    }

    /// `count` sequences of the direct stream; the first of them is returned.
    pub fn take_direct_sequences(&self, count: u64) -> u64 {
        self.direct_next.fetch_add(count.max(1), Ordering::Relaxed)
    }

    /// Where tenants take turns to have another node called.
    #[must_use]
    pub fn turns_at(&self, node: &NodeId) -> Turns {
        let mut turns = self.turns.lock();
        if let Some(turns) = turns.get(node) {
            return turns.clone();
        }
        // Nodes that are gone leave nothing.
        if let Some(peers) = &self.ports.peers {
            let nodes = peers.directory.nodes();
            turns.retain(|known, _| nodes.contains(known));
        }
        turns.entry(node.clone()).or_insert_with(|| Turns::new(limits::PEER_TENANT_CALLS_MAX)).clone()
    }

    /// A log was opened.
    pub fn note_open(&self, id: PartitionId) {
        self.open_logs.lock().insert(id);
        self.forget_failed(id);
    }

    /// A log could not be opened.
    pub fn note_failed(&self, id: PartitionId) {
        self.failed_logs.lock().insert(id);
    }

    /// A log was opened after all, or its topic is gone.
    pub fn forget_failed(&self, id: PartitionId) {
        self.failed_logs.lock().remove(&id);
    }

    /// The logs that could not be opened when they were last needed.
    #[must_use]
    pub fn failed_logs(&self) -> Vec<PartitionId> {
        self.failed_logs.lock().iter().copied().collect()
    }

    /// A log was closed.
    pub fn note_closed(&self, id: PartitionId) {
        self.open_logs.lock().remove(&id);
    }

    /// The open logs.
    #[must_use]
    pub fn open_logs(&self) -> Vec<PartitionId> {
        self.open_logs.lock().iter().copied().collect()
    }

    /// Makes a partition's directory durable, names of its parents included. Blocking.
    ///
    /// # Errors
    /// Of the file system.
    pub fn prepare_partition_dir(&self, dir: &Path) -> io::Result<()> {
        if self.prepared_dirs.lock().contains(dir) {
            return Ok(());
        }
        let disk = &self.ports.disk;
        disk.create_dir_all(dir)?;
        let mut parent = dir.parent();
        while let Some(path) = parent.filter(|path| path.starts_with(&self.config.data_dir)) {
            disk.sync_dir(path)?;
            parent = path.parent();
        }
        self.prepared_dirs.lock().insert(dir.to_owned());
        Ok(())
    }

    /// A topic's directory is gone.
    pub fn forget_prepared(&self, topic_dir: &Path) {
        self.prepared_dirs.lock().retain(|dir| !dir.starts_with(topic_dir));
    }

    /// Is the node stopping?
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }
}
