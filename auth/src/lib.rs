//! Identities and secrets. All cryptography of the project lives here; nobody else names its crates.
//!
//! - [`secret`]: values that no log, error or answer may show.
//! - [`authenticator`]: from an `Authorization` header to a user's name. It puts these together: [`basic`] reads the header, [`username`] and
//!   [`password`] are what stands in it, `verified` remembers what a check found, `throttle` bounds failures, `permits` bounds computations.
//! - [`grant`], [`policy`]: what a user may do, and why.
//! - [`cluster_secret`]: the one secret of a cluster, and what is derived from it.
//! - [`tls`]: how nodes of a cluster prove to each other that they know it.
//!
//! This crate must never format a secret, and never compare one but in constant time.

pub mod authenticator;
pub mod basic;
pub mod cluster_secret;
pub mod grant;
pub mod password;
mod permits;
pub mod policy;
pub mod secret;
mod throttle;
pub mod tls;
pub mod username;
mod verified;

pub use authenticator::{AuthError, Authenticator};
pub use basic::{Credentials, InvalidBasic};
pub use cluster_secret::{ClusterSecret, ClusterSecretError, ClusterSecrets, SecretId};
pub use grant::{Action, Grant, GrantText, Grants, InvalidGrants, Pattern};
pub use password::{InvalidPassword, NoRandomness, Password, PasswordHash, UnusableHash};
pub use policy::{Decision, Denied, NotHeld, Principal, Reason, can_confer, decide, may_administer, may_manage, may_see};
pub use secret::Secret;
pub use tls::{ClusterIdentity, IdentityError, Proof, Role};
pub use username::{InvalidUsername, Username};
