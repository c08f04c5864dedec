//! One partition's log: segments of frames, a stream table, a sparse index.
//!
//! A directory holds, per segment, `<base>.log` (frames), `<base>.streams` (the stream table and the idempotency keys as they stood before the segment's
//! first frame, synced before the segment is used) and, once sealed, `<base>.idx` (derived; rebuilt when missing or bad). `<base>` is the offset of the
//! segment's first record in twenty digits. Anything else in the directory is not ours: it is neither read nor removed.
//!
//! The way of a commit is in the types: [`PartitionLog::append`] gives [`Appended`], [`PartitionLog::sync`] turns it into [`Synced`],
//! [`PartitionLog::verify`] into [`Verified`], and only [`PartitionLog::publish`] moves the high watermark. Nothing here may move it
//! otherwise, hand out bytes whose CRC was not checked, or give an offset twice.
//!
//! A log that moves to another node is copied while it is written: `copy` gives its files away, `incoming` takes them.
//!
//! No thread, no timer, no clock: whoever drops the log and its readers has closed it.

mod append;
mod cache;
mod commit;
mod copy;
pub mod frame;
mod incoming;
mod index;
mod inspect;
mod keys;
mod layout;
mod open;
mod read;
pub mod recover;
mod reopen;
mod repair;
mod retain;
mod segment;
mod streams;
pub(crate) mod wire;

use std::path::PathBuf;

use bytes::Bytes;
use veena_contract::{MessageId, Offset, StreamId};

pub use append::{AppendError, Appended, PartitionLog};
pub use cache::FrameCache;
pub use commit::{LogLatched, Synced, Verified, VerifyError, Visible};
pub use copy::{CopyFile, CopyPiece, CopySegment};
pub use incoming::{IncomingError, IncomingLog};
pub use inspect::{PartitionReport, SegmentReport, inspect, verify_sealed};
pub use keys::{KeyMark, Keys, RecordKey};
pub use open::{OpenError, PartitionOpened};
pub use read::{LogReader, LogStats, ReadError};
pub use repair::{RepairError, SideFile, SideKind, is_segment_name, rebuild, side_files};
pub use retain::{RetainError, Retained};
pub use segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
pub use streams::{Mark, Marks, StreamsSnapshot, drop_finished};

/// How a frame's body is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Codec {
    /// As it is.
    #[default]
    None,
    /// Compressed, when the body is large enough and shrinks.
    Zstd,
}

impl Codec {
    fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zstd => 1,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// How one partition's log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionConfig {
    /// The size at which the active segment is sealed, in bytes.
    pub segment_bytes_max: u64,
    /// The age of its first record at which the active segment is sealed, in ms; 0 is never.
    pub segment_age_ms_max: u64,
    /// How frames are stored.
    pub codec: Codec,
}

/// The key of a stream table: a stream, and which partition of its source it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    /// The stream.
    pub stream: StreamId,
    /// The partition of the source.
    pub source: u32,
}

/// Where a stream comes from, so that an owner can drop streams that are finished: all of the same `id` whose `ordinal` is below `floor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Which WAL directory; 0 when the source is none.
    pub id: u64,
    /// Which open of it.
    pub ordinal: u32,
    /// The oldest open that still has records.
    pub floor: u32,
}

/// What one stream adds to the log in one append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Whose stream.
    pub key: StreamKey,
    /// Where the stream comes from.
    pub origin: Origin,
    /// Does the stream table keep it?
    pub is_tracked: bool,
    /// The sequence after which the stream stands. May be beyond the last record: an advance.
    pub last: u64,
    /// The records, in rising sequence.
    pub records: Vec<NewRecord>,
}

/// One record to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRecord {
    /// Its sequence in the section's stream.
    pub sequence: u64,
    /// Its id for life; absent when it is this stream and sequence.
    pub id: Option<MessageId>,
    /// The idempotency key it came with. It stays in this log: whoever reads the record does not get it.
    pub key: Option<RecordKey>,
    /// Its body: an encoded [`Envelope`](crate::envelope::Envelope).
    pub body: Bytes,
}

/// One record as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    /// Its place in the log.
    pub offset: Offset,
    /// Its sequence in the stream that brought it.
    pub sequence: u64,
    /// Its id for life.
    pub id: MessageId,
    /// When it was committed, in ms.
    pub commit_ms: u64,
    /// Its body.
    pub body: Bytes,
}

/// Bytes that were written and can no longer be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where in the file it starts.
    pub at: u64,
    /// Where in the file it ends.
    pub end: u64,
    /// The first offset that may be lost.
    pub first: Offset,
    /// The first offset behind the damage.
    pub next: Offset,
    /// What is wrong.
    pub reason: &'static str,
}
