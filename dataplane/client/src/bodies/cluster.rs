//! The members of a cluster, and the partitions that move between them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The members, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterMembers {
    /// All of them.
    pub members: Vec<ClusterMember>,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterMember {
    /// Its name.
    pub id: String,
    /// Where other nodes reach it; empty for a node alone.
    pub addr: String,
    /// `alive` if it answered the node that was asked just now, else `dead`.
    pub status: String,
    /// Is it being taken out of service?
    pub draining: bool,
    /// How many partitions it owns.
    pub owned_partitions: u64,
    /// How many partitions are being moved away from it.
    pub outbound_moves: u64,
    /// Does it vote on metadata? With `detail=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voter: Option<bool>,
    /// Does it lead? With `detail=true`; absent while no leader is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<bool>,
    /// How long the node that was asked has not heard it. With `detail=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_age_seconds: Option<u64>,
    /// What it waits for, while it is being taken out. With `detail=true`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decommission_blocked: Vec<Reason>,
}

/// One thing that stands in the way of taking a node out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reason {
    /// Which, as a word: `below_min_voters`, `no_healthy_majority`, `move_target`, `dispatch_backlog`, `node_status_unavailable`,
    /// `no_receivers`, `owner_dead`, `move_budget_full` or `leader_transfer`.
    pub code: String,
    /// In words.
    pub message: String,
}

/// What taking a node out would come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Decommission {
    /// The node.
    pub member: String,
    /// Would it be begun?
    pub would_decommission: bool,
    /// What would stand in the way, for now or for good.
    pub reasons: Vec<Reason>,
    /// Does it vote on metadata?
    pub voter: bool,
    /// How many partitions would have to be moved away.
    pub owned_partitions: u64,
    /// How many partitions are being moved to it.
    pub inbound_moves: u64,
}

/// A node that was given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Forgotten {
    /// The node.
    pub id: String,
    /// Did it vote on metadata?
    pub voter: bool,
}

/// The partitions that are being moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterMoves {
    /// All of them.
    pub moves: Vec<ClusterMove>,
}

/// One partition that is being moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterMove {
    /// The topic.
    pub topic: String,
    /// Which partition of it.
    pub partition: u64,
    /// Who owns it.
    pub from: String,
    /// Who is to own it.
    pub to: String,
    /// Has the owner stopped, so that it is served by nobody until the move ends?
    #[serde(default)]
    pub frozen: bool,
    /// `alive`, `dead`, `draining` or `not_a_member`. With `detail=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_status: Option<String>,
    /// The same of the other node. With `detail=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_status: Option<String>,
    /// Why it does not go on: `source_dead`, `target_dead` or `target_not_member`. With `detail=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// What the node that was asked is doing for it, if it is the one that is to own it. With `detail=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// What went wrong there last. With `detail=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_error: Option<String>,
}

/// A move that was ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoveAborted {
    /// The move as it was.
    pub r#move: ClusterMove,
    /// What comes next, in words.
    pub note: String,
}
