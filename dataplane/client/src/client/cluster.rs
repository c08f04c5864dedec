//! Routes of the cluster.

use reqwest::Method;

use super::{Client, NO_BODY};
use crate::bodies::{ClusterMember, ClusterMembers, ClusterMoves, Decommission, Forgotten, MoveAborted};
use crate::error::ClientError;
use crate::routes::Route;

impl Client {
    /// `GET /v1/cluster/members`: the members, in detail.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn cluster_members(&self) -> Result<Vec<ClusterMember>, ClientError> {
        let answer: ClusterMembers = self.get(self.v1(&["cluster", "members"]).with("detail", "true")).await?;
        Ok(answer.members)
    }

    /// `GET /v1/cluster/backup`: a copy of the metadata, as a file.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn cluster_backup(&self) -> Result<Vec<u8>, ClientError> {
        self.get_bytes(self.v1(&["cluster", "backup"])).await
    }

    /// `GET /v1/cluster/moves`: the partitions that are being moved, in detail.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn cluster_moves(&self) -> Result<ClusterMoves, ClientError> {
        self.get(self.v1(&["cluster", "moves"]).with("detail", "true")).await
    }

    /// `POST /v1/cluster/members/{id}/decommission`: begins to take a member out.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn decommission(&self, member: &str) -> Result<(), ClientError> {
        self.change_nothing_back(Method::POST, self.decommission_of(member)).await
    }

    /// The same with `dry_run=true`: what it would come to.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn would_decommission(&self, member: &str) -> Result<Decommission, ClientError> {
        self.change(Method::POST, self.decommission_of(member).with("dry_run", "true"), NO_BODY).await
    }

    /// `DELETE /v1/cluster/members/{id}/decommission`: keeps a member that was being taken out.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn cancel_decommission(&self, member: &str) -> Result<(), ClientError> {
        self.remove(self.decommission_of(member)).await
    }

    /// `POST /v1/cluster/members/{id}/forget`: gives up a member that is dead for good.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn forget(&self, member: &str) -> Result<Forgotten, ClientError> {
        self.change(Method::POST, self.v1(&["cluster", "members", member, "forget"]), NO_BODY).await
    }

    /// `POST /v1/cluster/moves/{topic}/{partition}/abort`: ends a move.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn abort_move(&self, topic: &str, partition: u64) -> Result<MoveAborted, ClientError> {
        self.abort_move_of(None, topic, partition).await
    }

    /// The same, of a topic of another tenant than the caller's.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn abort_move_of(&self, tenant: Option<&str>, topic: &str, partition: u64) -> Result<MoveAborted, ClientError> {
        let route = self.v1(&["cluster", "moves", topic, &partition.to_string(), "abort"]).with_some("tenant", tenant);
        self.change(Method::POST, route, NO_BODY).await
    }

    fn decommission_of(&self, member: &str) -> Route {
        self.v1(&["cluster", "members", member, "decommission"])
    }
}
