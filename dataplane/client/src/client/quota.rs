//! Routes of limits and usage.

use reqwest::Method;

use super::Client;
use crate::bodies::{QuotaView, SetQuota, Usage};
use crate::error::ClientError;

impl Client {
    /// `GET /v1/quota`: the limits of one's own tenant.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn quota(&self) -> Result<QuotaView, ClientError> {
        self.get(self.v1(&["quota"])).await
    }

    /// `GET /v1/admin/tenants/{tenant}/quota`: the limits of any tenant.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn tenant_quota(&self, tenant: &str) -> Result<QuotaView, ClientError> {
        self.get(self.v1(&["admin", "tenants", tenant, "quota"])).await
    }

    /// `PUT /v1/admin/tenants/{tenant}/quota`: replaces the limits of a tenant or of one of its topics.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn set_quota(&self, tenant: &str, quota: &SetQuota) -> Result<QuotaView, ClientError> {
        self.change(Method::PUT, self.v1(&["admin", "tenants", tenant, "quota"]), Some(quota)).await
    }

    /// `GET /v1/usage`: what one's own tenant has used.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn usage(&self) -> Result<Usage, ClientError> {
        self.get(self.v1(&["usage"])).await
    }

    /// `GET /v1/admin/usage`: what every tenant has used.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn all_usage(&self) -> Result<Vec<Usage>, ClientError> {
        self.get(self.v1(&["admin", "usage"])).await
    }
}
