//! The users of a tenant, as the metastore keeps them (http-contract 1.5).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::grants::Grants;
use crate::ids::TenantId;
use crate::names::TopicName;
use crate::username::Username;

/// What is stored of a password: a text that only `auth` reads. It cannot be printed; serialized it is the text, which only the metastore may do.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoredHash(Arc<str>);

impl StoredHash {
    /// Takes what was computed.
    #[must_use]
    pub const fn new(text: Arc<str>) -> Self {
        Self(text)
    }

    /// The text. Whoever calls this must not let it out.
    #[must_use]
    pub const fn expose(&self) -> &Arc<str> {
        &self.0
    }
}

impl fmt::Debug for StoredHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoredHash")
    }
}

/// Which kind of user it is. They share one namespace, and differ in how they sign in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserKind {
    /// Somebody with a password.
    #[default]
    Person,
    /// A service account: it has no password, and signs in with API keys.
    Service,
}

impl UserKind {
    /// As on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Person => "person",
            Self::Service => "service",
        }
    }

    /// Is it the kind that needs no saying?
    #[must_use]
    pub const fn is_person(&self) -> bool {
        matches!(self, Self::Person)
    }
}

/// Who makes a change: a user of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Actor {
    /// Whose user it is.
    pub tenant: TenantId,
    /// The name.
    pub username: Username,
}

/// One user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRecord {
    /// Whose user it is.
    pub tenant: TenantId,
    /// The name.
    pub username: Username,
    /// Somebody, or a service account.
    #[serde(default, skip_serializing_if = "UserKind::is_person")]
    pub kind: UserKind,
    /// What is stored of the password. A service account has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<StoredHash>,
    /// What the user may do.
    #[serde(default, skip_serializing_if = "Grants::is_empty")]
    pub grants: Grants,
    /// Is it the root admin, whose name is [`Username::ROOT`]? Nobody else of the tenant `default` has that name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_root: bool,
    /// When the user was created.
    pub created_at_ms: u64,
    /// When the grants or the password were last set.
    pub updated_at_ms: u64,
    /// Rises with each change that an operator makes from outside of the tenant.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub revision: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl UserRecord {
    /// The user, as whoever makes a change.
    #[must_use]
    pub fn actor(&self) -> Actor {
        Actor { tenant: self.tenant.clone(), username: self.username.clone() }
    }

    /// Is it somebody, with a password?
    #[must_use]
    pub const fn is_person(&self) -> bool {
        self.kind.is_person()
    }

    /// May the user do everything?
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.is_root || self.grants.has_admin()
    }
}

/// Why a caller may not make a change. Looked at where the change is applied, whatever the node that took it has decided: rights may have been
/// taken away in between. The texts are those of http-contract 1.5.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Forbidden {
    /// There is no such user any more.
    #[error("caller unknown to the leader")]
    CallerUnknown,
    /// It takes `admin`.
    #[error("admin privileges required")]
    NotAdmin,
    /// No grant of `create` covers the name.
    #[error("create not allowed on this topic")]
    MayNotCreate,
    /// The topic is not theirs.
    #[error("only the owner of topic \"{topic}\" or an admin may modify it")]
    NotOwner {
        /// Which topic.
        topic: TopicName,
    },
    /// Only the root admin gives `admin`.
    #[error("cannot grant permissions you do not hold")]
    NotHeld,
    /// The root admin stays.
    #[error("the root admin cannot be deleted")]
    RootStays,
    /// The root admin's rights stay.
    #[error("the root admin's grants cannot be changed")]
    RootGrants,
    /// The root admin's password is the root admin's.
    #[error("only the root admin may change the root admin's password")]
    RootPassword,
    /// Nobody deletes themselves.
    #[error("cannot delete your own account")]
    OwnAccount,
    /// Nobody sets their own rights.
    #[error("cannot change your own grants")]
    OwnGrants,
    /// It takes an admin of the tenant `default`.
    #[error("operator privileges required")]
    NotOperator,
    /// Nobody of the caller's tenant may do anything now.
    #[error("tenant is suspended")]
    TenantSuspended,
}
