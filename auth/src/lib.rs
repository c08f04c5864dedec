//! Identities and secrets. All cryptography of the project lives here; nobody else names its crates.
//!
//! - [`secret`]: values that no log, error or answer may show.
//! - [`authenticator`]: from an `Authorization` header to a user's name. It puts these together: [`basic`] reads the header, a [`Username`]
//!   and a [`password`] are what stands in it, `verified` remembers what a check found, `throttle` bounds failures, `permits` bounds computations.
//! - [`apikey`]: keys of service accounts, which need no password hash and nothing remembered.
//! - [`token`]: tokens of an issuer outside, verified with its public keys.
//! - [`policy`]: what a user may do, given their [`Grants`], and why.
//! - [`cluster_secret`]: the one secret of a cluster, and what is derived from it.
//! - [`tls`]: how nodes of a cluster prove to each other that they know it.
//! - [`sealed`]: secrets that are stored, under keys derived from it.
//! - [`server_tls`]: the certificate that a node shows its clients; [`client_tls`]: whom a client trusts.
//!
//! This crate must never format a secret, and never compare one but in constant time.

pub mod apikey;
pub mod authenticator;
pub mod basic;
pub mod client_tls;
pub mod cluster_secret;
pub mod password;
mod permits;
pub mod policy;
pub mod sealed;
pub mod secret;
pub mod server_tls;
mod throttle;
pub mod tls;
pub mod token;
mod verified;

pub use apikey::{ApiKey, InvalidApiKey, KeyKind};
pub use authenticator::{AuthError, Authenticator};
pub use basic::{Credentials, InvalidBasic};
pub use cluster_secret::{ClusterSecret, ClusterSecretError, ClusterSecrets, SecretId};
pub use password::{InvalidPassword, NoRandomness, Password, PasswordHash, UnusableHash};
pub use policy::{
    Decision, Denied, NotHeld, Principal, Reason, can_confer, decide, may_administer, may_copy_metadata, may_manage, may_operate, may_see,
    may_see_counters,
};
pub use sealed::{KeyRing, Purpose, SealError, Sealed};
pub use secret::Secret;
pub use server_tls::{HandshakeError, Pair, PairError, ServerStream, ServerTls};
pub use tls::{ClusterIdentity, IdentityError, Proof, Role};
pub use token::{InvalidToken, SignedToken, Token};
pub use veena_contract::{Action, Grant, GrantText, Grants, InvalidGrants, InvalidUsername, Pattern, Username};
