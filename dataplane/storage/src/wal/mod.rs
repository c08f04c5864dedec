//! The node's ingress WAL: what makes a 202 true.
//!
//! One log per node, in segments that are written with zeros ahead of need and recycled without zeroing. Appends are staged by anyone, and
//! written and synced in groups: while a sync runs, everything staged forms the next group. On a slow disk a few groups are in flight, and
//! land in order. Each open mints a stream and appends only
//! under it. A record's checksum covers the segment's generation, its place, its stream and its body, so bytes of an earlier use of a file
//! are not records. Each record says below which sequence the log was known synced when its group was written; that is how a torn group
//! (nobody was told: cut) is told from damage to promised data (kept, reported, never truncated).
//!
//! This module must never complete a ticket before its record is synced, never write after a failed sync, never recycle a segment before
//! the checkpoint that frees it is durable, and never look inside a body.
//!
//! Files of a WAL directory: `<generation>.wal` segments, `<n>.spare` segments to be, `<n>.tmp` half-made spares, and the cells `id`,
//! `checkpoint` and `streams`. Other files are left alone.

mod append;
mod backlog;
mod checkpoint;
mod flush;
pub mod format;
mod group;
mod inspect;
mod landing;
pub mod moved;
mod open;
pub mod parked;
mod reach;
pub mod replay;
mod segments;
mod streams;
mod tail;
mod verify;

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use veena_contract::{Effect, StreamId, WalSeq, limits};

pub use backlog::{Backlog, WalGap, WalReadError};
pub use checkpoint::CheckpointError;
pub use inspect::{SegmentReport, inspect};
pub use landing::Written;
pub use open::{DamageKind, WalDamage, WalOpenError, WalOpened};
pub use verify::{LostEnd, VerifiedSegment, WalVerified, verify};

/// Which log a record goes to. Opaque here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// A group of logs.
    pub group: u64,
    /// Which of the group.
    pub partition: u32,
}

/// What a record is. A registry that only grows; on disk a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// A record taken from a client.
    Accept = 1,
    /// A record that goes elsewhere than first accepted; its body is a [`Moved`](moved::Moved).
    Moved = 2,
}

impl RecordKind {
    /// The byte on disk.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Accept => 1,
            Self::Moved => 2,
        }
    }

    /// The kind of a byte on disk, if this build knows it.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Accept),
            2 => Some(Self::Moved),
            _ => None,
        }
    }
}

/// A record to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalEntry {
    /// What it is.
    pub kind: RecordKind,
    /// Which log it goes to.
    pub destination: Destination,
    /// Its bytes, opaque here.
    pub body: Bytes,
}

/// Records to append together: they get consecutive sequences.
pub type WalEntries = smallvec::SmallVec<[WalEntry; 1]>;

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalRecord {
    /// Its position.
    pub seq: WalSeq,
    /// The stream under which it was accepted.
    pub stream: StreamId,
    /// What it is.
    pub kind: RecordKind,
    /// Which log it goes to.
    pub destination: Destination,
    /// Its bytes.
    pub body: Bytes,
}

/// Bounds of a WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalConfig {
    /// The size of a segment file.
    pub segment_bytes: u64,
    /// A fully dispatched active segment that holds this much is closed, so that it can be recycled.
    pub rotate_bytes_min: u64,
    /// How many clean segments are kept for reuse.
    pub spare_max: usize,
    /// How many bytes may be staged or in flight; over it, `stage` answers [`StageError::Full`].
    pub staged_bytes_max: usize,
    /// How many bytes of segments may be live; over it, `stage` answers [`StageError::Full`].
    pub undispatched_bytes_max: u64,
}

impl Default for WalConfig {
    fn default() -> Self {
        Self {
            segment_bytes: limits::WAL_SEGMENT_BYTES,
            rotate_bytes_min: limits::WAL_ROTATE_BYTES_MIN,
            spare_max: limits::WAL_SEGMENTS_SPARE_MAX,
            staged_bytes_max: limits::WAL_STAGED_BYTES_MAX,
            undispatched_bytes_max: limits::WAL_LIVE_BYTES_MAX,
        }
    }
}

/// One stream's part of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalStream {
    /// Its id.
    pub stream: StreamId,
    /// Rises with each open.
    pub ordinal: u32,
    /// Its first record.
    pub first: WalSeq,
    /// The position behind its last record.
    pub end: WalSeq,
}

/// Where appended records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalRange {
    /// Their stream.
    pub stream: StreamId,
    /// The first of them.
    pub first: WalSeq,
    /// How many; their sequences are consecutive.
    pub count: u32,
}

/// Why records were not staged. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// A bound is reached: of staged bytes, or of live bytes on disk.
    #[error("the log has no room for more unwritten or undispatched records")]
    Full,
    /// The log refuses writes after a failed sync.
    #[error("the log refuses writes after a failed write or sync")]
    Latched,
    /// The disk is full.
    #[error("the data disk is full")]
    NoSpace,
    /// A record, or the records together, are larger than the log takes.
    #[error("the records are larger than the log takes")]
    TooLarge,
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
}

impl StageError {
    /// May the records have been stored? No.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Full | Self::Latched | Self::NoSpace | Self::TooLarge | Self::Closed => Effect::None,
        }
    }
}

/// Why staged records are not known to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// A write or sync of these failed; they may be found after a restart.
    #[error("the log failed to write or sync; the record may have been stored")]
    Latched,
    /// The log had failed before these were written.
    #[error("the log refuses writes after a failed write or sync")]
    Refused,
    /// The disk was full before a byte was written.
    #[error("the data disk is full")]
    NoSpace,
}

impl AppendError {
    /// May the records have been stored?
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Latched => Effect::Possible,
            Self::Refused | Self::NoSpace => Effect::None,
        }
    }
}

/// Records on their way to the disk. Completes with the true outcome; dropping it does not take the records back.
#[derive(Debug)]
#[must_use = "the records are durable only once this completes"]
pub struct Staged {
    outcome: oneshot::Receiver<Result<WalRange, AppendError>>,
}

impl Staged {
    /// The outcome, if it is there; the future must not be polled after it was taken.
    pub fn try_outcome(&mut self) -> Option<Result<WalRange, AppendError>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(AppendError::Latched)),
        }
    }
}

impl Future for Staged {
    type Output = Result<WalRange, AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // a writer that went away without an answer may have written
        Pin::new(&mut self.outcome).poll(context).map(|outcome| outcome.unwrap_or(Err(AppendError::Latched)))
    }
}

/// How a WAL is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalStatus {
    /// Why it refuses writes for good, if it does.
    pub latched: Option<String>,
    /// Segments that hold records, the active one included.
    pub segments: usize,
    /// Clean segments ready for use.
    pub spare: usize,
    /// Bytes of segments not yet recycled.
    pub live_bytes: u64,
    /// The position below which every record is durable.
    pub durable_end: WalSeq,
    /// Bytes staged or in flight.
    pub staged_bytes: usize,
    /// Group syncs so far.
    pub syncs: u64,
    /// Records made durable so far.
    pub records: u64,
}

/// What is told of records once they are durable.
pub type OnDurable = Arc<dyn Fn(Vec<WalRecord>) + Send + Sync>;

/// The node's ingress WAL. Cheap to clone. When the last clone goes, what is staged is still written and its thread ends.
#[derive(Clone)]
pub struct Wal {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<append::Shared>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl fmt::Debug for Wal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wal").field("dir", &self.handle.shared.dir).finish_non_exhaustive()
    }
}

/// A failed call of the file system, with its file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {}", path.display())]
pub struct WalIoError {
    /// The file.
    pub path: PathBuf,
    /// What was tried.
    pub step: &'static str,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

impl WalIoError {
    fn new(path: &Path, step: &'static str, source: io::Error) -> Self {
        Self { path: path.to_owned(), step, source }
    }
}

pub(crate) fn failed(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> WalIoError {
    let path = path.to_owned();
    move |source| WalIoError { path, step, source }
}

const ID_CELL: &str = "id";
const CHECKPOINT_CELL: &str = "checkpoint";
const STREAMS_CELL: &str = "streams";

/// Where a log in `dir` keeps its checkpoint.
#[must_use]
pub fn checkpoint_path(dir: &Path) -> PathBuf {
    dir.join(CHECKPOINT_CELL)
}

fn segment_name(generation: u64) -> String {
    format!("{generation:016x}.wal")
}

fn spare_name(number: u64) -> String {
    format!("{number:016x}.spare")
}

fn temp_name(number: u64) -> String {
    format!("{number:016x}.tmp")
}

/// The number of a name that is one of ours: sixteen lower-case hexadecimal digits and the extension.
fn number_of(name: &str, extension: &str) -> Option<u64> {
    let digits = name.strip_suffix(extension)?.strip_suffix('.')?;
    let ours = digits.len() == 16 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if ours { u64::from_str_radix(digits, 16).ok() } else { None }
}
