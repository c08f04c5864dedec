//! What may go wrong, and whether the thing asked for may have happened.

use std::time::Duration;

use veena_contract::Effect;

/// Why a member did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The log or the snapshot could not be read or written.
    #[error("the consensus log cannot be used: {detail}")]
    Store {
        /// What the store said.
        detail: String,
    },
    /// The snapshot is not one that this version understands.
    #[error("the snapshot cannot be restored: {0}")]
    Restore(#[from] crate::RestoreError),
    /// The log was written under another node name.
    #[error("the consensus log belongs to {members}, and this node is called {node}; start it under its old name, or with an empty folder")]
    NotAMember {
        /// This node.
        node: String,
        /// The members the log names.
        members: String,
    },
    /// The settings contradict each other.
    #[error("invalid consensus settings: {detail}")]
    Settings {
        /// Which.
        detail: String,
    },
    /// No leadership in time.
    #[error("no leadership within {within:?}")]
    NotReady {
        /// How long it was waited for.
        within: Duration,
    },
}

/// Why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Another member leads, or none does; the command was not taken.
    #[error("this node does not lead the metadata")]
    NotLeader,
    /// This member takes part no more; the command was not taken.
    #[error("{reason}")]
    Stopped {
        /// Why it stopped.
        reason: String,
    },
    /// The command was taken and the member stopped before its outcome was known.
    #[error("{reason}")]
    Lost {
        /// What happened.
        reason: String,
    },
    /// The command was taken and no outcome came in time.
    #[error("no outcome within {within:?}")]
    Timeout {
        /// How long it was waited for.
        within: Duration,
    },
}

impl ProposeError {
    /// May the command have been applied?
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::NotLeader | Self::Stopped { .. } => Effect::None,
            Self::Lost { .. } | Self::Timeout { .. } => Effect::Possible,
        }
    }
}

/// Why there is no linearizable read point. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// Another member leads, or none does, or a majority does not answer.
    #[error("the leader of the metadata could not be confirmed")]
    Unconfirmed,
    /// This member takes part no more.
    #[error("{reason}")]
    Stopped {
        /// Why it stopped.
        reason: String,
    },
    /// No confirmation in time.
    #[error("no confirmation within {within:?}")]
    Timeout {
        /// How long it was waited for.
        within: Duration,
    },
}

impl BarrierError {
    /// A read changes nothing.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Unconfirmed | Self::Stopped { .. } | Self::Timeout { .. } => Effect::None,
        }
    }
}
