//! The tenants of a cluster, as the metastore keeps them.

use serde::{Deserialize, Serialize};

use crate::ids::TenantId;

/// What a tenant's users may do at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TenantState {
    /// What they were granted.
    Active,
    /// Nothing, until it is resumed. What the tenant has stays.
    Suspended,
    /// Nothing any more: what the tenant has is going, and then the tenant.
    Deleting,
}

impl TenantState {
    /// As on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
            Self::Deleting => "deleting",
        }
    }
}

/// One tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Its name.
    pub tenant: TenantId,
    /// What its users may do at all.
    pub state: TenantState,
    /// Rises with each change of this record. Whoever manages tenants from outside names it; a lower one than this is refused.
    pub revision: u64,
    /// When it was created. Two lives of one name differ in it.
    pub created_at_ms: u64,
    /// When it was last changed.
    pub updated_at_ms: u64,
    /// Was it restricted by somebody on the cluster itself? Then only they lift that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
}

impl TenantRecord {
    /// The tenant `default` as it is before anybody has said anything about it.
    #[must_use]
    pub fn of_default() -> Self {
        Self {
            tenant: TenantId::default_tenant(),
            state: TenantState::Active,
            revision: 0,
            created_at_ms: 0,
            updated_at_ms: 0,
            by_hand: false,
        }
    }
}

/// How much a tenant has in the catalog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantCounts {
    /// Its topics.
    pub topics: usize,
    /// Its users.
    pub users: usize,
    /// The partitions of its topics.
    pub partitions: u64,
    /// The keys of its service accounts, those that have expired among them.
    pub keys: usize,
}

impl TenantCounts {
    /// Has it nothing?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.topics == 0 && self.users == 0 && self.keys == 0
    }
}
