//! Writing frames behind the last one, and starting a new segment when one is full or old.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tracing::error;
use veena_contract::{Effect, LogId, Offset};

use super::cache::{FrameCache, LatchedAt};
use super::frame::{DecodedFrame, FrameHeader};
use super::index::{self, Index};
use super::keys::Keys;
use super::layout::{RawFrame, SealedFrame, lay_out};
use super::open::create_segment;
use super::read::LogReader;
use super::segment::{FRAMES_START, FileKind, Segment, SegmentHeader};
use super::streams::{Marks, StoreError, StreamsSnapshot};
use super::wire::{ShortWrite, len64, write_full};
use super::{PartitionConfig, Section};
use crate::disk::{Disk, DiskFile};

/// Small appends are followed by zeros up to this much, so that most syncs find the file's length unchanged.
const PAD_BYTES_MAX: u64 = 64 * 1024;
const PAD_BYTES_MIN: u64 = 4 * 1024;
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// One partition's log: the one place that writes it. All calls block.
///
/// One append is under way at a time: it is published before the next one begins. An append that was dropped on its way latches the log.
pub struct PartitionLog {
    pub(super) shared: Arc<Shared>,
    pub(super) config: PartitionConfig,
    pub(super) active: Active,
    /// The offset behind the last written record.
    pub(super) log_end: Offset,
    pub(super) last_commit_ms: u64,
    /// The idempotency keys of what is published.
    pub(super) keys: Keys,
    pub(super) is_append_open: bool,
}

/// What the log and its readers share.
pub(super) struct Shared {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) dir: PathBuf,
    pub(super) log_id: LogId,
    pub(super) cache: Arc<FrameCache>,
    pub(super) high_watermark: AtomicU64,
    pub(super) is_closed: AtomicBool,
    pub(super) is_latched: AtomicBool,
    /// In rising base; the last one is active.
    pub(super) segments: RwLock<Vec<Arc<Segment>>>,
    /// Sealed segments whose files are open, the latest last.
    pub(super) open_sealed: Mutex<Vec<Arc<Segment>>>,
}

/// The segment that is written to.
pub(super) struct Active {
    pub(super) segment: Arc<Segment>,
    pub(super) file: Arc<dyn DiskFile>,
    /// Where the next frame goes.
    pub(super) end: u64,
    /// Below this, everything was synced.
    pub(super) synced: u64,
    /// The file's length; zeros from `end` on.
    pub(super) allocated: u64,
    /// Was the file cut since it was last synced?
    pub(super) is_cut: bool,
    /// Commit time of the first record.
    pub(super) first_ms: Option<u64>,
}

impl Active {
    /// A segment that was just created.
    pub(super) fn empty(segment: Arc<Segment>, file: Arc<dyn DiskFile>) -> Self {
        Self { segment, file, end: FRAMES_START, synced: FRAMES_START, allocated: FRAMES_START, is_cut: false, first_ms: None }
    }

    fn latched_at(&self) -> LatchedAt {
        LatchedAt { base: self.segment.base, synced: self.synced }
    }
}

/// Why nothing was appended, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The log takes no more writes in this life.
    #[error("partition log is latched")]
    Latched,
    /// No room; nothing was written.
    #[error("no room on the disk")]
    NoSpace,
    /// Writing failed.
    #[error("partition log cannot be written")]
    Io(#[source] io::Error),
}

impl AppendError {
    /// May the records have been stored?
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Latched | Self::NoSpace => Effect::None,
            Self::Io(_) => Effect::Possible,
        }
    }
}

/// Frames that were written and are not known to be safe.
#[must_use = "an append that is not synced, verified and published latches the log"]
pub struct Appended {
    pub(super) segment: Arc<Segment>,
    pub(super) frames: Vec<WrittenFrame>,
    pub(super) first: Offset,
    pub(super) end: Offset,
    pub(super) commit_ms: u64,
    /// Where the frames end in the file.
    pub(super) position_end: u64,
}

/// One frame in the file.
pub(super) struct WrittenFrame {
    pub(super) position: u64,
    pub(super) header: FrameHeader,
    pub(super) decoded: Arc<DecodedFrame>,
}

impl PartitionLog {
    /// Writes the sections as frames behind the last one, starting a new segment first when the active one is full or old. `commit_ms` is
    /// raised to the last commit time. `marks` is asked only when a new segment is started: the stream table as committed, without these
    /// sections.
    ///
    /// # Errors
    /// [`AppendError`]. After `NoSpace` the log is as before; after `Io` it may be latched.
    pub fn append(&mut self, sections: &[Section], commit_ms: u64, marks: &dyn Fn() -> Marks) -> Result<Appended, AppendError> {
        if self.is_append_open {
            self.shared.latch(&self.active, "an append was dropped before it was published");
        }
        if self.is_latched() {
            return Err(AppendError::Latched);
        }
        let commit_ms = commit_ms.max(self.last_commit_ms);
        let raw =
            lay_out(sections, self.log_end).map_err(|too_large| AppendError::Io(io::Error::new(io::ErrorKind::InvalidInput, too_large)))?;
        let bytes: u64 = raw.iter().map(RawFrame::len_max).sum();
        if self.is_roll_due(bytes, commit_ms) {
            self.roll(commit_ms, marks())?;
        }
        let mut position = self.active.end;
        let mut frames = Vec::with_capacity(raw.len());
        let mut sealed = Vec::with_capacity(raw.len());
        for frame in raw {
            let frame = frame.seal(self.config.codec, self.active.segment.salt, position, self.active.synced, commit_ms);
            frames.push(WrittenFrame { position, header: frame.header, decoded: Arc::clone(&frame.decoded) });
            position += frame.header.frame_len();
            sealed.push(frame);
        }
        self.write(&sealed)?;
        let first = self.log_end;
        self.log_end = frames.last().map_or(first, |frame| frame.header.end());
        self.active.end = position;
        self.is_append_open = true;
        let appended =
            Appended { segment: Arc::clone(&self.active.segment), frames, first, end: self.log_end, commit_ms, position_end: position };
        if veena_contract::sabotage::is("watermark_before_verify") {
            self.expose(&appended);
        }
        Ok(appended)
    }

    fn write(&mut self, frames: &[SealedFrame]) -> Result<(), AppendError> {
        let start = self.active.end;
        let mut at = start;
        for frame in frames {
            if let Err(short) = write_full(self.active.file.as_ref(), &frame.bytes, at) {
                return Err(self.on_short_write(short, at > start));
            }
            at += len64(frame.bytes.len());
        }
        if at > self.active.allocated {
            self.active.allocated = at;
            if at - start < PAD_BYTES_MAX {
                self.pad(at)?;
            }
        }
        Ok(())
    }

    /// Lengthens the file with zeros, so that the next appends change nothing but bytes that are there. Best effort.
    fn pad(&mut self, at: u64) -> Result<(), AppendError> {
        let len = at.clamp(PAD_BYTES_MIN, PAD_BYTES_MAX);
        let zeros = ZEROS.get(..usize::try_from(len).unwrap_or(0)).unwrap_or(&ZEROS);
        match write_full(self.active.file.as_ref(), zeros, at) {
            Ok(()) => self.active.allocated = at + len64(zeros.len()),
            Err(short) if is_no_space(&short.error) => self.active.allocated = at + len64(short.written),
            Err(short) => {
                self.shared.latch(&self.active, "a write failed");
                return Err(AppendError::Io(short.error));
            }
        }
        Ok(())
    }

    /// A full disk is no latch as long as nothing of the append stays in the file; any other failed write is one.
    fn on_short_write(&mut self, short: ShortWrite, has_whole_frame: bool) -> AppendError {
        if is_no_space(&short.error) && !has_whole_frame {
            if short.written == 0 {
                return AppendError::NoSpace;
            }
            if self.active.file.set_len(self.active.end).is_ok() {
                self.active.allocated = self.active.end;
                self.active.is_cut = true;
                return AppendError::NoSpace;
            }
        }
        self.shared.latch(&self.active, "a write failed");
        AppendError::Io(short.error)
    }

    fn is_roll_due(&self, bytes: u64, commit_ms: u64) -> bool {
        let is_full = self.active.end > FRAMES_START && self.active.end + bytes > self.config.segment_bytes_max;
        let age_ms_max = self.config.segment_age_ms_max;
        let is_old = age_ms_max > 0 && self.active.first_ms.is_some_and(|first_ms| commit_ms.saturating_sub(first_ms) >= age_ms_max);
        is_full || is_old
    }

    /// Seals the active segment if it has records, as an append does that finds it full: what is sealed can be copied for good. `marks` is the
    /// stream table as committed.
    ///
    /// # Errors
    /// [`AppendError`], as of an append.
    pub fn seal_active(&mut self, now_ms: u64, marks: Marks) -> Result<(), AppendError> {
        if self.is_append_open || self.is_latched() {
            return Err(AppendError::Latched);
        }
        if self.log_end > self.active.segment.base { self.roll(now_ms, marks) } else { Ok(()) }
    }

    /// Seals the active segment and starts the next one. `marks` is the stream table as it stands now. A segment without records keeps its
    /// name: it is replaced.
    pub(super) fn roll(&mut self, now_ms: u64, marks: Marks) -> Result<(), AppendError> {
        let shared = Arc::clone(&self.shared);
        let (disk, dir, log_id) = (shared.disk.as_ref(), shared.dir.as_path(), shared.log_id);
        let (base, old_base) = (self.log_end, self.active.segment.base);
        // 1 the old segment ends where its frames end, synced
        if self.active.allocated > self.active.end || self.active.is_cut {
            self.active.file.set_len(self.active.end).map_err(AppendError::Io)?;
            self.active.allocated = self.active.end;
            self.active.is_cut = true;
            self.active.file.sync_data().map_err(|error| self.on_failed_sync(error))?;
            self.active.is_cut = false;
        }
        if base > old_base
            && let Some(bytes) = self.active.segment.with_index(Index::clone)
        {
            // Derived: a failure costs a scan later.
            let _ = index::store(disk, dir, log_id, old_base, self.active.end, &bytes);
        }
        // 2 the stream table, synced   3 the new segment, synced   4 both names   - a crash before 4 may show any of them; the next open
        // takes a segment only under its final name, and a stream table that is ahead of it changes nothing when frames are applied again
        let snapshot = StreamsSnapshot { log_id, base, last_commit_ms: self.last_commit_ms, marks, keys: self.keys.clone() };
        snapshot.store(disk, dir).map_err(|error| self.on_failed_store(error))?;
        if base == old_base {
            // The old table is gone under this name, and the frames that it needs go next: the new one must be there for good first.
            disk.sync_dir(dir).map_err(|error| self.on_failed_sync(error))?;
        }
        let header = SegmentHeader { log_id, base, leader_epoch: 0, ownership_epoch: 0, created_ms: now_ms };
        let (segment, file) = create_segment(disk, dir, &header).map_err(|error| self.on_failed_store(error))?;
        disk.sync_dir(dir).map_err(|error| self.on_failed_sync(error))?;
        // 5 used
        let old = std::mem::replace(&mut self.active, Active::empty(Arc::clone(&segment), file));
        let mut segments = shared.segments.write();
        if base == old_base {
            segments.pop();
        }
        segments.push(segment);
        drop(segments);
        old.segment.release();
        Ok(())
    }

    fn on_failed_sync(&self, error: io::Error) -> AppendError {
        self.shared.latch(&self.active, "a sync failed");
        AppendError::Io(error)
    }

    fn on_failed_store(&self, error: StoreError) -> AppendError {
        match error {
            StoreError::Sync(error) => self.on_failed_sync(error),
            StoreError::Write(error) if is_no_space(&error) => AppendError::NoSpace,
            StoreError::Write(error) => AppendError::Io(error),
        }
    }

    /// A reader of this log. It answers `Closed` once the log is dropped.
    #[must_use]
    pub fn reader(&self) -> LogReader {
        LogReader::new(Arc::clone(&self.shared))
    }

    /// The log's identity.
    #[must_use]
    pub fn log_id(&self) -> LogId {
        self.shared.log_id
    }

    /// The offset the next record gets.
    #[must_use]
    pub fn log_end(&self) -> Offset {
        self.log_end
    }

    /// The commit time of the last frame, in ms; the next one is not below it.
    #[must_use]
    pub fn last_commit_ms(&self) -> u64 {
        self.last_commit_ms
    }

    /// The idempotency keys of what is published, as far as they are remembered.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Forgets the idempotency keys of records that were committed at this time or before.
    pub fn forget_keys(&mut self, commit_ms: u64) {
        self.keys.forget_through(commit_ms);
    }

    /// Does the log refuse writes until it is opened again?
    #[must_use]
    pub fn is_latched(&self) -> bool {
        self.shared.is_latched.load(Ordering::Acquire)
    }
}

impl Drop for PartitionLog {
    fn drop(&mut self) {
        if self.is_append_open {
            self.shared.cache.remember_latched(self.shared.log_id, self.active.latched_at());
        }
        self.shared.is_closed.store(true, Ordering::Release);
    }
}

impl Shared {
    /// Refuses writes from now on, and remembers from where on the pages cannot be trusted.
    pub(super) fn latch(&self, active: &Active, why: &'static str) {
        let was_latched = self.is_latched.swap(true, Ordering::AcqRel);
        if !was_latched {
            self.cache.remember_latched(self.log_id, active.latched_at());
            error!(path = %FileKind::Log.path(&self.dir, active.segment.base).display(), "partition log is latched: {why}");
        }
    }
}

/// Is it a full disk?
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
