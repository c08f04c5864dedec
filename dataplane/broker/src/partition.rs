//! One partition this node owns: its log with the stream table behind one writer, its leases, and the records on their way to it.
//!
//! A log is opened when it is first needed and closed when nobody has used it for a while; what a closed log would answer (is there
//! anything to deliver?) is remembered, so that an idle partition costs no file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tracing::{error, info, warn};
use veena_contract::{LogId, MoveToken, Offset, PartitionIndex, TopicId, limits, sabotage};
use veena_storage::partition::{LogReader, Marks, PartitionLog};

use crate::consume::lease::{LeaseTable, MonoMs, SettleState};
use crate::consume::promised::Promise;
use crate::core::Core;
use crate::owners::moves::mark;
use crate::produce::commit::Inbox;
use crate::produce::keyed::Counted;
use crate::produce::waiting::WaitingRecords;
use crate::scrub::Scrubbed;
use crate::settle::SettleStore;
use crate::stats::{LogNumbers, PartitionCounts};
use crate::streams::StreamTable;
use crate::usage::TenantUsage;

pub mod moving;

/// Which partition of which incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    /// The incarnation.
    pub topic: TopicId,
    /// Which of its partitions.
    pub index: PartitionIndex,
}

/// The log and the stream table: whoever holds these writes the partition.
pub struct Owner {
    /// The log.
    pub log: PartitionLog,
    /// What each stream has appended and committed here.
    pub table: StreamTable,
    /// Since when it is known how many partitions the topic has.
    pub counted: Counted,
}

/// Why a log cannot be opened now.
#[derive(Debug, thiserror::Error)]
enum OpenLogError {
    /// Its directory.
    #[error("its directory cannot be prepared")]
    Directory(#[source] std::io::Error),
    /// What is in it.
    #[error(transparent)]
    Log(veena_storage::partition::OpenError),
}

/// Where a partition's writer is.
pub enum OwnerSlot {
    /// Not open; opened when needed.
    Closed,
    /// Open.
    Open(Box<Owner>),
    /// Could not be opened, or latched; tried again from `retry_at` on.
    Failed {
        /// The latched log, still read from until it is opened anew.
        latched: Option<Box<Owner>>,
        /// When to try again.
        retry_at: MonoMs,
        /// How long the wait after the next failure is.
        backoff_ms: u64,
    },
    /// Stopped, to be handed over to another node.
    Frozen {
        /// The log as it ends, still read from.
        owner: Box<Owner>,
        /// By which move.
        token: MoveToken,
    },
    /// The topic is gone: never opened again.
    Gone,
}

/// What consumers of an open partition use.
pub struct Serving {
    /// Reads.
    pub reader: LogReader,
    /// Leases and settled offsets. Shared with the next life of the same log, when that is opened anew after a failure.
    pub leases: Arc<Mutex<LeaseTable>>,
}

impl Serving {
    fn numbers(&self, leases: &LeaseTable) -> LogNumbers {
        let log = self.reader.stats();
        LogNumbers {
            segments: log.segments,
            bytes: log.bytes,
            high_watermark: log.high_watermark,
            frontier: leases.frontier(),
            leased: leases.leased(),
            acked_ahead: leases.acked_ahead(),
        }
    }
}

/// One partition: of one that another node owns, only what was accepted here for it.
pub struct Partition {
    /// Which.
    pub id: PartitionId,
    /// Its directory.
    pub dir: PathBuf,
    /// Records accepted here and not yet committed.
    pub queue: WaitingRecords,
    /// Commits waiting for the writer.
    pub inbox: Mutex<Inbox>,
    /// The writer.
    pub owner: Arc<tokio::sync::Mutex<OwnerSlot>>,
    /// What it counts.
    pub counts: PartitionCounts,
    /// What its tenant has used.
    pub usage: Arc<TenantUsage>,
    serving: ArcSwapOption<Serving>,
    /// What a closed log would say.
    asleep: Mutex<Option<LogNumbers>>,
    is_settle_queued: AtomicBool,
    /// Opening the log anew has shown records that no publish told of.
    has_grown: AtomicBool,
    last_used: AtomicU64,
    scrubbed: Mutex<Option<Scrubbed>>,
    /// Leases that came with the partition from its former owner; there until the log is opened here.
    arrived: Mutex<Option<moving::Arrived>>,
}

/// The log cannot be opened now.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the partition's log cannot be opened now")]
pub struct NotOpen;

const OPEN_BACKOFF_MS_MIN: u64 = 250;
const OPEN_BACKOFF_MS_MAX: u64 = limits::REOPEN_WAIT_MS_MAX;

impl Partition {
    /// A partition whose log is not open yet.
    #[must_use]
    pub fn new(id: PartitionId, dir: PathBuf, usage: Arc<TenantUsage>) -> Self {
        Self {
            id,
            dir,
            queue: WaitingRecords::of(Arc::clone(&usage)),
            inbox: Mutex::default(),
            owner: Arc::new(tokio::sync::Mutex::new(OwnerSlot::Closed)),
            counts: PartitionCounts::default(),
            usage,
            serving: ArcSwapOption::empty(),
            asleep: Mutex::new(None),
            is_settle_queued: AtomicBool::new(false),
            has_grown: AtomicBool::new(false),
            last_used: AtomicU64::new(0),
            scrubbed: Mutex::new(None),
            arrived: Mutex::new(None),
        }
    }

    /// What consumers use, while the log is open. Never waits.
    pub fn serving(&self) -> Option<Arc<Serving>> {
        self.serving.load_full()
    }

    /// Is the log known to hold nothing to deliver while it is closed?
    pub fn is_asleep_and_empty(&self) -> bool {
        self.asleep.lock().is_some_and(|asleep| asleep.frontier >= asleep.high_watermark)
    }

    /// The log and its consumers in numbers; of a closed log, as it was closed. `None` when this process has not opened it yet.
    pub fn numbers(&self) -> Option<LogNumbers> {
        match self.serving() {
            Some(serving) => Some(serving.numbers(&serving.leases.lock())),
            None => *self.asleep.lock(),
        }
    }

    /// What the last pass of the scrubber found intact.
    pub fn scrubbed(&self) -> Option<Scrubbed> {
        *self.scrubbed.lock()
    }

    /// Notes that a pass of the scrubber has gone through.
    pub fn set_scrubbed(&self, scrubbed: Scrubbed) {
        *self.scrubbed.lock() = Some(scrubbed);
    }

    /// Notes a use, for the idle sweep.
    pub fn touch(&self, now: MonoMs) {
        self.last_used.store(now, Ordering::Relaxed);
    }

    /// Opens the log if it is not open.
    ///
    /// # Errors
    /// [`NotOpen`] while it cannot be opened; the next try is made after a back-off.
    pub async fn open(self: &Arc<Self>, core: &Arc<Core>) -> Result<Arc<Serving>, NotOpen> {
        if let Some(serving) = self.serving() {
            return Ok(serving);
        }
        self.reopen(core).await
    }

    /// Opens the log if it is not open, also when the reader at hand says that it was closed.
    ///
    /// # Errors
    /// [`NotOpen`] while it cannot be opened; the next try is made after a back-off.
    pub async fn reopen(self: &Arc<Self>, core: &Arc<Core>) -> Result<Arc<Serving>, NotOpen> {
        let mut slot = Arc::clone(&self.owner).lock_owned().await;
        let (partition, core_for_open, lane) = (Arc::clone(self), Arc::clone(core), core.usage.lane_of(&self.usage));
        core.ports.write_io.run_in(lane, 0, move || partition.open_slot(&core_for_open, &mut slot)).await
    }

    /// Blocking. Makes sure the slot is open; the caller holds it.
    pub fn open_slot(self: &Arc<Self>, core: &Core, slot: &mut OwnerSlot) -> Result<Arc<Serving>, NotOpen> {
        if !matches!(slot, OwnerSlot::Open(_)) && !core.may_open(self.id) {
            return Err(NotOpen);
        }
        self.open_own(core, slot)
    }

    /// As [`open_slot`](Self::open_slot), of a partition that is known to be this node's.
    fn open_own(self: &Arc<Self>, core: &Core, slot: &mut OwnerSlot) -> Result<Arc<Serving>, NotOpen> {
        let now = core.now_ms();
        let backoff_ms = match slot {
            OwnerSlot::Gone | OwnerSlot::Frozen { .. } => return Err(NotOpen),
            OwnerSlot::Failed { retry_at, .. } if *retry_at > now => return Err(NotOpen),
            OwnerSlot::Failed { backoff_ms, latched, .. } => {
                drop(latched.take());
                (*backoff_ms * 2).min(OPEN_BACKOFF_MS_MAX)
            }
            OwnerSlot::Open(_) => return self.serving().ok_or(NotOpen),
            OwnerSlot::Closed => OPEN_BACKOFF_MS_MIN,
        };
        let former = core.settle.promise(self.id);
        let promised = self.promised_end(former);
        let prepared = core.prepare_partition_dir(&self.dir).and_then(|()| mark::serve(core, self));
        let opened = prepared.map_err(OpenLogError::Directory).and_then(|()| {
            let ports = &core.ports;
            PartitionLog::open(
                Arc::clone(&ports.disk),
                &self.dir,
                core.config.partition,
                Arc::clone(&core.frames),
                ports.entropy.as_ref(),
                promised,
            )
            .map_err(OpenLogError::Log)
        });
        match opened {
            Ok((mut log, opened)) => {
                for damage in &opened.damage {
                    error!(partition = %self.dir.display(), damage = ?damage, "damage found in a partition log; what is around it is served");
                    core.metrics.damage_found.add(1);
                }
                self.compare_log(core, former, log.log_id(), opened.is_new);
                let serving = Arc::new(Serving { reader: log.reader(), leases: self.leases_for(core, &log, opened.is_new) });
                serving.leases.lock().jump_to(serving.reader.oldest());
                // A tail that survived a failed sync is visible now, and nobody was told.
                let shown = self.serving().map(|former| former.reader.high_watermark());
                if shown.is_some_and(|shown| serving.reader.high_watermark() > shown) {
                    self.has_grown.store(true, Ordering::Release);
                }
                if sabotage::is("keys_stay_behind") && self.is_arriving() {
                    log.forget_keys(u64::MAX);
                }
                let marks = if sabotage::is("streams_stay_behind") && self.is_arriving() { Marks::new() } else { opened.marks };
                let table = StreamTable::from_marks(log.log_id(), marks);
                core.fanout.suspects.on_opened(core, self.id, &table);
                *slot = OwnerSlot::Open(Box::new(Owner { log, table, counted: Counted::default() }));
                self.serving.store(Some(Arc::clone(&serving)));
                // Only now: who finds that nothing is arriving looks for a lease there.
                self.has_arrived();
                *self.asleep.lock() = None;
                self.touch(now);
                core.note_open(self.id);
                self.queue_settle(core);
                Ok(serving)
            }
            Err(failed) => {
                warn!(partition = %self.dir.display(), err = &failed as &dyn std::error::Error, "a partition log cannot be opened; tried again later");
                *slot = OwnerSlot::Failed { latched: None, retry_at: now + backoff_ms, backoff_ms };
                core.note_failed(self.id);
                Err(NotOpen)
            }
        }
    }

    /// Up to where the log must reach: what was kept, and in this process what was shown last.
    fn promised_end(&self, kept: Option<Promise>) -> Offset {
        let shown = self.serving().map_or(Offset(0), |former| former.reader.high_watermark());
        kept.map_or(shown, |kept| kept.end.max(shown))
    }

    /// A partition that has another log than the one it had. What is there is served, behind all offsets that were given. When the log was
    /// created anew, its promised records were reported with it.
    fn compare_log(&self, core: &Core, kept: Option<Promise>, log: LogId, is_new: bool) {
        let Some(kept) = kept.filter(|kept| kept.log != log && !is_new) else {
            return;
        };
        error!(
            partition = %self.dir.display(), was = %kept.log, is = %log, promised_end = kept.end.0,
            "the partition's log is not the one that was published here; what is there is served"
        );
        core.metrics.damage_found.add(1);
    }

    /// The leases of this log: those of its former life in this process, or what was kept on disk.
    fn leases_for(&self, core: &Core, log: &PartitionLog, is_new: bool) -> Arc<Mutex<LeaseTable>> {
        if let Some(former) = self.serving().filter(|former| former.reader.log_id() == log.log_id()) {
            return Arc::clone(&former.leases);
        }
        let state = self.restored_state(core, log.log_id(), log.log_end(), is_new);
        let mut leases = LeaseTable::restore(&state);
        if let Some(arrived) = &*self.arrived.lock() {
            leases.take_over(arrived);
        }
        Arc::new(Mutex::new(leases))
    }

    fn restored_state(&self, core: &Core, log: LogId, log_end: Offset, is_new: bool) -> SettleState {
        let mut state = core.settle.state(log).unwrap_or_default();
        if state.frontier.max(state.high_watermark) > log_end.0 && !is_new {
            error!(
                partition = %self.dir.display(), frontier = state.frontier, high_watermark = state.high_watermark, log_end = log_end.0,
                "what was published and settled reaches beyond the log's end: the log has lost data; new messages are delivered from its end"
            );
            core.metrics.damage_found.add(1);
        }
        if state.frontier > log_end.0 && !is_new {
            state = SettleState { frontier: log_end.0, ..SettleState::default() };
        }
        state.ahead.retain(|&(_, end)| end <= log_end.0);
        state
    }

    /// The writer has failed: nothing more is committed until the log is opened anew. Leases and reads go on.
    pub fn fail_slot(&self, core: &Core, slot: &mut OwnerSlot) {
        let latched = match std::mem::replace(slot, OwnerSlot::Closed) {
            OwnerSlot::Open(owner) => Some(owner),
            OwnerSlot::Failed { latched, .. } => latched,
            OwnerSlot::Closed | OwnerSlot::Frozen { .. } | OwnerSlot::Gone => None,
        };
        *slot = OwnerSlot::Failed { latched, retry_at: core.now_ms() + OPEN_BACKOFF_MS_MIN, backoff_ms: OPEN_BACKOFF_MS_MIN };
        info!(partition = %self.dir.display(), "a partition log takes no more commits after a failure and will be opened anew");
    }

    /// Ends all leases: their owner's process, or its log, has ended (design I4).
    fn stop_serving(&self, core: &Core) {
        if let Some(serving) = self.serving.swap(None) {
            self.keep_settle(&core.settle, &serving, true);
            core.note_closed(self.id);
        }
    }

    /// Closes an idle log. Refuses while anything is leased or on its way.
    ///
    /// Blocking. Says whether it closed.
    pub fn close_if_idle(&self, core: &Core, slot: &mut OwnerSlot) -> bool {
        let Some(serving) = self.serving().filter(|_| !matches!(slot, OwnerSlot::Frozen { .. })) else {
            return false;
        };
        let is_quiet = self.queue.lock().is_empty() && self.inbox.lock().is_empty();
        let mut leases = serving.leases.lock();
        leases.expire(core.now_ms());
        if !is_quiet || leases.leased() > 0 {
            return false;
        }
        let numbers = serving.numbers(&leases);
        // From here the reader says that it is closed: who reserves next finds out before it hands anything over.
        *slot = OwnerSlot::Closed;
        drop(leases);
        *self.asleep.lock() = Some(numbers);
        self.stop_serving(core);
        true
    }

    /// The topic is gone: the log is closed for good.
    pub fn close_for_ever(&self, core: &Core, slot: &mut OwnerSlot) {
        if let Some(serving) = self.serving.swap(None) {
            core.settle.forget(serving.reader.log_id());
            core.note_closed(self.id);
        }
        if let Some(kept) = core.settle.promise(self.id) {
            core.settle.forget(kept.log);
        }
        core.settle.forget_promise(self.id);
        core.forget_failed(self.id);
        *slot = OwnerSlot::Gone;
    }

    /// Has opening the log anew shown records that no publish told of? Asked once.
    pub fn take_grown(&self) -> bool {
        self.has_grown.swap(false, Ordering::AcqRel)
    }

    /// When the log was last used.
    pub fn last_used(&self) -> MonoMs {
        self.last_used.load(Ordering::Relaxed)
    }

    /// Puts this partition on the list of those whose settle state is written next.
    pub fn queue_settle(self: &Arc<Self>, core: &Core) {
        if !self.is_settle_queued.swap(true, Ordering::AcqRel) {
            core.settle.queue(Arc::clone(self));
        }
    }

    /// Takes the partition off that list and hands over what is to be written.
    pub fn take_settle(&self, store: &SettleStore) {
        self.is_settle_queued.store(false, Ordering::Release);
        if let Some(serving) = self.serving() {
            self.keep_settle(store, &serving, false);
        }
    }

    /// Hands over the settle state if it has changed (or in any case), and how far the log is published if that has changed. Under the
    /// lock, so that no older state overtakes a newer one.
    fn keep_settle(&self, store: &SettleStore, serving: &Serving, must_keep: bool) {
        let now = Promise { log: serving.reader.log_id(), end: serving.reader.high_watermark() };
        let mut leases = serving.leases.lock();
        let is_new = |kept: Promise| kept.log != now.log || kept.end < now.end;
        let has_moved = now.end > Offset(0) && store.promise(self.id).is_none_or(is_new);
        if leases.take_dirty() || has_moved || must_keep {
            store.keep(now.log, &leases.state(now.end));
        }
        if has_moved {
            store.keep_promise(self.id, &now);
        }
    }
}

#[cfg(test)]
mod tests;
