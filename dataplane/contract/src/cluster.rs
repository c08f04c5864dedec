//! The members of a cluster, as one of them sees the others; and what stands in the way of taking one out.

use std::time::Duration;

use bytes::Bytes;

use crate::audit::Origin;
use crate::catalog::BoxFuture;
use crate::ids::NodeId;
use crate::peer::{NodeDirectory, PeerAddr};
use crate::problem::Effect;

/// One member of the cluster, as the node that answers sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name and where it listens.
    pub peer: PeerAddr,
    /// Did it answer just now?
    pub is_alive: bool,
    /// Did it say that it serves partitions?
    pub is_ready: bool,
    /// Does it vote on metadata? A learner only follows.
    pub is_voter: bool,
    /// Does it lead? `None` if no leader is known.
    pub is_leader: Option<bool>,
    /// How long it has been silent.
    pub silent: Duration,
}

/// What is known of a node without asking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It was heard not long ago.
    Alive,
    /// It has been silent for too long.
    Dead,
    /// It does not take part.
    NotAMember,
}

/// What stands in the way of taking a node out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObstacleCode {
    /// Too few voters would be left.
    BelowMinVoters,
    /// Those who would be left could not agree on anything, since too few of them live.
    NoHealthyMajority,
    /// It is given partitions by moves that are under way.
    MoveTarget,
    /// It has messages that are not committed at their owners yet.
    DispatchBacklog,
    /// It does not say how far it is.
    NodeStatusUnavailable,
    /// Nobody could take its partitions.
    NoReceivers,
    /// It owns partitions, and is dead: nobody else has what is in them.
    OwnerDead,
    /// It owns partitions, and as many as may be are being moved.
    MoveBudgetFull,
    /// It leads, and ends that when it leaves.
    LeaderTransfer,
}

impl ObstacleCode {
    /// The text used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BelowMinVoters => "below_min_voters",
            Self::NoHealthyMajority => "no_healthy_majority",
            Self::MoveTarget => "move_target",
            Self::DispatchBacklog => "dispatch_backlog",
            Self::NodeStatusUnavailable => "node_status_unavailable",
            Self::NoReceivers => "no_receivers",
            Self::OwnerDead => "owner_dead",
            Self::MoveBudgetFull => "move_budget_full",
            Self::LeaderTransfer => "leader_transfer",
        }
    }
}

/// One thing that stands in the way of taking a node out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Which.
    pub code: ObstacleCode,
    /// In words.
    pub message: String,
    /// Does it stay, as long as nobody adds a node or brings one back?
    pub is_lasting: bool,
}

/// Why a node is not forgotten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// It is the node that was asked.
    #[error("a node does not forget itself; ask another one")]
    Oneself,
    /// There is no such member.
    #[error("member not found")]
    NotAMember,
    /// It lives, says somebody, or has not been silent for long enough.
    #[error("{node} {reason}")]
    Alive {
        /// Who.
        node: NodeId,
        /// How that is known, and what can be done.
        reason: String,
    },
    /// The members cannot be changed so.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// The leader cannot be asked, or has not answered.
    #[error("control plane temporarily unavailable: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
        /// May it have been forgotten?
        effect: Effect,
    },
}

/// What is known of the members.
pub trait Members: NodeDirectory {
    /// Asks every member whether it is there, and waits so long for the answers; not for those of members that were silent when last asked.
    fn members(&self, within: Duration) -> BoxFuture<'_, Vec<Member>>;

    /// What is known of a node, without asking it.
    fn standing(&self, node: &NodeId) -> Standing;

    /// Does it vote on metadata, as far as is known?
    fn is_voter(&self, node: &NodeId) -> bool;

    /// What another member says of itself, as it says it ([`PeerOp::NODE_STATUS`](crate::PeerOp::NODE_STATUS)); or why that is not known.
    fn status(&self, node: &NodeId) -> BoxFuture<'_, Result<Bytes, String>>;

    /// What stands in the way of taking a member out, in order. Empty when it could leave now, and for a node that is none.
    fn obstacles(&self, node: &NodeId) -> Vec<Obstacle>;

    /// Takes a member out that is dead for good, for whoever asks for it: that is recorded first. What it owns keeps it as its owner. Answers
    /// whether it voted.
    fn forget(&self, node: &NodeId, origin: Origin) -> BoxFuture<'_, Result<bool, ForgetError>>;

    /// Why this node should not be called ready, as its cluster sees it.
    fn not_ready_reason(&self) -> Option<String>;

    /// What a node says that was taken out of its cluster; `None` of a member. It knows nothing any more that a client could use.
    fn taken_out(&self) -> Option<&'static str>;

    /// Completes when this node finds that it was taken out. Cancel-safe.
    fn until_taken_out(&self) -> BoxFuture<'_, ()>;
}
