//! What a partition's owner is asked, and what it answers. Plain data, on this node and between nodes.

use bytes::Bytes;
use tokio::time::Instant;
use veena_contract::{CallerGone, Effect, LogId, Offset, StreamId};
use veena_storage::partition::NewRecord;

use crate::streams::{Origin, Prev, Refusal, StreamKey};

/// A commit as a stream's sender offers it.
#[derive(Clone, Debug)]
pub struct StreamCommit {
    /// Which stream.
    pub key: StreamKey,
    /// Where the stream comes from.
    pub origin: Origin,
    /// The log the sender believes it is talking to.
    pub log_id: LogId,
    /// What the records follow.
    pub prev: Prev,
    /// The stream's position after the commit.
    pub last: u64,
    /// Does the source no longer have what lies between `prev` and `last`?
    pub is_gap: bool,
    /// The records, by rising sequence.
    pub records: Vec<NewRecord>,
}

/// What is asked of the owner.
#[derive(Debug)]
pub enum CommitRequest {
    /// Part of a stream.
    Stream(StreamCommit),
    /// Bodies produced owner-synchronously: no stream stands behind them and nobody sends them again.
    Direct(Vec<Bytes>),
}

impl CommitRequest {
    pub(super) fn records(&self) -> usize {
        match self {
            Self::Stream(commit) => commit.records.len(),
            Self::Direct(bodies) => bodies.len(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Stream(commit) => commit.records.iter().map(|record| record.body.len()).sum(),
            Self::Direct(bodies) => bodies.iter().map(Bytes::len).sum(),
        }
    }
}

/// Where a request's records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The offset of the first record that this request added; the others follow.
    pub first: Offset,
    /// Commit time, in ms.
    pub commit_ms: u64,
    /// The stream of the first record's id.
    pub stream: StreamId,
    /// The sequence of the first record's id.
    pub sequence: u64,
}

/// What the owner answers.
#[derive(Debug)]
pub enum CommitAnswer {
    /// Everything of the request is below the high watermark. `None` when the log held all of it before.
    Committed(Option<Placed>),
    /// Nothing was stored.
    Refused(Refusal),
    /// The log could not take it.
    Failed(CommitError),
}

/// Why the log could not take a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The log is not open and cannot be opened now.
    #[error("the partition's log cannot be opened now")]
    NotOpen,
    /// No room; nothing was written.
    #[error("no room on the disk")]
    NoSpace,
    /// The write, the sync or the check failed.
    #[error("the partition's log failed")]
    LogFailed,
    /// Too much waits for the writer; nothing was handed over.
    #[error("too much waits for the partition's writer")]
    Busy,
    /// The topic is gone.
    #[error("the topic is gone")]
    Gone,
    /// The node stops.
    #[error("the node is stopping")]
    Stopping,
    /// The stream is that of an attachment that the owner does not know, or no longer.
    #[error("the owner knows of no attachment with this stream")]
    NotAttached,
    /// Whoever asked had given up before it was begun.
    #[error("the caller had given up")]
    TooLate,
    /// The owner is another node, and was not asked: it is unknown, cannot be reached, or is not the owner.
    #[error("the partition's owner cannot be reached")]
    OwnerAway,
    /// The owner is another node; it was asked, and there is no answer.
    #[error("the partition's owner did not answer")]
    OwnerSilent,
    /// The topic has more partitions than whoever chose this one knew of.
    #[error("the topic has more partitions by now")]
    Grown,
}

impl CommitError {
    /// Every error. Only grows.
    pub const ALL: [Self; 11] = [
        Self::NotOpen,
        Self::NoSpace,
        Self::LogFailed,
        Self::Busy,
        Self::Gone,
        Self::Stopping,
        Self::NotAttached,
        Self::TooLate,
        Self::OwnerAway,
        Self::OwnerSilent,
        Self::Grown,
    ];

    /// Its number between nodes; never used again for another.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::NotOpen => 1,
            Self::NoSpace => 2,
            Self::LogFailed => 3,
            Self::Busy => 4,
            Self::Gone => 5,
            Self::Stopping => 6,
            Self::NotAttached => 7,
            Self::TooLate => 8,
            Self::OwnerAway => 9,
            Self::OwnerSilent => 10,
            Self::Grown => 11,
        }
    }

    /// The error of a number; `None` if only newer nodes know it.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|error| error.number() == number)
    }

    /// May the records have been stored?
    #[must_use]
    pub fn effect(self) -> Effect {
        match self {
            Self::LogFailed | Self::OwnerSilent => Effect::Possible,
            Self::NotOpen
            | Self::NoSpace
            | Self::Busy
            | Self::Gone
            | Self::Stopping
            | Self::NotAttached
            | Self::TooLate
            | Self::OwnerAway
            | Self::Grown => Effect::None,
        }
    }
}

/// Who asked from another node.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Until when it waits.
    pub until: Instant,
    /// Has it left before?
    pub gone: CallerGone,
}

impl Caller {
    /// Has it given up?
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        self.gone.is_gone() || Instant::now() >= self.until
    }
}
