//! Routes of tenants, for operators.

use reqwest::Method;

use super::Client;
use crate::bodies::{PutTenant, PutUser, Tenant, TenantList, User};
use crate::error::ClientError;
use crate::routes::Route;

impl Client {
    /// `GET /v1/admin/tenants`: one page of tenants, in name order.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn tenants_page(&self, limit: Option<u32>, token: Option<&str>) -> Result<TenantList, ClientError> {
        self.get(self.v1(&["admin", "tenants"]).with_some("limit", limit).with_some("page_token", token)).await
    }

    /// Every tenant, page by page.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn tenants(&self) -> Result<Vec<Tenant>, ClientError> {
        let mut tenants = Vec::new();
        let mut token: Option<String> = None;
        loop {
            let page = self.tenants_page(Some(1000), token.as_deref()).await?;
            tenants.extend(page.tenants);
            if page.next_page_token.is_empty() {
                return Ok(tenants);
            }
            token = Some(page.next_page_token);
        }
    }

    /// `GET /v1/admin/tenants/{tenant}`: one tenant.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn tenant(&self, tenant: &str) -> Result<Tenant, ClientError> {
        self.get(self.tenant_route(tenant)).await
    }

    /// `PUT /v1/admin/tenants/{tenant}`: creates a tenant, or changes it.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn put_tenant(&self, tenant: &str, body: &PutTenant) -> Result<Tenant, ClientError> {
        self.change(Method::PUT, self.tenant_route(tenant), Some(body)).await
    }

    /// `DELETE /v1/admin/tenants/{tenant}`: begins to delete a tenant with all that it has.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn delete_tenant(&self, tenant: &str) -> Result<(), ClientError> {
        self.remove(self.tenant_route(tenant)).await
    }

    /// `GET /v1/admin/tenants/{tenant}/users`: every user of a tenant, in name order.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn users_of(&self, tenant: &str) -> Result<Vec<User>, ClientError> {
        self.get(self.v1(&["admin", "tenants", tenant, "users"])).await
    }

    /// `PUT /v1/admin/tenants/{tenant}/users/{user}`: creates a user of a tenant, or sets what is given.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn put_user_of(&self, tenant: &str, name: &str, body: &PutUser) -> Result<User, ClientError> {
        self.change(Method::PUT, self.v1(&["admin", "tenants", tenant, "users", name]), Some(body)).await
    }

    /// `DELETE /v1/admin/tenants/{tenant}/users/{user}`: deletes a user of a tenant.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn delete_user_of(&self, tenant: &str, name: &str) -> Result<(), ClientError> {
        self.remove(self.v1(&["admin", "tenants", tenant, "users", name])).await
    }

    fn tenant_route(&self, tenant: &str) -> Route {
        self.v1(&["admin", "tenants", tenant])
    }
}
