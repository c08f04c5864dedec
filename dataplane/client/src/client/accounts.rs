//! Routes of service accounts and their keys.

use reqwest::Method;

use super::Client;
use crate::bodies::{Account, CreateAccount, CreateKey, CreatedKey, Key, SetGrants, Whoami};
use crate::error::ClientError;
use crate::routes::Route;

impl Client {
    /// `POST /v1/accounts`: creates a service account.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn create_account(&self, account: &CreateAccount) -> Result<Account, ClientError> {
        self.change(Method::POST, self.v1(&["accounts"]), Some(account)).await
    }

    /// `GET /v1/accounts`: every service account, in name order.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn accounts(&self) -> Result<Vec<Account>, ClientError> {
        self.get(self.v1(&["accounts"])).await
    }

    /// `GET /v1/accounts/{account}`: one service account.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn account(&self, name: &str) -> Result<Account, ClientError> {
        self.get(self.account_route(name)).await
    }

    /// `DELETE /v1/accounts/{account}`: deletes a service account, and its keys.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn delete_account(&self, name: &str) -> Result<(), ClientError> {
        self.remove(self.account_route(name)).await
    }

    /// `PUT /v1/accounts/{account}/grants`: replaces what a service account may do.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn set_account_grants(&self, name: &str, grants: &SetGrants) -> Result<Account, ClientError> {
        self.change(Method::PUT, self.v1(&["accounts", name, "grants"]), Some(grants)).await
    }

    /// `POST /v1/accounts/{account}/keys`: creates a key, which is in this answer and in no other.
    ///
    /// # Errors
    /// As the server refuses. When it is not known whether it was created, there may be a key that nobody has: delete it, and create another.
    pub async fn create_key(&self, account: &str, key: &CreateKey) -> Result<CreatedKey, ClientError> {
        self.change(Method::POST, self.v1(&["accounts", account, "keys"]), Some(key)).await
    }

    /// `GET /v1/accounts/{account}/keys`: the keys of a service account, oldest first.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn keys(&self, account: &str) -> Result<Vec<Key>, ClientError> {
        self.get(self.v1(&["accounts", account, "keys"])).await
    }

    /// `DELETE /v1/accounts/{account}/keys/{key}`: deletes a key.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn delete_key(&self, account: &str, id: &str) -> Result<(), ClientError> {
        self.remove(self.v1(&["accounts", account, "keys", id])).await
    }

    /// `GET /v1/whoami`: who one is.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn whoami(&self) -> Result<Whoami, ClientError> {
        self.get(self.v1(&["whoami"])).await
    }

    fn account_route(&self, name: &str) -> Route {
        self.v1(&["accounts", name])
    }
}
