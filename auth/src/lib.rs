//! Identities and secrets. All cryptography of the project lives here; nobody else names its crates.
//!
//! - [`secret`]: values that no log, error or answer may show.
//! - [`cluster_secret`]: the one secret of a cluster, and what is derived from it.
//! - [`tls`]: how nodes of a cluster prove to each other that they know it.
//!
//! This crate must never format a secret, and never compare one but in constant time.

pub mod cluster_secret;
pub mod secret;
pub mod tls;

pub use cluster_secret::{ClusterSecret, ClusterSecretError, ClusterSecrets, SecretId};
pub use secret::Secret;
pub use tls::{ClusterIdentity, IdentityError, Proof, Role};
