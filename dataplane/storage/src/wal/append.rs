//! Staging records for the next group, and the log's life from start to close. Groups are written and synced in `flush`.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};
use tracing::error;
use veena_contract::{StreamId, WalSeq, limits};

use super::flush::{FLIGHTS_MAX, Turn};
use super::format::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, record_bytes};
use super::landing::{Flights, Written};
use super::segments::{Active, Segment, Spares};
use super::{AppendError, Handle, OnDurable, StageError, Staged, Wal, WalConfig, WalEntries, WalIoError, WalRange, WalStatus, WalStream};
use crate::disk::{DirLock, Disk};
use crate::io::Io;
use crate::lanes::{Lane, Lanes, Weigh};

pub(super) type Outcome = Result<WalRange, AppendError>;

/// This part of the room for staged records is left to lanes that have less than as much of it.
const LIGHT_LANES_PART: usize = 8;

/// Records of one caller, and whom to tell.
pub(super) struct Call {
    pub entries: WalEntries,
    pub bytes: usize,
    pub done: oneshot::Sender<Outcome>,
}

impl Weigh for Call {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

#[derive(Default)]
pub(super) struct Staging {
    pub calls: Lanes<Call>,
    /// Staged and in flight.
    pub bytes: usize,
    /// Groups that are being written or synced, and the calls in them.
    pub in_flight: usize,
    pub calls_in_flight: usize,
    /// The next group needs a new segment, and the groups in flight must land first.
    pub must_drain: bool,
    /// Threads or tasks that flush.
    pub flushers: usize,
    pub is_closing: bool,
}

/// Where the log's segments are. Locked for moments only, never across file calls of the append path.
pub(super) struct Log {
    pub segments: VecDeque<Segment>,
    pub active: Option<Active>,
    pub next_generation: u64,
    /// The sequence of the next record to be written; what is in flight stands below it and is not durable yet.
    pub next_seq: WalSeq,
    /// The generation of the segment where the durable part ends, and the place in it.
    pub durable_at: (u64, u64),
}

pub(super) struct Shared {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
    pub config: WalConfig,
    pub wal_id: u64,
    pub stream: StreamId,
    pub ordinal: u32,
    /// Every stream of checkpoint..opened end, by ordinal.
    pub former: Vec<WalStream>,
    pub opened_end: WalSeq,
    pub log: Mutex<Log>,
    pub spares: Spares,
    pub checkpoint: Mutex<WalSeq>,
    pub hints: Mutex<VecDeque<super::backlog::Hint>>,
    pub live_bytes: AtomicU64,
    pub durable_end: AtomicU64,
    pub staging: Mutex<Staging>,
    pub staged: Condvar,
    pub staged_inline: Notify,
    /// The buffer a group is encoded into. Whoever holds it writes; groups are written in order of sequence.
    pub buffer: Mutex<Vec<u8>>,
    pub flights: Mutex<Flights>,
    /// Are groups written by threads of this log? Then only a slow disk gets several at once.
    pub has_threads: AtomicBool,
    /// How long a sync took lately, on average, in microseconds.
    pub sync_us: AtomicU64,
    is_latched: AtomicBool,
    latch: Mutex<Option<String>>,
    pub syncs: AtomicU64,
    pub records: AtomicU64,
    lock: Mutex<Option<Box<dyn DirLock>>>,
}

/// What `open` found, as the log begins with it.
pub(super) struct Opening {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
    pub config: WalConfig,
    pub wal_id: u64,
    pub stream: StreamId,
    pub ordinal: u32,
    pub former: Vec<WalStream>,
    pub checkpoint: WalSeq,
    pub end: WalSeq,
    pub log: Log,
    pub spares: Spares,
    pub lock: Box<dyn DirLock>,
}

impl Shared {
    pub fn new(opening: Opening) -> Self {
        let live_bytes = opening.log.segments.iter().map(|segment| segment.used).sum();
        Self {
            disk: opening.disk,
            dir: opening.dir,
            config: opening.config,
            wal_id: opening.wal_id,
            stream: opening.stream,
            ordinal: opening.ordinal,
            former: opening.former,
            opened_end: opening.end,
            log: Mutex::new(opening.log),
            spares: opening.spares,
            checkpoint: Mutex::new(opening.checkpoint),
            hints: Mutex::default(),
            live_bytes: AtomicU64::new(live_bytes),
            durable_end: AtomicU64::new(opening.end.0),
            staging: Mutex::default(),
            staged: Condvar::new(),
            staged_inline: Notify::new(),
            buffer: Mutex::default(),
            flights: Mutex::default(),
            has_threads: AtomicBool::new(false),
            sync_us: AtomicU64::new(0),
            is_latched: AtomicBool::new(false),
            latch: Mutex::new(None),
            syncs: AtomicU64::new(0),
            records: AtomicU64::new(0),
            lock: Mutex::new(Some(opening.lock)),
        }
    }

    pub fn durable_end(&self) -> WalSeq {
        WalSeq(self.durable_end.load(Ordering::Acquire))
    }

    pub fn begin_close(&self) {
        self.staging.lock().is_closing = true;
        self.staged.notify_all();
        self.staged_inline.notify_waiters();
        self.spares.close();
    }

    /// Something is there for a flusher.
    pub fn wake_one(&self) {
        self.staged.notify_one();
        self.staged_inline.notify_one();
    }

    pub fn is_latched(&self) -> bool {
        self.is_latched.load(Ordering::Acquire)
    }

    pub fn latch(&self, reason: &WalIoError) {
        error!(err = reason as &dyn std::error::Error, "ingress log latched: it takes no more records until a restart");
        self.set_latched(format!("{reason}: {}", reason.source));
    }

    pub fn latch_panicked(&self, what: &str) {
        error!("ingress log latched: {what}; it takes no more records until a restart");
        self.set_latched(what.to_owned());
    }

    fn set_latched(&self, reason: String) {
        self.latch.lock().get_or_insert(reason);
        self.is_latched.store(true, Ordering::Release);
    }

    fn stage(&self, lane: Lane, entries: WalEntries) -> Result<Staged, StageError> {
        let bytes = self.measure(&entries)?;
        if self.is_latched() {
            return Err(StageError::Latched);
        }
        let (done, outcome) = oneshot::channel();
        let mut staging = self.staging.lock();
        if staging.is_closing {
            return Err(StageError::Closed);
        }
        let staged = staging.bytes + bytes;
        let live = self.live_bytes.load(Ordering::Relaxed);
        if staged > self.config.staged_bytes_max || live.saturating_add(staged as u64) > self.config.undispatched_bytes_max {
            return Err(StageError::Full);
        }
        // What is left of the room in the end is for those that have little of it.
        let kept = self.config.staged_bytes_max / LIGHT_LANES_PART;
        if lane != Lane::default() && staged > self.config.staged_bytes_max - kept && staging.calls.bytes_of(lane) + bytes > kept {
            return Err(StageError::Full);
        }
        staging.bytes = staged;
        let is_awake = !staging.calls.is_empty() && self.may_begin(&staging, Turn::Staged);
        staging.calls.push(lane, Call { entries, bytes, done });
        let must_wake = !is_awake && self.may_begin(&staging, Turn::Staged);
        drop(staging);
        if must_wake {
            self.wake_one();
        }
        Ok(Staged { outcome })
    }

    fn measure(&self, entries: &WalEntries) -> Result<usize, StageError> {
        let mut bytes = 0;
        for entry in entries {
            if entry.body.len() > limits::WAL_RECORD_BYTES_MAX - RECORD_HEADER_BYTES {
                return Err(StageError::TooLarge);
            }
            bytes += record_bytes(entry.body.len());
        }
        // a call never spans segments, so that a full disk refuses it whole
        let segment_room = self.config.segment_bytes.saturating_sub(SEGMENT_HEADER_BYTES as u64);
        if entries.is_empty() || bytes as u64 > segment_room || u32::try_from(entries.len()).is_err() {
            return Err(StageError::TooLarge);
        }
        Ok(bytes)
    }
}

impl Wal {
    /// Stages records for the next group. Never blocks. They get consecutive sequences.
    ///
    /// # Errors
    /// [`StageError`]; nothing was written.
    pub fn stage(&self, entries: WalEntries) -> Result<Staged, StageError> {
        self.handle.shared.stage(Lane::default(), entries)
    }

    /// As [`stage`](Self::stage), in a lane: lanes take turns, however much each stages, and one that has little here finds room when one that
    /// has much does not.
    ///
    /// # Errors
    /// As there.
    pub fn stage_in(&self, lane: Lane, entries: WalEntries) -> Result<Staged, StageError> {
        self.handle.shared.stage(lane, entries)
    }

    /// Starts writing. `on_durable` gets every group in order of sequence, after its sync and before its tickets complete; it runs on the
    /// thread that synced and must be quick. There are threads that flush and one that prepares segments; inline, tasks of this runtime.
    ///
    /// # Panics
    /// When called twice, or when a thread cannot be started.
    pub fn start(&self, io: &Io, on_durable: OnDurable) {
        self.set_on_durable(on_durable);
        let shared = Arc::clone(&self.handle.shared);
        shared.staging.lock().flushers = FLIGHTS_MAX;
        if io.is_inline() {
            (0..FLIGHTS_MAX).for_each(|slot| start_inline(Arc::clone(&shared), slot));
            return;
        }
        shared.has_threads.store(true, Ordering::Relaxed);
        shared.spares.add_maker();
        let maker = Arc::clone(&shared);
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(body).expect("invariant: a node has room for its threads at start")
        };
        let mut threads = self.handle.threads.lock();
        threads.push(spawn("wal-prepare", Box::new(move || maker.run_maker())));
        for slot in 0..FLIGHTS_MAX {
            let flusher = Arc::clone(&shared);
            threads.push(spawn("wal-flush", Box::new(move || flusher.run_flusher(slot))));
        }
    }

    /// As [`start`](Self::start), but groups are written only by [`flush_now`](Self::flush_now). For tests that choose every step.
    ///
    /// # Panics
    /// When called twice.
    pub fn start_by_hand(&self, on_durable: OnDurable) {
        self.set_on_durable(on_durable);
    }

    /// Writes what is staged, here and now. Blocks.
    pub fn flush_now(&self) {
        while self.handle.shared.flush_round(0) {}
    }

    /// The first half of a flush: writes the next group, if one is staged and may be written now. For tests that choose every step. Blocks.
    #[must_use]
    pub fn write_now(&self) -> Option<Written> {
        self.handle.shared.write_one(0)
    }

    /// The second half of a flush: syncs the group, and tells whoever may be told now. Blocks.
    pub fn sync_now(&self, written: &Written) {
        self.handle.shared.land(written);
    }

    fn set_on_durable(&self, on_durable: OnDurable) {
        let mut flights = self.handle.shared.flights.lock();
        assert!(!flights.has_started, "a WAL is started once");
        flights.has_started = true;
        flights.on_durable = Some(on_durable);
    }

    /// Does anything wait for a sync?
    #[must_use]
    pub fn has_staged(&self) -> bool {
        self.handle.shared.staging.lock().bytes > 0
    }

    /// How many live bytes a record at `from` keeps from being recycled.
    #[must_use]
    pub fn live_bytes_from(&self, from: WalSeq) -> u64 {
        let log = self.handle.shared.log.lock();
        let above = log.segments.partition_point(|segment| segment.first <= from);
        log.segments.range(above.saturating_sub(1)..).map(|segment| segment.used).sum()
    }

    /// How the log is doing.
    #[must_use]
    pub fn status(&self) -> WalStatus {
        let shared = &self.handle.shared;
        let segments = shared.log.lock().segments.len();
        let staged_bytes = shared.staging.lock().bytes;
        WalStatus {
            latched: shared.latch.lock().clone(),
            segments,
            spare: shared.spares.count(),
            live_bytes: shared.live_bytes.load(Ordering::Relaxed),
            durable_end: shared.durable_end(),
            staged_bytes,
            syncs: shared.syncs.load(Ordering::Relaxed),
            records: shared.records.load(Ordering::Relaxed),
        }
    }

    /// Takes no more records, writes what is staged, ends the threads, and gives the directory back. Blocks; idempotent.
    pub fn close(&self) {
        let Handle { shared, threads } = &*self.handle;
        shared.begin_close();
        for thread in threads.lock().drain(..) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        shared.flush_rest();
        shared.flights.lock().on_durable = None;
        shared.lock.lock().take();
    }
}

#[allow(clippy::disallowed_methods, reason = "the tasks of a simulated run's log; they end when the log is closed or its last handle goes")]
fn start_inline(shared: Arc<Shared>, slot: usize) {
    tokio::spawn(async move { shared.run_inline(slot).await });
}
