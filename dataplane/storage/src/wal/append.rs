//! Staging, the group write, and the thread that does it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, oneshot};
use tracing::{error, warn};
use veena_contract::{StreamId, WalSeq, limits};

use super::format::{RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader, record_bytes};
use super::segments::{Active, NoSegment, Segment, Spares, begin, is_no_space};
use super::{
    AppendError, Handle, OnDurable, StageError, Staged, Wal, WalConfig, WalEntries, WalIoError, WalRange, WalRecord, WalStatus, WalStream,
};
use crate::disk::{DirLock, Disk, write_all_at};
use crate::io::Io;
use crate::sabotage;

/// How many bytes one group write takes at most, unless one call alone is larger.
const GROUP_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The encode buffer is given back when it grew over this.
const BUFFER_KEPT_BYTES: usize = GROUP_BYTES_MAX + SEGMENT_HEADER_BYTES;

type Outcome = Result<WalRange, AppendError>;

struct Call {
    entries: WalEntries,
    bytes: usize,
    done: oneshot::Sender<Outcome>,
}

#[derive(Default)]
struct Staging {
    calls: VecDeque<Call>,
    /// Staged and in flight.
    bytes: usize,
    is_closing: bool,
}

/// What only the writer uses.
#[derive(Default)]
struct Writer {
    buffer: Vec<u8>,
    on_durable: Option<OnDurable>,
    has_started: bool,
}

/// Where the log's segments are. Locked for moments only, never across file calls of the append path.
pub(super) struct Log {
    pub segments: VecDeque<Segment>,
    pub active: Option<Active>,
    pub next_generation: u64,
    pub next_seq: WalSeq,
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
    staging: Mutex<Staging>,
    staged: Condvar,
    staged_inline: Notify,
    writer: Mutex<Writer>,
    is_latched: AtomicBool,
    latch: Mutex<Option<String>>,
    syncs: AtomicU64,
    records: AtomicU64,
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
            writer: Mutex::default(),
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
        self.staged_inline.notify_one();
        self.spares.close();
    }

    fn is_latched(&self) -> bool {
        self.is_latched.load(Ordering::Acquire)
    }

    fn latch(&self, reason: &WalIoError) {
        error!(err = reason as &dyn std::error::Error, "ingress log latched: it takes no more records until a restart");
        self.set_latched(format!("{reason}: {}", reason.source));
    }

    fn latch_panicked(&self, what: &str) {
        error!("ingress log latched: {what}; it takes no more records until a restart");
        self.set_latched(what.to_owned());
    }

    fn set_latched(&self, reason: String) {
        self.latch.lock().get_or_insert(reason);
        self.is_latched.store(true, Ordering::Release);
    }

    fn stage(&self, entries: WalEntries) -> Result<Staged, StageError> {
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
        staging.bytes = staged;
        let is_first = staging.calls.is_empty();
        staging.calls.push_back(Call { entries, bytes, done });
        drop(staging);
        if is_first {
            self.staged.notify_one();
            self.staged_inline.notify_one();
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

    fn take_group(&self) -> VecDeque<Call> {
        let mut staging = self.staging.lock();
        let mut bytes = 0;
        let mut count = 0;
        for call in &staging.calls {
            if count > 0 && bytes + call.bytes > GROUP_BYTES_MAX {
                break;
            }
            bytes += call.bytes;
            count += 1;
        }
        if count == staging.calls.len() {
            return std::mem::take(&mut staging.calls);
        }
        staging.calls.drain(..count).collect()
    }

    fn release(&self, bytes: usize) {
        self.staging.lock().bytes -= bytes;
    }

    fn refuse(&self, calls: impl IntoIterator<Item = Call>, error: AppendError) {
        for call in calls {
            self.release(call.bytes);
            let _ = call.done.send(Err(error));
        }
    }

    /// Writes and syncs one group. Answers whether there was anything to do. A panic on the way latches the log: the callers of the round it
    /// was in are told that nothing is known, everybody behind them that nothing was stored, and the thread lives on to tell them.
    fn flush_round(&self) -> bool {
        let round = catch_unwind(AssertUnwindSafe(|| self.flush_group()));
        round.unwrap_or_else(|_| {
            self.latch_panicked("the writer panicked");
            let mut staging = self.staging.lock();
            staging.bytes = staging.calls.iter().map(|call| call.bytes).sum();
            true
        })
    }

    fn flush_group(&self) -> bool {
        let mut writer = self.writer.lock();
        let mut calls = self.take_group();
        if calls.is_empty() {
            return false;
        }
        while let Some(first) = calls.front() {
            if self.is_latched() {
                self.refuse(calls, AppendError::Refused);
                return true;
            }
            match self.seat(first.bytes) {
                Ok(active) => self.write_group(&mut writer, active, &mut calls),
                Err(NoSegment::Unavailable(reason)) => {
                    warn!(
                        err = &reason as &dyn std::error::Error,
                        "no segment for new records: they are refused, the next are tried again"
                    );
                    self.refuse(calls, AppendError::NoSpace);
                    return true;
                }
                Err(NoSegment::Failed(reason)) => self.latch(&reason),
            }
        }
        true
    }

    /// The segment that has room for `bytes`, begun now if need be.
    fn seat(&self, bytes: usize) -> Result<Active, NoSegment> {
        let (generation, previous, first) = {
            let log = self.log.lock();
            if let Some(active) = &log.active {
                let start = active.position.max(SEGMENT_HEADER_BYTES as u64);
                if !active.is_closing && start + bytes as u64 <= active.capacity {
                    return Ok(active.clone());
                }
            }
            (log.next_generation, log.segments.back().map_or(0, |segment| segment.generation), log.next_seq)
        };
        let spare = self.spares.take().map_err(NoSegment::Unavailable)?;
        let active = begin(&*self.disk, &self.dir, &spare, generation, previous, first).inspect_err(|why| {
            if matches!(why, NoSegment::Unavailable(_)) {
                self.spares.put(spare.clone());
            }
        })?;
        let mut log = self.log.lock();
        log.next_generation = generation + 1;
        log.segments.push_back(Segment { generation, first, path: active.path.clone(), used: 0, is_durable: false });
        log.active = Some(active.clone());
        Ok(active)
    }

    /// 1 written   2 synced   3 told   4 tickets completed    — a crash before 2 ends leaves a group nobody was told about
    fn write_group(&self, writer: &mut Writer, active: Active, calls: &mut VecDeque<Call>) {
        let first = self.log.lock().next_seq;
        let mut group = self.encode_group(&mut writer.buffer, &active, first, calls);
        let synced_early = sabotage::is("ack_before_sync");
        if synced_early {
            group.complete(self, writer.on_durable.as_ref());
        }
        if let Err(refusal) = self.write_and_sync(&writer.buffer, &active, &group) {
            self.refuse_group(group, refusal);
            return;
        }
        self.account(&active, writer.buffer.len() as u64, &group);
        if !synced_early {
            group.complete(self, writer.on_durable.as_ref());
        }
        if writer.buffer.capacity() > BUFFER_KEPT_BYTES {
            writer.buffer = Vec::new();
        }
    }

    fn encode_group(&self, buffer: &mut Vec<u8>, active: &Active, first: WalSeq, calls: &mut VecDeque<Call>) -> Group {
        buffer.clear();
        if !active.is_header_written {
            let (generation, previous) = (active.generation, active.previous);
            let (stream, ordinal) = (self.stream, self.ordinal);
            SegmentHeader { wal_id: self.wal_id, generation, previous, first: active.first, stream, ordinal }.encode(buffer);
        }
        let mut group = Group { end: first, records: Vec::with_capacity(calls.len()), tickets: Vec::with_capacity(calls.len()) };
        while let Some(call) = calls.front() {
            if active.position + (buffer.len() + call.bytes) as u64 > active.capacity {
                break;
            }
            let Some(call) = calls.pop_front() else { break };
            let count = u32::try_from(call.entries.len()).expect("checked when staged");
            let range = WalRange { stream: self.stream, first: group.end, count };
            group.tickets.push(Ticket { range, bytes: call.bytes, done: call.done });
            for entry in call.entries {
                let head = RecordHeader {
                    seq: group.end,
                    synced_end: first,
                    stream: self.stream,
                    ordinal: self.ordinal,
                    kind: entry.kind.code(),
                    destination: entry.destination,
                    body_len: 0,
                    body_crc: 0,
                };
                head.encode(buffer, active.generation, active.position + buffer.len() as u64, &entry.body);
                let (kind, destination, body) = (entry.kind, entry.destination, entry.body);
                group.records.push(WalRecord { seq: group.end, stream: self.stream, kind, destination, body });
                group.end = group.end.next();
            }
        }
        group
    }

    fn write_and_sync(&self, buffer: &[u8], active: &Active, group: &Group) -> Result<(), AppendError> {
        match write_all_at(&*active.file, buffer, active.position) {
            Ok(()) => {}
            Err(error) if is_no_space(&error) => {
                // Bytes may be left behind, so nothing is written here again: the next segment begins at the sequence where these would
                // stand, and so they are not records.
                self.log.lock().active = None;
                return Err(AppendError::NoSpace);
            }
            Err(error) => {
                self.latch(&WalIoError::new(&active.path, "write", error));
                return Err(AppendError::Latched);
            }
        }
        if let Err(error) = active.file.sync_data() {
            self.latch(&WalIoError::new(&active.path, "sync", error));
            return Err(AppendError::Latched);
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(group.records.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn account(&self, active: &Active, written: u64, group: &Group) {
        let mut log = self.log.lock();
        log.next_seq = group.end;
        if let Some(now) = log.active.as_mut().filter(|now| now.generation == active.generation) {
            now.position += written;
            now.is_header_written = true;
        }
        if let Some(segment) = log.segments.back_mut().filter(|segment| segment.generation == active.generation) {
            segment.used += written;
            segment.is_durable = true;
        }
        self.live_bytes.fetch_add(written, Ordering::Relaxed);
        self.durable_end.store(group.end.0, Ordering::Release);
    }

    fn refuse_group(&self, group: Group, error: AppendError) {
        for ticket in group.tickets {
            self.release(ticket.bytes);
            let _ = ticket.done.send(Err(error));
        }
    }

    fn run_writer(&self) {
        loop {
            if self.flush_round() {
                continue;
            }
            let mut staging = self.staging.lock();
            if !staging.calls.is_empty() {
                continue;
            }
            if staging.is_closing {
                break;
            }
            self.staged.wait(&mut staging);
        }
        self.writer.lock().on_durable = None;
    }

    fn run_maker(&self) {
        if catch_unwind(AssertUnwindSafe(|| self.spares.run_maker())).is_err() {
            self.latch_panicked("the thread that prepares segments panicked");
            self.spares.lose_maker();
        }
    }

    async fn run_inline(&self) {
        loop {
            if self.flush_round() {
                tokio::task::yield_now().await;
                continue;
            }
            if self.staging.lock().is_closing {
                break;
            }
            self.staged_inline.notified().await;
        }
        self.writer.lock().on_durable = None;
    }
}

struct Ticket {
    range: WalRange,
    bytes: usize,
    done: oneshot::Sender<Outcome>,
}

/// Records that are written and synced together.
struct Group {
    end: WalSeq,
    records: Vec<WalRecord>,
    tickets: Vec<Ticket>,
}

impl Group {
    fn complete(&mut self, shared: &Shared, on_durable: Option<&OnDurable>) {
        let records = std::mem::take(&mut self.records);
        if let Some(on_durable) = on_durable {
            on_durable(records);
        }
        let mut bytes = 0;
        for ticket in self.tickets.drain(..) {
            bytes += ticket.bytes;
            let _ = ticket.done.send(Ok(ticket.range));
        }
        shared.release(bytes);
    }
}

impl Wal {
    /// Stages records for the next group. Never blocks. They get consecutive sequences.
    ///
    /// # Errors
    /// [`StageError`]; nothing was written.
    pub fn stage(&self, entries: WalEntries) -> Result<Staged, StageError> {
        self.handle.shared.stage(entries)
    }

    /// Starts writing. `on_durable` gets every group in order of sequence, after its sync and before its tickets complete; it runs on the
    /// writer and must be quick. With threads there is one that writes and one that prepares segments; inline, a task of this runtime.
    ///
    /// # Panics
    /// When called twice, or when a thread cannot be started.
    pub fn start(&self, io: &Io, on_durable: OnDurable) {
        self.set_on_durable(on_durable);
        let shared = Arc::clone(&self.handle.shared);
        if io.is_inline() {
            start_inline(shared);
            return;
        }
        shared.spares.add_maker();
        let maker = Arc::clone(&shared);
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.to_owned()).spawn(body).expect("invariant: a node has room for its threads at start")
        };
        let mut threads = self.handle.threads.lock();
        threads.push(spawn("wal-prepare", Box::new(move || maker.run_maker())));
        threads.push(spawn("wal-flush", Box::new(move || shared.run_writer())));
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
        while self.handle.shared.flush_round() {}
    }

    fn set_on_durable(&self, on_durable: OnDurable) {
        let mut writer = self.handle.shared.writer.lock();
        assert!(!writer.has_started, "a WAL is started once");
        writer.has_started = true;
        writer.on_durable = Some(on_durable);
    }

    /// Does anything wait for a sync?
    #[must_use]
    pub fn has_staged(&self) -> bool {
        self.handle.shared.staging.lock().bytes > 0
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
        self.flush_now();
        shared.writer.lock().on_durable = None;
        shared.lock.lock().take();
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "the one task of a simulated run's log; it ends when the log is closed or its last handle goes"
)]
fn start_inline(shared: Arc<Shared>) {
    tokio::spawn(async move { shared.run_inline().await });
}
