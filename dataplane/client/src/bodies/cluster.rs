//! The members of a cluster, and the partitions that move between them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::NodeTenant;

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
    /// What it says of itself. With `detail=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_status: Option<NodeStatus>,
    /// Why that is not known. With `detail=true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_error: Option<String>,
}

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeStatus {
    /// Its name.
    pub node: String,
    /// Does it know that it is being taken out, so that it takes no messages?
    pub draining: bool,
    /// How many produces it has let in and not answered yet.
    pub produce_in_flight: u64,
    /// How many messages that were accepted at it are not committed at their owners.
    pub dispatch_backlog: u64,
    /// What it has set aside; not there when its disk does not tell it soon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<Quarantine>,
    /// The moves that bring partitions to it; and, for some time, those that it has ended since they could not be completed.
    pub moves: Vec<NodeMove>,
    /// How far it has followed the metadata.
    pub applied: u64,
    /// What it has of tenants that are being deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<NodeTenant>,
}

/// What a node has set aside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Quarantine {
    /// How many directories.
    pub copies: u64,
    /// How large they are together.
    pub bytes: u64,
    /// Each of them, the newest first; not all when there are many.
    pub list: Vec<QuarantinedCopy>,
}

/// One directory that was set aside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QuarantinedCopy {
    /// `topic` for what a deleted topic left, `copy` for a copy of a partition that another node owns, else `other`.
    pub kind: String,
    /// The topic; by its id, if there is none of this id any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Which partition of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u64>,
    /// Its name below `quarantine`.
    pub dir: String,
    /// How large it is.
    pub bytes: u64,
    /// When it was set aside, in Unix seconds.
    pub mod_time: u64,
}

/// A move, as the node sees it to which the partition comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeMove {
    /// Whose topic; absent for the tenant `default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The topic.
    pub topic: String,
    /// Which partition of it.
    pub partition: u64,
    /// Who owns it.
    pub source: String,
    /// Who is to own it.
    pub target: String,
    /// Since when this process is at it, in Unix seconds; of a move that has ended, when it did.
    pub started_at: u64,
    /// What is done now; `aborted`, when the move has ended.
    pub phase: String,
    /// How often it did not get on.
    pub attempts: u64,
    /// Why, the last time; why it was aborted.
    pub last_error: String,
    /// Bytes that came, those that came again included.
    pub copied_bytes: u64,
    /// `aborted`, when the move has ended since it could not be completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
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
    /// Moves that members have ended lately by themselves, since they could not be completed. With `detail=true`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aborted: Vec<AbortedMove>,
}

/// A move that could not be completed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AbortedMove {
    /// Whose topic; absent for the tenant `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The topic.
    pub topic: String,
    /// Which partition of it.
    pub partition: u64,
    /// Who owned it and went on.
    pub from: String,
    /// Who was to own it.
    pub to: String,
    /// Why.
    pub reason: String,
    /// When, in Unix seconds.
    pub aborted_at: u64,
}

/// One partition that is being moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterMove {
    /// Whose topic; absent for the tenant `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
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
    /// What the node that is to own it is doing for it, if that answers. With `detail=true`.
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
