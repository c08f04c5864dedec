//! The engine as its users see it: every operation of the data plane, by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::{error, info, warn};
use veena_contract::{
    BoxFuture, CatalogView, ChildLink, DrainMark, KeyId, Offset, PartitionIndex, PeerRefusal, PeerRequest, TenantId, TopicName, WalSeq,
};
use veena_storage::disk::timed::TimedDisk;
use veena_storage::journal::{Journal, JournalConfig};
use veena_storage::offline::carry;
use veena_storage::partition::FrameCache;
use veena_storage::wal::parked::ParkedFile;
use veena_storage::wal::{Wal, WalStatus};

pub use crate::consume::deliver::Deliveries;

use crate::consume::ack::{self, Settled};
use crate::consume::waiters::Wanted;
use crate::consume::{park as parking, reserve};
use crate::core::Core;
use crate::errors::{BatchError, ConsumeError, ControlError, ProduceError, ReplayError, SettleError};
use crate::fanout::marks;
use crate::key_uses::KeyUses;
use crate::message::{ChildLag, Committed, ConsumeRequest, Delivery, NewMessage, PartitionStats, ReceiptHandle, Settle};
use crate::metrics::{BrokerMetrics, Histogram};
use crate::owners::moves::MoveProgress;
use crate::owners::moves::ended::EndedMove;
use crate::partition::Partition;
use crate::ports::{BrokerConfig, BrokerPorts};
use crate::produce::park::{self, ParkedFiles};
use crate::produce::{accept, backlog, committed, dispatch, intake};
use crate::quota::Quotas;
use crate::quota::exchange::{self, KeysEverywhere, UsageEverywhere};
use crate::quota::stored::StoredKey;
use crate::settle::SettleStore;
use crate::stats::{CursorNumbers, DirectoryNumbers, PartitionNumbers, TopicNumbers};
use crate::sweep::Quarantined;
use crate::tasks::OnExit;
use crate::traces::Traces;
use crate::usage::Usage;
use crate::{layout, owners, scrub, settle, sweep, traces, usage};

/// How long after progress a checkpoint is written.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(200);

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A directory cannot be made.
    #[error("the data directory cannot be prepared: {0}")]
    Directory(#[from] std::io::Error),
    /// The WAL.
    #[error(transparent)]
    Wal(#[from] veena_storage::wal::WalOpenError),
    /// Records set aside by a former life.
    #[error(transparent)]
    Parked(#[from] veena_storage::wal::parked::ParkedOpenError),
    /// The settle journal.
    #[error(transparent)]
    Journal(#[from] veena_storage::journal::JournalOpenError),
}

/// One node's engine. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    core: Arc<Core>,
}

impl Broker {
    /// Opens everything below the data directory and starts to dispatch what is left from a former life. Partition logs are opened when
    /// they are needed.
    ///
    /// # Errors
    /// [`OpenError`], naming the file.
    pub async fn open(config: BrokerConfig, ports: BrokerPorts) -> Result<Self, OpenError> {
        let io = ports.write_io.clone();
        let (core, parked, from, end) = io.run(move || open_blocking(config, ports)).await?;
        let core = Arc::new(core);
        // Before any record of the WAL: what is in files is older.
        for file in parked {
            park::attach(&core, file);
        }
        let sink = Arc::downgrade(&core);
        core.wal.start(
            &core.ports.write_io,
            Arc::new(move |records| {
                if let Some(core) = sink.upgrade() {
                    core.wal_pulse.beat(core.now_ms());
                    dispatch::enqueue(&core, records);
                }
            }),
        );
        let tasks = &core.ports.tasks;
        tasks.spawn("settle", OnExit::Shutdown, settle::run(Arc::clone(&core)));
        tasks.spawn("settle-sync", OnExit::Shutdown, settle::run_syncs(Arc::clone(&core)));
        tasks.spawn("sweep", OnExit::Shutdown, sweep::run(Arc::clone(&core)));
        tasks.spawn("retention", OnExit::Shutdown, sweep::run_retention(Arc::clone(&core)));
        tasks.spawn("catalog", OnExit::Shutdown, sweep::follow_catalog(Arc::clone(&core)));
        tasks.spawn("stream-marks", OnExit::Shutdown, marks::run(Arc::clone(&core)));
        tasks.spawn("usage", OnExit::Shutdown, usage::run(Arc::clone(&core)));
        if core.ports.peers.is_some() {
            tasks.spawn("quota", OnExit::Shutdown, exchange::run(Arc::clone(&core)));
        }
        tasks.spawn("scrub", OnExit::Shutdown, scrub::run(Arc::clone(&core)));
        tasks.spawn("park", OnExit::Shutdown, park::run(Arc::clone(&core)));
        tasks.spawn("checkpoint", OnExit::Shutdown, checkpoint(Arc::clone(&core)));
        if !core.moved.is_known() {
            tasks.spawn("backlog", OnExit::Shutdown, backlog::run(Arc::clone(&core), from, end));
        }
        Ok(Self { core })
    }

    /// Refuses new produce and answers parked consumers; what is in flight goes on.
    pub fn begin_stop(&self) {
        parking::stop_waiting(&self.core);
    }

    /// Stops the engine: tasks end, the WAL is drained, settle state is flushed and synced. Says whether all of it is durable; when not, acks
    /// of the last moments come again. Idempotent.
    pub async fn stop(&self) -> bool {
        self.begin_stop();
        let core = &self.core;
        let wal = core.wal.clone();
        core.ports.write_io.run(move || wal.close()).await;
        core.ports.tasks.stop().await;
        let worker = Arc::clone(core);
        let is_durable = core
            .ports
            .write_io
            .run(move || {
                for (_, topic) in worker.topics.all() {
                    for partition in topic.owned() {
                        partition.queue_settle(&worker);
                    }
                }
                let is_durable = settle::flush(&worker);
                usage::save_last(&worker);
                let below = worker.dispatch.done_below(&worker.orphans);
                if let Err(failed) = worker.wal.checkpoint(below) {
                    error!(error = %failed, "the last checkpoint could not be written; records are dispatched again and recognised");
                }
                is_durable
            })
            .await;
        if is_durable {
            info!("the engine has stopped");
        } else {
            error!("the engine has stopped, and its last settle state is not durable: messages that were acked may come again");
        }
        is_durable
    }

    /// The catalog as this node sees it.
    #[must_use]
    pub fn catalog(&self) -> Arc<CatalogView> {
        self.core.ports.catalog.view()
    }

    /// The engine's counters.
    #[must_use]
    pub fn metrics(&self) -> &BrokerMetrics {
        &self.core.metrics
    }

    /// The WAL's state.
    #[must_use]
    pub fn wal_status(&self) -> WalStatus {
        self.core.wal.status()
    }

    /// How many accepted records are not committed at their owners yet; those of a former life still unread in the WAL are not counted.
    #[must_use]
    pub fn undispatched(&self) -> usize {
        self.core.dispatch.queued()
    }

    /// Is this node being taken out of its cluster, and has it nothing left that was produced at it? What it owns is another matter.
    #[must_use]
    pub fn drained(&self) -> Option<DrainMark> {
        intake::drained(&self.core)
    }

    /// Does this node know that it is being taken out of its cluster?
    #[must_use]
    pub fn is_draining(&self) -> bool {
        intake::is_draining(&self.core)
    }

    /// How many produces this member of a cluster has let in and not answered yet.
    #[must_use]
    pub fn produces_under_way(&self) -> usize {
        self.core.intake.under_way()
    }

    /// Every directory that was set aside, oldest first. `None` when the disk does not tell it soon. Reads them all.
    pub async fn quarantined(&self) -> Option<Vec<Quarantined>> {
        sweep::tell_quarantined(&self.core).await
    }

    /// How many consumers wait for a message of this node now; those of other nodes too.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.core.topics.all().iter().map(|(_, topic)| topic.waiters.lock().parked()).sum()
    }

    /// The same by tenant.
    #[must_use]
    pub fn parked_by_tenant(&self) -> BTreeMap<TenantId, u64> {
        let mut parked = BTreeMap::new();
        for (_, topic) in self.core.topics.all() {
            let waiting = topic.waiters.lock().parked();
            if waiting > 0 {
                *parked.entry(topic.record.load().tenant.clone()).or_default() += waiting as u64;
            }
        }
        parked
    }

    /// How many partition logs are open.
    #[must_use]
    pub fn open_logs(&self) -> usize {
        self.core.open_logs().len()
    }

    /// Every living topic that this process has used, by incarnation. Opens no log and keeps none warm.
    #[must_use]
    pub fn topic_numbers(&self) -> Vec<TopicNumbers> {
        let view = self.catalog();
        let numbers = |partition: Arc<Partition>| {
            let log = partition.numbers();
            let is_used = log.is_some() || !partition.counts.is_untouched();
            is_used.then(|| PartitionNumbers::of(partition.id.index, &partition.counts, log))
        };
        let living = self.core.topics.all().into_iter().filter_map(|(id, topic)| {
            let record = view.topic_by_id(id)?;
            let partitions = topic.partitions().into_iter().filter_map(numbers).collect();
            Some(TopicNumbers { tenant: record.tenant.clone(), name: record.name.clone(), partitions })
        });
        living.collect()
    }

    /// Every cursor of this node. Opens no log.
    #[must_use]
    pub fn cursor_numbers(&self) -> Vec<CursorNumbers> {
        self.core.fanout.numbers(&self.core, &self.catalog())
    }

    /// What this node still has of these tenants, which are being deleted, in order; `None` if the disk does not tell it soon.
    pub async fn traces_of(&self, tenants: &[TenantId]) -> Option<Vec<Traces>> {
        traces::of(&self.core, tenants).await
    }

    /// The data directory, as of the last sweep.
    #[must_use]
    pub fn directory_numbers(&self) -> DirectoryNumbers {
        let read = |number: &std::sync::atomic::AtomicU64| number.load(std::sync::atomic::Ordering::Relaxed);
        DirectoryNumbers {
            available_bytes: read(&self.core.disk_available_bytes),
            quarantined_bytes: read(&self.core.quarantined_bytes),
            parked_bytes: self.core.parked.bytes(),
        }
    }

    /// WAL-first produce: answers once synced.
    ///
    /// # Errors
    /// [`ProduceError`].
    pub async fn produce(&self, tenant: &TenantId, topic: &TopicName, message: NewMessage) -> Result<(), ProduceError> {
        let _entered = intake::enter(&self.core)?;
        accept::produce(&self.core, tenant, topic, message).await
    }

    /// All or none, one WAL append.
    ///
    /// # Errors
    /// [`BatchError`] with the first message that is refused.
    pub async fn produce_batch(&self, tenant: &TenantId, topic: &TopicName, messages: Vec<NewMessage>) -> Result<(), BatchError> {
        let _entered = intake::enter(&self.core).map_err(|error| BatchError { index: 0, error })?;
        accept::produce_batch(&self.core, tenant, topic, messages).await
    }

    /// Owner-synchronous produce: one result per message, in request order.
    ///
    /// # Errors
    /// [`BatchError`] when the whole batch is refused before anything is stored.
    pub async fn produce_committed(
        &self,
        tenant: &TenantId,
        topic: &TopicName,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Committed, ProduceError>>, BatchError> {
        let _entered = intake::enter(&self.core).map_err(|error| BatchError { index: 0, error })?;
        committed::produce_committed(&self.core, tenant, topic, messages).await
    }

    /// Leases messages. Empty when the wait ran out. Dropping the future releases everything.
    ///
    /// # Errors
    /// [`ConsumeError`].
    pub async fn consume(&self, request: ConsumeRequest) -> Result<Deliveries, ConsumeError> {
        reserve::consume(&self.core, &request).await
    }

    /// Reads one message without a lease; `None` at or above the high watermark.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub async fn replay(
        &self,
        tenant: &TenantId,
        topic: &TopicName,
        partition: PartitionIndex,
        offset: Offset,
    ) -> Result<Option<Delivery>, ReplayError> {
        reserve::replay(&self.core, tenant, topic, partition, offset).await
    }

    /// Acks, extends or hands back one lease. Waits only for another node.
    ///
    /// # Errors
    /// [`SettleError`].
    pub async fn settle(&self, tenant: &TenantId, topic: &TopicName, handle: ReceiptHandle, how: Settle) -> Result<(), SettleError> {
        if let Settled::Here(result) = ack::settle(&self.core, tenant, topic, handle, how) {
            return result;
        }
        let results = Box::pin(owners::settle::settle_each(&self.core, tenant, topic, &[handle], how)).await;
        results.into_iter().next().unwrap_or(Err(SettleError::NotReached))
    }

    /// Acks, extends or hands back many leases; one result for each, in their order. Other nodes are asked side by side.
    pub async fn settle_batch(
        &self,
        tenant: &TenantId,
        topic: &TopicName,
        handles: &[ReceiptHandle],
        how: Settle,
    ) -> Vec<Result<(), SettleError>> {
        Box::pin(owners::settle::settle_each(&self.core, tenant, topic, handles, how)).await
    }

    /// Statistics of the partitions asked for (all, or one); `None` for one whose log cannot be opened, or whose owner cannot be asked, now.
    ///
    /// # Errors
    /// [`ConsumeError`] for an unknown topic or partition.
    pub async fn describe(
        &self,
        tenant: &TenantId,
        name: &TopicName,
        only: Option<PartitionIndex>,
    ) -> Result<Vec<Option<PartitionStats>>, ConsumeError> {
        let topic = reserve::resolve(&self.core, tenant, name).ok_or(ConsumeError::TopicNotFound)?;
        let count = topic.record.load().partitions;
        if let Some(index) = only.filter(|index| index.get() >= count) {
            return Err(ConsumeError::NoSuchPartition { partition: index.get(), count });
        }
        Ok(owners::look::describe_all(&self.core, &topic, only.map_or(Wanted::Any, Wanted::Only)).await)
    }

    /// High watermark of every partition: the exact attach point for a new child.
    ///
    /// # Errors
    /// [`ControlError`] when a log cannot be asked; nothing may be linked then.
    pub async fn attach_offsets(&self, tenant: &TenantId, name: &TopicName) -> Result<Vec<Offset>, ControlError> {
        let Some(topic) = reserve::resolve(&self.core, tenant, name) else {
            return Err(ControlError::Propose(veena_contract::CommandError::TopicNotFound.into()));
        };
        let stats = owners::look::describe_all(&self.core, &topic, Wanted::Any).await;
        let offset = |(index, stats): (usize, Option<PartitionStats>)| match stats {
            Some(stats) => Ok(stats.high_watermark),
            None => Err(ControlError::OwnerUnavailable {
                reason: format!("partition {index} of {name} cannot be asked for its high watermark"),
            }),
        };
        stats.into_iter().enumerate().map(offset).collect()
    }

    /// How far each child is behind, over all partitions of the parent that can be asked.
    pub async fn child_lags(&self, tenant: &TenantId, parent: &TopicName, children: &[ChildLink]) -> Vec<ChildLag> {
        let Some(topic) = reserve::resolve(&self.core, tenant, parent) else {
            return Vec::new();
        };
        owners::look::child_lags(&self.core, &topic, children).await
    }

    /// How far the partitions that come to this node have got.
    #[must_use]
    pub fn moves(&self) -> Vec<MoveProgress> {
        self.core.moves.progress()
    }

    /// The moves that this node has ended since they could not be completed, oldest first; the last ones of this process.
    #[must_use]
    pub fn ended_moves(&self) -> Vec<EndedMove> {
        self.core.moves.ended()
    }

    /// Serves a call of another node; `None` if it is not one of the engine's.
    #[must_use]
    pub fn serve_peer(&self, request: PeerRequest) -> Option<BoxFuture<'_, Result<Bytes, PeerRefusal>>> {
        owners::serve(&self.core, request)
    }

    /// What tenants have used on this node.
    #[must_use]
    pub fn usage(&self) -> &Usage {
        &self.core.usage
    }

    /// What a tenant, or every tenant, has used on all nodes.
    pub async fn usage_everywhere(&self, tenant: Option<&TenantId>) -> UsageEverywhere {
        exchange::used_everywhere(&self.core, tenant).await
    }

    /// When keys were last used on this node.
    #[must_use]
    pub fn key_uses(&self) -> &KeyUses {
        &self.core.key_uses
    }

    /// When these keys were last used on any node.
    pub async fn keys_used_everywhere(&self, keys: Vec<KeyId>) -> KeysEverywhere {
        exchange::keys_used_everywhere(&self.core, keys).await
    }

    /// What tenants with limits use each second on this node.
    #[must_use]
    pub fn quota(&self) -> &Quotas {
        &self.core.quota
    }

    /// What is stored on this node, as of the last tally: by tenant, and by topic where that has limits.
    #[must_use]
    pub fn stored_here(&self) -> BTreeMap<StoredKey, u64> {
        self.core.stored_here.lock().clone()
    }

    /// Microseconds on the engine's clock, for [`quota`](Self::quota).
    #[must_use]
    pub fn now_us(&self) -> u64 {
        self.core.now_us()
    }

    /// Why not everything is as promised now: a WAL that is latched or stands still, a full disk, acks that cannot be written, stopping. The
    /// metastore is judged elsewhere.
    #[must_use]
    pub fn not_ready_reason(&self) -> Option<String> {
        if self.core.is_stopping() {
            return Some("the node is stopping".into());
        }
        let is_low = self.core.is_disk_low.load(std::sync::atomic::Ordering::Relaxed);
        let reasons: Vec<String> = [
            self.core.wal.status().latched.map(|reason| format!("ingress wal: {reason}")),
            self.core.is_wal_stalled().then(|| "ingress wal: the disk does not answer".into()),
            is_low.then(|| "the data disk has less free room than its reserve".into()),
            self.core.settle.failing().map(|reason| format!("acks are in memory alone, the settle journal cannot be written: {reason}")),
        ]
        .into_iter()
        .flatten()
        .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

type Opened = (Core, Vec<Arc<ParkedFile>>, WalSeq, WalSeq);

fn open_blocking(config: BrokerConfig, ports: BrokerPorts) -> Result<Opened, OpenError> {
    let disk = &ports.disk;
    for dir in [
        layout::ingress_dir(&config.data_dir),
        layout::parked_dir(&config.data_dir),
        layout::settle_dir(&config.data_dir),
        layout::topics_dir(&config.data_dir),
        layout::quarantine_dir(&config.data_dir),
    ] {
        disk.create_dir_all(&dir)?;
    }
    disk.sync_dir(&config.data_dir)?;
    if let Err(failed) = carry::remove_unfinished(disk.as_ref(), &layout::ingress_dir(&config.data_dir)) {
        warn!(err = &failed as &dyn std::error::Error, "what a repair made and did not finish could not be removed, and takes room");
    }
    let wal_sync_seconds = Arc::new(Histogram::default());
    let observed = Arc::clone(&wal_sync_seconds);
    let wal_disk = Arc::new(TimedDisk { inner: Arc::clone(disk), on_sync: Arc::new(move |took| observed.observe(took)) });
    let (wal, opened) = Wal::open(wal_disk, &layout::ingress_dir(&config.data_dir), config.wal, ports.entropy.as_ref())?;
    for damage in &opened.damage {
        error!(damage = ?damage, "damage found in the ingress WAL");
    }
    let (parked, files, strangers) = ParkedFiles::open(disk.as_ref(), &layout::parked_dir(&config.data_dir), &opened)?;
    let (journal, kept) = Journal::open(Arc::clone(disk), &layout::settle_dir(&config.data_dir), JournalConfig::default())?;
    let frames = Arc::new(FrameCache::new(veena_contract::limits::READ_CACHE_BYTES_MAX));
    let mut core = Core::new(config, ports, wal, &opened, SettleStore::new(journal, kept), frames, parked);
    core.metrics.wal_sync_seconds = wal_sync_seconds;
    usage::load(&core);
    core.metrics.damage_found.add(opened.damage.len() as u64 + strangers);
    Ok((core, files, opened.checkpoint, opened.end))
}

/// Moves the WAL's checkpoint behind what is committed, some time after there was progress.
async fn checkpoint(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    while !token.is_cancelled() {
        tokio::select! {
            () = core.dispatch.progressed() => {}
            () = token.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(CHECKPOINT_PAUSE) => {}
            () = token.cancelled() => return,
        }
        let below = core.dispatch.done_below(&core.orphans);
        if below <= core.dispatch.checkpoint() {
            continue;
        }
        let wal = core.wal.clone();
        match core.ports.write_io.run(move || wal.checkpoint(below)).await {
            Ok(()) => {
                core.dispatch.set_checkpoint(below);
                core.raise_stream_floor(below);
                core.moved.forget_below(core.wal.oldest());
            }
            Err(failed) => error!(error = %failed, "a checkpoint could not be written; records are kept longer"),
        }
    }
}
