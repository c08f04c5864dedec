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
    /// The log is of a cluster, and this node was started alone.
    #[error(
        "the consensus log is of a cluster ({members}), and this node was started alone: start it with an address for the other nodes \
         (cluster.peer_addr)"
    )]
    AmongOthers {
        /// The members the log names.
        members: String,
    },
    /// The settings contradict each other.
    #[error("invalid consensus settings: {detail}")]
    Settings {
        /// Which.
        detail: String,
    },
    /// The cluster does not take this node, or does not answer.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// No leader in time.
    #[error("no leader of the metadata within {within:?}: {reason}")]
    NotReady {
        /// How long it was waited for.
        within: Duration,
        /// What was found instead.
        reason: String,
    },
}

/// Why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// There is no leader that could be asked; the command was not taken.
    #[error("the leader of the metadata cannot be reached: {reason}")]
    NoLeader {
        /// What was found instead.
        reason: String,
    },
    /// The leader does not know this node as a member; the command was not taken.
    #[error("this node is no member of the cluster any more")]
    NotAMember,
    /// The leader takes no such command now.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// The command is larger than a call between nodes may be; it was not taken.
    #[error("the change has {bytes} bytes, more than the {bytes_max} that are taken")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// This member takes part no more; the command was not taken.
    #[error("{reason}")]
    Stopped {
        /// Why it stopped.
        reason: String,
    },
    /// The command was handed over, and whoever took it was lost before its outcome was known.
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
            Self::NoLeader { .. } | Self::NotAMember | Self::Refused { .. } | Self::TooLarge { .. } | Self::Stopped { .. } => Effect::None,
            Self::Lost { .. } | Self::Timeout { .. } => Effect::Possible,
        }
    }
}

/// Why there is no linearizable read point. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// There is no leader, or it cannot be reached, or no majority confirms it.
    #[error("the leader of the metadata could not be confirmed: {reason}")]
    Unconfirmed {
        /// What went wrong last.
        reason: String,
    },
    /// The leader does not know this node as a member.
    #[error("this node is no member of the cluster any more")]
    NotAMember,
    /// This member takes part no more.
    #[error("{reason}")]
    Stopped {
        /// Why it stopped.
        reason: String,
    },
    /// No confirmation in time, or not everything applied here that was confirmed.
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
            Self::Unconfirmed { .. } | Self::NotAMember | Self::Stopped { .. } | Self::Timeout { .. } => Effect::None,
        }
    }
}

/// Why a change of the members was not made, or may not have been. Asking again for the same change is harmless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The change is not allowed.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// There is no leader that could be asked.
    #[error("the leader of the metadata cannot be reached: {reason}")]
    NoLeader {
        /// What was found instead.
        reason: String,
    },
    /// The leader does not know this node as a member.
    #[error("this node is no member of the cluster any more")]
    NotAMember,
    /// This member takes part no more.
    #[error("{reason}")]
    Stopped {
        /// Why it stopped.
        reason: String,
    },
    /// The change was begun, and its outcome is not known.
    #[error("{reason}")]
    Lost {
        /// What happened.
        reason: String,
    },
    /// The change was begun, and no outcome came in time.
    #[error("no outcome within {within:?}")]
    Timeout {
        /// How long it was waited for.
        within: Duration,
    },
}

impl MemberError {
    /// May the change have been made?
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Refused { .. } | Self::NoLeader { .. } | Self::NotAMember | Self::Stopped { .. } => Effect::None,
            Self::Lost { .. } | Self::Timeout { .. } => Effect::Possible,
        }
    }
}
