//! The members of a cluster.

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
}
