//! One segment: its file, its header, and where its frames are.
//!
//! ```text
//!  0 magic u32        8 log id u128      32 leader epoch u64      48 created, ms u64    60 CRC32C of the above u32
//!  4 version u16     24 base offset u64  40 ownership epoch u64   56 reserved u32 (0)
//!  6 flags u16
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut, BytesMut};
use parking_lot::Mutex;
use veena_contract::{LogId, Offset};

use super::frame::{FrameHeader, Salt};
use super::index::{Index, IndexSummary};
use super::wire::WireReader;
use crate::disk::{Disk, DiskFile, OpenMode};

/// "VSEG".
const SEGMENT_MAGIC: u32 = 0x5653_4547;
const VERSION: u16 = 1;
/// The length of a segment's header; the first frame starts behind it.
pub const SEGMENT_HEADER_BYTES: usize = 64;
/// The position of the first frame.
pub(super) const FRAMES_START: u64 = 64;

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The log it belongs to.
    pub log_id: LogId,
    /// The offset of its first record.
    pub base: Offset,
    /// Reserved for replicas.
    pub leader_epoch: u64,
    /// Reserved.
    pub ownership_epoch: u64,
    /// When it was created, in ms; 0 for the first one of a log.
    pub created_ms: u64,
}

/// Why a segment's header was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentHeaderError {
    /// Cut short, or not one of ours, or damaged.
    #[error("segment header is damaged")]
    Damaged,
    /// A newer format.
    #[error("segment format version {version} is not known")]
    Unsupported {
        /// What was found.
        version: u16,
    },
}

impl SegmentHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = BytesMut::with_capacity(SEGMENT_HEADER_BYTES);
        out.put_u32(SEGMENT_MAGIC);
        out.put_u16(VERSION);
        out.put_u16(0);
        out.put_u128(self.log_id.0);
        out.put_u64(self.base.get());
        out.put_u64(self.leader_epoch);
        out.put_u64(self.ownership_epoch);
        out.put_u64(self.created_ms);
        out.put_u32(0);
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out.as_ref().try_into().expect("invariant: the fields above are 64 bytes")
    }

    /// Reads a header.
    ///
    /// # Errors
    /// When the bytes are not such a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, SegmentHeaderError> {
        Self::read(bytes).ok_or(SegmentHeaderError::Damaged)?
    }

    fn read(bytes: &[u8]) -> Option<Result<Self, SegmentHeaderError>> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES)?;
        let (guarded, crc) = bytes.split_at_checked(SEGMENT_HEADER_BYTES - 4)?;
        let mut reader = WireReader::new(bytes);
        if reader.u32()? != SEGMENT_MAGIC || crc32c::crc32c(guarded).to_be_bytes() != crc {
            return None;
        }
        let version = reader.u16()?;
        if version != VERSION || reader.u16()? != 0 {
            return Some(Err(SegmentHeaderError::Unsupported { version }));
        }
        let log_id = LogId(reader.u128()?);
        let base = Offset(reader.u64()?);
        let (leader_epoch, ownership_epoch, created_ms) = (reader.u64()?, reader.u64()?, reader.u64()?);
        Some(Ok(Self { log_id, base, leader_epoch, ownership_epoch, created_ms }))
    }
}

/// The files of one segment, by its base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FileKind {
    Log,
    Index,
    Streams,
}

impl FileKind {
    fn suffix(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Index => "idx",
            Self::Streams => "streams",
        }
    }

    pub(super) fn path(self, dir: &Path, base: Offset) -> PathBuf {
        dir.join(format!("{:020}.{}", base.get(), self.suffix()))
    }

    /// Where the file is written before it takes its name.
    pub(super) fn path_new(self, dir: &Path, base: Offset) -> PathBuf {
        dir.join(format!("{:020}.{}.new", base.get(), self.suffix()))
    }
}

/// Which of our files a name is. `is_new`: it never took its final name.
pub(super) fn parse_name(name: &str) -> Option<(Offset, FileKind, bool)> {
    let (name, is_new) = name.strip_suffix(".new").map_or((name, false), |name| (name, true));
    let (digits, suffix) = name.split_once('.')?;
    if digits.len() != 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let kind = [FileKind::Log, FileKind::Index, FileKind::Streams].into_iter().find(|kind| kind.suffix() == suffix)?;
    Some((Offset(digits.parse().ok()?), kind, is_new))
}

/// What is known about a segment's commit times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// Of the first record; absent when there is none.
    pub(super) first_ms: Option<u64>,
    /// Of the last frame; 0 when there is none.
    pub(super) last_ms: u64,
}

/// One segment in memory. Shared by the log and its readers.
pub(super) struct Segment {
    pub(super) base: Offset,
    /// Tells it from every other segment that this process has had.
    pub(super) serial: u64,
    pub(super) path: PathBuf,
    pub(super) salt: Salt,
    /// Where the readable frames end in the file: the published end of the active segment, the file's end of a sealed one.
    readable_len: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<Arc<dyn DiskFile>>,
    index: Option<Index>,
    /// For a sealed segment, what its index file says.
    summary: Option<IndexSummary>,
}

fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Segment {
    /// A sealed segment; its file and index are read when needed.
    pub(super) fn sealed(base: Offset, path: PathBuf, salt: Salt, len: u64, summary: Option<IndexSummary>) -> Self {
        let state = Mutex::new(State { summary, ..State::default() });
        Self { base, serial: next_serial(), path, salt, readable_len: AtomicU64::new(len), state }
    }

    /// The segment that is written to.
    pub(super) fn active(base: Offset, path: PathBuf, salt: Salt, file: Arc<dyn DiskFile>, index: Index, len: u64) -> Self {
        let state = State { file: Some(file), index: Some(index), summary: None };
        Self { base, serial: next_serial(), path, salt, readable_len: AtomicU64::new(len), state: Mutex::new(state) }
    }

    pub(super) fn readable_len(&self) -> u64 {
        self.readable_len.load(Ordering::Acquire)
    }

    /// Makes a written, synced and checked frame readable. The caller moves the high watermark afterwards.
    pub(super) fn extend(&self, header: &FrameHeader, position: u64) {
        if let Some(index) = &mut self.state.lock().index {
            index.push(header, position);
        }
        self.readable_len.store(position + header.frame_len(), Ordering::Release);
    }

    /// The open file.
    pub(super) fn file(&self, disk: &dyn Disk) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = &self.state.lock().file {
            return Ok(Arc::clone(file));
        }
        let file = disk.open(&self.path, OpenMode::Read)?;
        Ok(Arc::clone(self.state.lock().file.get_or_insert(file)))
    }

    /// The file, for a reader that keeps nothing open.
    pub(super) fn open_apart(&self, disk: &dyn Disk) -> io::Result<Arc<dyn DiskFile>> {
        let open = self.state.lock().file.clone();
        open.map_or_else(|| disk.open(&self.path, OpenMode::Read), Ok)
    }

    /// Closes the file; it is opened again when needed. The index goes with it.
    pub(super) fn release(&self) {
        let mut state = self.state.lock();
        state.file = None;
        if let Some(index) = state.index.take() {
            state.summary = Some(index.summary());
        }
    }

    /// Runs `look` on the index if it is in memory.
    pub(super) fn with_index<T>(&self, look: impl FnOnce(&Index) -> T) -> Option<T> {
        self.state.lock().index.as_ref().map(look)
    }

    pub(super) fn set_index(&self, index: Index) {
        let mut state = self.state.lock();
        state.summary = Some(index.summary());
        state.index = Some(index);
    }

    /// What is known about it without touching the disk.
    pub(super) fn summary(&self) -> Option<IndexSummary> {
        let state = self.state.lock();
        state.index.as_ref().map(Index::summary).or(state.summary)
    }
}
