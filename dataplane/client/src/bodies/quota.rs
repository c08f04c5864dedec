//! Limits of tenants, and what they have used.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use veena_contract as contract;

macro_rules! quota {
    ($($(#[$doc:meta])* $field:ident;)*) => {
        /// Limits of a tenant or of a topic. What is absent is not limited.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct Quota {
            $($(#[$doc])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $field: Option<u64>,)*
        }

        impl From<&contract::Quota> for Quota {
            fn from(quota: &contract::Quota) -> Self {
                Self { $($field: quota.$field,)* }
            }
        }

        impl From<&Quota> for contract::Quota {
            fn from(quota: &Quota) -> Self {
                Self { $($field: quota.$field,)* }
            }
        }
    };
}

quota! {
    /// Requests each second; of tenants alone.
    requests_per_s;
    /// Messages produced each second.
    messages_in_per_s;
    /// Bytes produced each second: payloads, keys and headers.
    bytes_in_per_s;
    /// Messages delivered each second.
    messages_out_per_s;
    /// Bytes delivered each second.
    bytes_out_per_s;
    /// Bytes stored over all nodes, copies in children included.
    stored_bytes;
    /// Topics; of tenants alone.
    topics;
    /// Partitions of all topics together; of tenants alone.
    partitions;
    /// API keys; of tenants alone.
    keys;
    /// Consumers that wait at the same time; of tenants alone.
    parked_polls;
}

/// Sets limits: all of a tenant, or all of one of its topics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetQuota {
    /// The topic; without it the limits are the tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Which revision this is. One that is not newer than what was applied is refused, unless it is the same; without it, it is the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The limits. Those that are absent end.
    pub quota: Quota,
}

/// Limits of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopicQuota {
    /// The topic.
    pub topic: String,
    /// Rises with each change.
    pub revision: u64,
    /// Its limits.
    pub quota: Quota,
}

/// All limits of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaView {
    /// The tenant.
    pub tenant: String,
    /// Rises with each change of the tenant's own limits; 0 if there never were any.
    pub revision: u64,
    /// The tenant's own limits.
    pub quota: Quota,
    /// Those of its topics that have limits, by name.
    pub topics: Vec<TopicQuota>,
}

/// What a tenant has used: since its first message, but for what is stored, which is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// The tenant.
    pub tenant: String,
    /// Messages that clients produced and that were committed.
    pub messages_in: u64,
    /// Their bytes, as stored before compression.
    pub bytes_in: u64,
    /// Messages that were copied into children.
    pub messages_copied: u64,
    /// Their bytes.
    pub bytes_copied: u64,
    /// Messages that were delivered, each time they were.
    pub messages_out: u64,
    /// Bytes of their payloads, keys and headers.
    pub bytes_out: u64,
    /// Bytes that are stored.
    pub stored_bytes: u64,
    /// The most that ever were on each node, added up.
    pub stored_bytes_peak: u64,
    /// How many nodes were asked.
    pub nodes: u64,
    /// How many of them did not answer: what they have counted is missing.
    pub nodes_silent: u64,
}
