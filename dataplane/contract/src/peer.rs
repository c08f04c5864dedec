//! How nodes talk: one request, one answer, at message level. What carries it (QUIC, or a simulated network) is behind [`PeerClient`] and
//! [`PeerService`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::catalog::BoxFuture;
use crate::ids::NodeId;
use crate::problem::Effect;

/// What kind of call it is. Calls of one class may hold each other up, those of different classes may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerClass {
    /// Raft, barriers, liveness, membership: small, and never behind anything large.
    Control,
    /// Records and copies of partitions.
    Data,
    /// Calls that wait long for something to happen.
    Wait,
    /// What becomes of leases: small, and running out of time while it stands behind bulk or behind those that wait.
    Settle,
}

impl PeerClass {
    /// Every class.
    pub const ALL: [Self; 4] = [Self::Control, Self::Data, Self::Wait, Self::Settle];

    /// The text used in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Data => "data",
            Self::Wait => "wait",
            Self::Settle => "settle",
        }
    }
}

impl fmt::Display for PeerClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which call it is: a number of the registry. Numbers are never used again; a node answers one it does not know with
/// [`PeerRefusal::UnknownOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerOp(pub u16);

impl PeerOp {
    /// Entries of the metadata log, and the leader's sign of life.
    pub const RAFT_APPEND: Self = Self(1);
    /// A candidate asks to lead.
    pub const RAFT_VOTE: Self = Self(2);
    /// A piece of a snapshot of the metadata.
    pub const RAFT_SNAPSHOT: Self = Self(3);
    /// A change of metadata, for the leader.
    pub const METADATA_PROPOSE: Self = Self(4);
    /// Up to where the metadata was committed, from the leader.
    pub const METADATA_BARRIER: Self = Self(5);
    /// A change of who takes part in the metadata, for the leader.
    pub const METADATA_MEMBERS: Self = Self(6);
    /// Where a stream stands in a partition's log, from its owner.
    pub const OWNER_OPEN: Self = Self(7);
    /// Part of a stream, for a partition's owner.
    pub const OWNER_COMMIT: Self = Self(8);
    /// Messages that are produced owner-synchronously, for a partition's owner.
    pub const OWNER_PRODUCE: Self = Self(9);
    /// Leases of messages, from the owner of their partitions.
    pub const OWNER_CLAIM: Self = Self(10);
    /// A consumer waits at the owner of partitions.
    pub const OWNER_WAIT: Self = Self(11);
    /// Leases to be acked, extended or handed back, for their partitions' owner.
    pub const OWNER_SETTLE: Self = Self(12);
    /// One message without a lease, from its partition's owner.
    pub const OWNER_READ: Self = Self(13);
    /// Numbers of partitions, from their owner.
    pub const OWNER_DESCRIBE: Self = Self(14);
    /// How far children are behind partitions, from these partitions' owner.
    pub const CURSOR_LAG: Self = Self(15);
    /// What became of claims, and which consumers wait no more.
    pub const OWNER_ENDINGS: Self = Self(16);
    /// Is this node there, does it serve partitions, and what does its clock say? A node of the first version says nothing.
    pub const NODE_ALIVE: Self = Self(17);
    /// Part of a copy of a partition that moves, from its owner.
    pub const OWNER_COPY: Self = Self(18);
    /// A partition that moves is to be handed over by its owner.
    pub const OWNER_FREEZE: Self = Self(19);
    /// Messages that are produced owner-synchronously under idempotency keys, for a partition's owner.
    pub const OWNER_PRODUCE_KEYED: Self = Self(20);
    /// What came in under idempotency keys, from the owner of the partition that they led to before their topic grew.
    pub const OWNER_LOOK_UP_KEYS: Self = Self(21);

    /// What a node says of itself: what it has to do yet, what it has set aside, what comes to it. JSON, to which fields may be added.
    pub const NODE_STATUS: Self = Self(22);

    /// What a node was asked for of limits that the nodes share, for the leader of the metadata, which gives it its shares. JSON.
    pub const QUOTA_SHARES: Self = Self(23);
    /// What tenants have used, and what those store who have a limit on it, from a node. JSON, to which fields may be added.
    pub const USAGE: Self = Self(24);

    /// The registry: every number that was ever given. Only grows.
    pub const ALL: [Self; 24] = [
        Self::RAFT_APPEND,
        Self::RAFT_VOTE,
        Self::RAFT_SNAPSHOT,
        Self::METADATA_PROPOSE,
        Self::METADATA_BARRIER,
        Self::METADATA_MEMBERS,
        Self::OWNER_OPEN,
        Self::OWNER_COMMIT,
        Self::OWNER_PRODUCE,
        Self::OWNER_CLAIM,
        Self::OWNER_WAIT,
        Self::OWNER_SETTLE,
        Self::OWNER_READ,
        Self::OWNER_DESCRIBE,
        Self::CURSOR_LAG,
        Self::OWNER_ENDINGS,
        Self::NODE_ALIVE,
        Self::OWNER_COPY,
        Self::OWNER_FREEZE,
        Self::OWNER_PRODUCE_KEYED,
        Self::OWNER_LOOK_UP_KEYS,
        Self::NODE_STATUS,
        Self::QUOTA_SHARES,
        Self::USAGE,
    ];
}

impl fmt::Display for PeerOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op {}", self.0)
    }
}

/// Whom to call, and where that node listens now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr {
    /// The node; whoever answers under another name is not it.
    pub node: NodeId,
    /// `host:port` of its peer plane.
    pub addr: Arc<str>,
}

/// One call.
#[derive(Clone, Debug)]
pub struct PeerCall {
    /// Its class.
    pub class: PeerClass,
    /// Which call.
    pub op: PeerOp,
    /// How long the caller waits for the answer, all in all. Travels as what is left of it, so that no clocks are compared.
    pub timeout: Duration,
    /// The argument, in the form that the op defines.
    pub body: Bytes,
}

/// Why a node did not serve a call. It was certainly not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerRefusal {
    /// It knows no such op: an older node.
    UnknownOp,
    /// The caller had given up before the call was begun.
    TooLate,
    /// The argument is larger than its class allows.
    TooLarge,
    /// The argument is not of the form that the op defines.
    Malformed,
    /// The node is starting or stopping.
    NotServing,
    /// The caller is not somebody whom this node serves: of another cluster, or removed from this one.
    NotAdmitted,
}

impl PeerRefusal {
    /// Every refusal. Only grows.
    pub const ALL: [Self; 6] = [Self::UnknownOp, Self::TooLate, Self::TooLarge, Self::Malformed, Self::NotServing, Self::NotAdmitted];

    /// Its number on the wire: from 1 on.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::UnknownOp => 1,
            Self::TooLate => 2,
            Self::TooLarge => 3,
            Self::Malformed => 4,
            Self::NotServing => 5,
            Self::NotAdmitted => 6,
        }
    }

    /// The refusal of a number; `None` if only newer nodes know it.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.number() == number)
    }

    /// In words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownOp => "it does not know this call",
            Self::TooLate => "the call came too late",
            Self::TooLarge => "the call is too large",
            Self::Malformed => "the call is malformed",
            Self::NotServing => "it is starting or stopping",
            Self::NotAdmitted => "it does not serve this node",
        }
    }
}

impl fmt::Display for PeerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// There is no connection to the node, and none could be made: nothing was sent.
    #[error("{node} cannot be reached: {reason}")]
    Unreachable {
        /// Whom.
        node: NodeId,
        /// What went wrong. Holds no secret and no address.
        reason: String,
    },
    /// The node, or what lies before it, took no more calls within the time: nothing was sent.
    #[error("{node} is busy")]
    Busy {
        /// Whom.
        node: NodeId,
    },
    /// The argument is larger than its class allows: nothing was sent.
    #[error("a call of {bytes} bytes is over the bound of {bytes_max}")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The node refused the call.
    #[error("{node} refused the call: {refusal}")]
    Refused {
        /// Who.
        node: NodeId,
        /// Why.
        refusal: PeerRefusal,
    },
    /// The call was sent, and no answer came in time.
    #[error("{node} did not answer in time")]
    Silent {
        /// Who.
        node: NodeId,
    },
    /// The call was sent, and the connection ended before the answer.
    #[error("the connection to {node} ended before its answer: {reason}")]
    Lost {
        /// Who.
        node: NodeId,
        /// What went wrong.
        reason: String,
    },
    /// The call was sent, and what came back is no answer.
    #[error("{node} answered what is no answer: {reason}")]
    BadAnswer {
        /// Who.
        node: NodeId,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The node began the call and broke.
    #[error("{node} failed in the middle of the call")]
    Failed {
        /// Who.
        node: NodeId,
    },
}

impl PeerError {
    /// May the call have been applied?
    #[must_use]
    pub const fn effect(&self) -> Effect {
        match self {
            Self::Unreachable { .. } | Self::Busy { .. } | Self::TooLarge { .. } | Self::Refused { .. } => Effect::None,
            Self::Silent { .. } | Self::Lost { .. } | Self::BadAnswer { .. } | Self::Failed { .. } => Effect::Possible,
        }
    }
}

/// The calling side.
pub trait PeerClient: Send + Sync + 'static {
    /// Makes one call and waits for its answer, at most for the call's timeout. MUST NOT repeat a call by itself: only the caller knows
    /// whether that is harmless. A caller that drops the future has given up; the node may have begun.
    fn call<'a>(&'a self, to: &'a PeerAddr, call: PeerCall) -> BoxFuture<'a, Result<Bytes, PeerError>>;
}

/// Who takes part in the cluster, and where each node listens; as far as this node has applied the metadata.
pub trait NodeDirectory: Send + Sync + 'static {
    /// The members, by name.
    fn nodes(&self) -> Vec<NodeId>;

    /// How to call a member.
    fn address_of(&self, node: &NodeId) -> Option<PeerAddr>;

    /// Who leads the metadata, if that is known. A directory that does not know says nobody.
    fn leader(&self) -> Option<NodeId> {
        None
    }

    /// Has somebody who may say so found that this node is dead? Then nobody waits to see for himself. A directory that does not know says no.
    fn is_dead(&self, _node: &NodeId) -> bool {
        false
    }
}

/// Is the caller of a request still there? For whoever is about to do something that cannot be undone.
#[derive(Clone, Debug, Default)]
pub struct CallerGone(Arc<AtomicBool>);

impl CallerGone {
    /// The caller has left.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Has it left?
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A request as the serving side gets it.
#[derive(Clone, Debug)]
pub struct PeerRequest {
    /// Who calls; proven by the connection.
    pub from: NodeId,
    /// Its class.
    pub class: PeerClass,
    /// Which call.
    pub op: PeerOp,
    /// How long the caller still waits.
    pub remaining: Duration,
    /// Has it given up before that?
    pub caller: CallerGone,
    /// The argument.
    pub body: Bytes,
}

/// The serving side.
pub trait PeerService: Send + Sync + 'static {
    /// Serves one request. Whatever was begun is ended, also when the caller has gone: only what has not been begun is dropped.
    ///
    /// # Errors
    /// A [`PeerRefusal`]; then nothing was done.
    fn serve(&self, request: PeerRequest) -> BoxFuture<'_, Result<Bytes, PeerRefusal>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_call_is_unique_and_never_changes() {
        assert_eq!(PeerOp::ALL.map(|op| op.0), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]);
    }

    #[test]
    fn the_number_of_a_refusal_never_changes() {
        assert_eq!(PeerRefusal::ALL.map(PeerRefusal::number), [1, 2, 3, 4, 5, 6]);
        for number in 0..=u8::MAX {
            assert_eq!(PeerRefusal::of_number(number).map(PeerRefusal::number), (1..=6).contains(&number).then_some(number));
        }
    }
}
