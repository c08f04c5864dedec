//! The route of whose tokens are taken.

use reqwest::Method;

use super::Client;
use crate::bodies::{PutTokenIssuer, TokenIssuer};
use crate::error::ClientError;

impl Client {
    /// `GET /v1/admin/token-issuer`: whose tokens are taken.
    ///
    /// # Errors
    /// As the server refuses; 404 if nobody's are.
    pub async fn token_issuer(&self) -> Result<TokenIssuer, ClientError> {
        self.get(self.v1(&["admin", "token-issuer"])).await
    }

    /// `PUT /v1/admin/token-issuer`: says whose tokens are taken.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn put_token_issuer(&self, issuer: &PutTokenIssuer) -> Result<TokenIssuer, ClientError> {
        self.change(Method::PUT, self.v1(&["admin", "token-issuer"]), Some(issuer)).await
    }

    /// `DELETE /v1/admin/token-issuer`: takes nobody's tokens any more.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn delete_token_issuer(&self) -> Result<(), ClientError> {
        self.remove(self.v1(&["admin", "token-issuer"])).await
    }
}
