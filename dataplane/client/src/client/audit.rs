//! Routes of the audit trail, and why somebody may do something.

use veena_contract::AuditKind;

use super::Client;
use crate::bodies::Explained;
use crate::error::ClientError;

impl Client {
    /// `GET /v1/audit`: records of one's own tenant behind number `after`, as lines; none when there are no more. With a tenant,
    /// `GET /v1/admin/audit`, for operators.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn audit(&self, tenant: Option<&str>, kind: AuditKind, after: u64) -> Result<Vec<u8>, ClientError> {
        let route = match tenant {
            Some(tenant) => self.v1(&["admin", "audit"]).with("tenant", tenant),
            None => self.v1(&["audit"]),
        };
        self.get_bytes(route.with("kind", kind.as_str()).with("after", after.to_string())).await
    }

    /// `GET /v1/explain`: why a user may do something, or may not; of another tenant's user, for operators.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn explain(&self, tenant: Option<&str>, user: &str, action: &str, topic: Option<&str>) -> Result<Explained, ClientError> {
        let route = self.v1(&["explain"]).with_some("tenant", tenant).with("user", user).with("action", action);
        self.get(route.with_some("topic", topic)).await
    }
}
