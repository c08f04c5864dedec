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

    /// `GET /v1/cluster/backup`: a copy of the metadata, as a file.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn cluster_backup(&self) -> Result<Vec<u8>, ClientError> {
        self.get_bytes(self.v1(&["cluster", "backup"])).await
    }
}
