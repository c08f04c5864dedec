//! Tenants, as operators see them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Grant, PasswordText};

/// `PUT /v1/admin/tenants/{tenant}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutTenant {
    /// `active` or `suspended`.
    pub state: String,
    /// Which change of it this is. A lower one than the applied one is refused; without one it rises by one with a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
}

/// A tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its name.
    pub tenant: String,
    /// `active`, `suspended` or `deleting`.
    pub state: String,
    /// Which change of it was applied last.
    pub revision: u64,
    /// When it was created, in Unix milliseconds; 0 for `default`, which always was.
    pub created_at_ms: u64,
    /// When it was last changed, in Unix milliseconds.
    pub updated_at_ms: u64,
    /// How many topics it has.
    pub topics: u64,
    /// How many users it has.
    pub users: u64,
    /// What is left of it, while it is being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<TenantLeft>,
}

/// What is left of a tenant that is being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TenantLeft {
    /// Its topics in the metadata.
    pub topics: u64,
    /// Its users in the metadata.
    pub users: u64,
    /// What the nodes have that answered.
    #[serde(flatten)]
    pub on_nodes: TenantTraces,
    /// The nodes that did not answer, or are behind: what they have is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// What a node has of a tenant that is being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TenantTraces {
    /// Topics whose partitions are not closed yet; with them go their counters, cursors and leases.
    pub open_topics: u64,
    /// Directories of topics.
    pub directories: u64,
    /// Directories that were set aside, and are removed after their grace time.
    pub quarantined: u64,
    /// Accepted messages whose topics are gone, and which are kept until the leader has confirmed that; of all tenants.
    pub orphans: u64,
    /// Positions of consumers and cursors in the settle journal.
    pub positions: u64,
}

impl TenantTraces {
    /// Is there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What two nodes have together.
    #[must_use]
    pub const fn and(&self, other: &Self) -> Self {
        Self {
            open_topics: self.open_topics + other.open_topics,
            directories: self.directories + other.directories,
            quarantined: self.quarantined + other.quarantined,
            orphans: self.orphans + other.orphans,
            positions: self.positions + other.positions,
        }
    }
}

/// What a node says of one tenant that is being deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeTenant {
    /// Which.
    pub tenant: String,
    /// What the node has of it; not there when its disk does not tell it soon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<TenantTraces>,
}

/// One page of tenants, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantList {
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// Where the next page begins; empty on the last.
    pub next_page_token: String,
}

/// `PUT /v1/admin/tenants/{tenant}/users/{user}`: creates the user, or sets what is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutUser {
    /// 1 to 72 bytes. Needed for a new user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub password: Option<PasswordText>,
    /// All that the user may do from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<Vec<Grant>>,
    /// As of a tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
}
