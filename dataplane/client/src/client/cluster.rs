//! Routes of the cluster.

use super::Client;
use crate::bodies::{ClusterMember, ClusterMembers};
use crate::error::ClientError;

impl Client {
    /// `GET /v1/cluster/members`: the members, in detail.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn cluster_members(&self) -> Result<Vec<ClusterMember>, ClientError> {
        let answer: ClusterMembers = self.get(self.v1(&["cluster", "members"]).with("detail", "true")).await?;
        Ok(answer.members)
    }
}
