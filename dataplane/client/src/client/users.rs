//! Routes of users.

use reqwest::Method;

use super::Client;
use crate::bodies::{CreateUser, SetGrants, SetPassword, User};
use crate::error::ClientError;
use crate::routes::Route;

impl Client {
    /// `POST /v1/users`: creates a user.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn create_user(&self, user: &CreateUser) -> Result<User, ClientError> {
        self.change(Method::POST, self.v1(&["users"]), Some(user)).await
    }

    /// `GET /v1/users`: every user, in name order.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn users(&self) -> Result<Vec<User>, ClientError> {
        self.get(self.v1(&["users"])).await
    }

    /// `GET /v1/users/{user}`: one user.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn user(&self, name: &str) -> Result<User, ClientError> {
        self.get(self.user_route(name)).await
    }

    /// `DELETE /v1/users/{user}`: deletes a user.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn delete_user(&self, name: &str) -> Result<(), ClientError> {
        self.remove(self.user_route(name)).await
    }

    /// `PUT /v1/users/{user}/grants`: replaces what a user may do.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn set_grants(&self, name: &str, grants: &SetGrants) -> Result<User, ClientError> {
        self.change(Method::PUT, self.v1(&["users", name, "grants"]), Some(grants)).await
    }

    /// `PUT /v1/users/{user}/password`: replaces a user's password.
    ///
    /// # Errors
    /// As the server refuses.
    pub async fn set_password(&self, name: &str, password: &SetPassword) -> Result<(), ClientError> {
        let route = self.v1(&["users", name, "password"]);
        let call = self.json_call(crate::retry::Kind::Change, Method::PUT, route, password)?;
        self.send(call).await.map(|_| ())
    }

    fn user_route(&self, name: &str) -> Route {
        self.v1(&["users", name])
    }
}
