//! One enum per operation, each listing exactly what that operation can answer, each saying whether it may have happened.

use veena_contract::{Effect, Offset, ProposeError};

use crate::quota::Exceeded;

/// Why a produce was refused, or its outcome is not known.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProduceError {
    /// No such topic.
    #[error("topic not found")]
    TopicNotFound,
    /// The partition asked for does not exist.
    #[error("invalid partition: {partition} is not below the topic's {count} partitions")]
    NoSuchPartition {
        /// What was asked for.
        partition: u32,
        /// What there is.
        count: u32,
    },
    /// The topic is fed by its parent alone.
    #[error("direct produce to a delayed child topic is not allowed")]
    DelayedChild,
    /// The node has no room for more unwritten or undispatched records.
    #[error("this node has no room for more undispatched records: {detail}; retry later")]
    Overloaded {
        /// Which bound is reached.
        detail: &'static str,
    },
    /// Undispatched records of this partition are at their bound.
    #[error("partition owner is down; retry later")]
    OwnerDown,
    /// No room on the disk; nothing was written.
    #[error("the data disk is full; retry later")]
    DiskFull,
    /// The write or sync of this very record failed; it may be found after a restart.
    #[error("produce failed")]
    LogPoisoned,
    /// The log refuses writes since an earlier write or sync failed; nothing was written.
    #[error("produce failed")]
    LogLatched,
    /// The owner did not answer in time; the record may have been committed.
    #[error("no outcome in time; the message may have been stored, read back before sending it again")]
    OutcomeUnknown,
    /// The node is stopping.
    #[error("this node is stopping and takes no new produce; send it to another node")]
    Stopping,
    /// The node is being taken out of its cluster.
    #[error("this node is being decommissioned and takes no new produce; send it to another node")]
    Draining,
    /// The idempotency key was used for another message.
    #[error("idempotency key was used for another message; a key stands for one message, with its key and headers")]
    KeyReused,
    /// The partition remembers as many idempotency keys as it may.
    #[error("the partition remembers no more idempotency keys; retry later")]
    DedupWindowFull {
        /// Until its oldest key ends.
        wait_ms: u64,
    },
    /// The tenant, or the topic, stores what it may.
    #[error("{0}")]
    QuotaExceeded(Exceeded),
}

impl ProduceError {
    /// May the message have been stored?
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::LogPoisoned | Self::OutcomeUnknown => Effect::Possible,
            Self::TopicNotFound
            | Self::NoSuchPartition { .. }
            | Self::DelayedChild
            | Self::Overloaded { .. }
            | Self::OwnerDown
            | Self::DiskFull
            | Self::LogLatched
            | Self::Stopping
            | Self::Draining
            | Self::KeyReused
            | Self::DedupWindowFull { .. }
            | Self::QuotaExceeded(_) => Effect::None,
        }
    }
}

/// Why a message of a batch was refused: which, and why. Nothing of the batch was stored unless the effect says otherwise.
#[derive(Clone, Debug, thiserror::Error)]
#[error("message {index}: {error}")]
pub struct BatchError {
    /// From 0.
    pub index: usize,
    /// What a single produce would have answered.
    pub error: ProduceError,
}

/// Why a consume got no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConsumeError {
    /// No such topic.
    #[error("topic not found")]
    TopicNotFound,
    /// The partition asked for does not exist.
    #[error("invalid partition: {partition} is not below the topic's {count} partitions")]
    NoSuchPartition {
        /// What was asked for.
        partition: u32,
        /// What there is.
        count: u32,
    },
    /// The partition's log cannot be opened or read now.
    #[error("partition owner is down; retry later")]
    OwnerDown,
    /// The partition's owner was asked and has not answered.
    #[error("the partition owner did not answer; a message may have been reserved; retry")]
    OutcomeUnknown,
    /// Too many consumers are parked.
    #[error("too many consumers wait on this topic (limit {limit} per node)")]
    TooManyWaiters {
        /// The bound.
        limit: usize,
    },
    /// The node is stopping.
    #[error("this node is stopping; ask another")]
    Stopping,
    /// Reading failed.
    #[error("consume failed")]
    ReadFailed,
}

impl ConsumeError {
    /// May a message have been leased? What was reserved is released before a refusal; what another node may have reserved is released once
    /// that node hears of it.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::OutcomeUnknown => Effect::Possible,
            Self::TopicNotFound
            | Self::NoSuchPartition { .. }
            | Self::OwnerDown
            | Self::TooManyWaiters { .. }
            | Self::Stopping
            | Self::ReadFailed => Effect::None,
        }
    }
}

/// Why a replay read got no message.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReplayError {
    /// No such topic.
    #[error("topic not found")]
    TopicNotFound,
    /// The partition asked for does not exist.
    #[error("invalid partition: {partition} is not below the topic's {count} partitions")]
    NoSuchPartition {
        /// What was asked for.
        partition: u32,
        /// What there is.
        count: u32,
    },
    /// Below the oldest retained offset.
    #[error("receipt handle no longer matches an active reservation: offset {offset} has aged out of retention (oldest is {oldest})")]
    AgedOut {
        /// What was asked for.
        offset: Offset,
        /// What is retained.
        oldest: Offset,
    },
    /// The record is damaged.
    #[error("receipt handle no longer matches an active reservation: offset {offset} is not readable")]
    Unreadable {
        /// What was asked for.
        offset: Offset,
    },
    /// The partition's log cannot be opened or read now.
    #[error("partition owner is down; retry later")]
    OwnerDown,
    /// Reading failed.
    #[error("consume failed")]
    ReadFailed,
}

/// Why an ack, extend or nack was not applied.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SettleError {
    /// No such topic.
    #[error("topic not found")]
    TopicNotFound,
    /// The handle's lease has ended, or never was.
    #[error("receipt handle no longer matches an active reservation")]
    LeaseLost,
    /// The partition's owner is not known, or not where it is; nothing was applied.
    #[error("partition owner is down; retry later")]
    OwnerDown,
    /// The partition's owner was not asked, or has not begun.
    #[error("the ack did not reach the partition owner and was not applied; retry")]
    NotReached,
    /// The partition's owner was asked and has not answered.
    #[error("the partition owner did not answer; the ack may have been applied; retry")]
    OutcomeUnknown,
}

impl SettleError {
    /// May the settle have been applied?
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::TopicNotFound | Self::LeaseLost | Self::OwnerDown | Self::NotReached => Effect::None,
            Self::OutcomeUnknown => Effect::Possible,
        }
    }
}

/// Why a topic was not changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// The catalog refused, or could not be reached.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// An owner could not be asked for its high watermark; nothing was linked.
    #[error("control plane temporarily unavailable: {reason}")]
    OwnerUnavailable {
        /// Which owner and why.
        reason: String,
    },
}

impl ControlError {
    /// May the change have been made?
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Propose(error) => error.effect(),
            Self::OwnerUnavailable { .. } => Effect::None,
        }
    }
}
