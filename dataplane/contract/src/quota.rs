//! What a tenant, or one of its topics, may use. What is absent is not limited.

use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};

use crate::ids::TenantId;
use crate::limits;
use crate::names::TopicName;

macro_rules! quota {
    ($($(#[$doc:meta])* $variant:ident $field:ident $topics:literal;)*) => {
        /// One thing that a quota limits. Only grows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Limit { $($(#[$doc])* $variant,)* }

        impl Limit {
            /// Every limit.
            pub const ALL: &'static [Limit] = &[$(Limit::$variant,)*];

            /// The name used on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($field),)* }
            }

            /// Does what is used of it become less by itself, and soon?
            #[must_use]
            pub const fn passes(self) -> bool {
                !matches!(self, Self::StoredBytes | Self::Topics | Self::Partitions | Self::Keys)
            }

            /// Can one topic be limited so, beside its tenant?
            #[must_use]
            pub const fn is_of_topics(self) -> bool {
                match self { $(Self::$variant => $topics,)* }
            }
        }

        /// The limits of a tenant or of a topic.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Quota {
            $($(#[$doc])* #[serde(default, skip_serializing_if = "Option::is_none")] pub $field: Option<u64>,)*
        }

        impl Quota {
            /// The value of a limit; `None` is no limit.
            #[must_use]
            pub const fn get(&self, limit: Limit) -> Option<u64> {
                match limit { $(Limit::$variant => self.$field,)* }
            }
        }
    };
}

quota! {
    /// Requests each second, but for acks, deletions and looks at one's own quota and usage.
    RequestsPerS requests_per_s false;
    /// Messages produced each second.
    MessagesInPerS messages_in_per_s true;
    /// Bytes produced each second: payloads, keys and headers.
    BytesInPerS bytes_in_per_s true;
    /// Messages delivered each second, replays included.
    MessagesOutPerS messages_out_per_s true;
    /// Bytes delivered each second: payloads, keys and headers.
    BytesOutPerS bytes_out_per_s true;
    /// Bytes stored over all nodes, copies in children included.
    StoredBytes stored_bytes true;
    /// How many topics there are.
    Topics topics false;
    /// How many partitions all topics have together.
    Partitions partitions false;
    /// How many API keys there are.
    Keys keys false;
    /// How many consumers wait at the same time.
    ParkedPolls parked_polls false;
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuotaScope {
    /// All topics of the tenant together.
    Tenant,
    /// One topic.
    Topic,
}

impl QuotaScope {
    /// The text used on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Topic => "topic",
        }
    }
}

impl fmt::Display for QuotaScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// These are no limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidQuota {
    /// A number that nothing reaches.
    #[error("invalid {limit}: it is at most {}", limits::QUOTA_MAX)]
    TooLarge {
        /// Of which limit.
        limit: Limit,
    },
    /// What no single topic has.
    #[error("{limit} limits a tenant, not a topic")]
    NotOfTopics {
        /// Which limit.
        limit: Limit,
    },
}

impl Quota {
    /// Is nothing limited?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        Limit::ALL.iter().all(|limit| self.get(*limit).is_none())
    }

    /// Are these limits that whatever has this scope can have?
    ///
    /// # Errors
    /// [`InvalidQuota`] with the first that is none.
    pub fn check(&self, scope: QuotaScope) -> Result<(), InvalidQuota> {
        for limit in Limit::ALL.iter().copied() {
            let Some(value) = self.get(limit) else { continue };
            if scope == QuotaScope::Topic && !limit.is_of_topics() {
                return Err(InvalidQuota::NotOfTopics { limit });
            }
            if value > limits::QUOTA_MAX {
                return Err(InvalidQuota::TooLarge { limit });
            }
        }
        Ok(())
    }
}

/// The limits of a tenant or of one of its topics, as the metastore keeps them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRecord {
    /// Whose limits.
    pub tenant: TenantId,
    /// Of which topic; of none, they are the tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<TopicName>,
    /// The limits.
    #[serde(flatten)]
    pub quota: Quota,
    /// Rises with each change; never falls.
    pub revision: u64,
}

/// The limits of all tenants and their topics. One look tells that a tenant has none, whatever others have. Cloning shares structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// The tenant's own come first. No tenant is here that has none.
    by_tenant: OrdMap<TenantId, OrdMap<Option<TopicName>, Arc<QuotaRecord>>>,
    len: usize,
}

impl Quotas {
    /// Has nobody any limits?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many tenants and topics have some.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Has the tenant, or any of its topics?
    #[must_use]
    pub fn has(&self, tenant: &TenantId) -> bool {
        self.by_tenant.contains_key(tenant)
    }

    /// Those of a tenant, or of one of its topics.
    #[must_use]
    pub fn get(&self, tenant: &TenantId, topic: Option<&TopicName>) -> Option<&Arc<QuotaRecord>> {
        self.by_tenant.get(tenant)?.get(&topic.cloned())
    }

    /// All of a tenant: its own, and those of its topics in byte-wise name order.
    pub fn of(&self, tenant: &TenantId) -> impl Iterator<Item = &Arc<QuotaRecord>> {
        self.by_tenant.get(tenant).into_iter().flat_map(OrdMap::values)
    }

    /// All, by tenant.
    pub fn values(&self) -> impl Iterator<Item = &Arc<QuotaRecord>> {
        self.by_tenant.values().flat_map(OrdMap::values)
    }

    /// Adds some, or puts them in the place of those that there were.
    pub fn insert(&mut self, record: QuotaRecord) {
        let of_tenant = self.by_tenant.entry(record.tenant.clone()).or_default();
        self.len += usize::from(of_tenant.insert(record.topic.clone(), Arc::new(record)).is_none());
    }

    /// The tenant, or the topic, has none any more.
    pub fn remove(&mut self, tenant: &TenantId, topic: Option<&TopicName>) {
        let Some(of_tenant) = self.by_tenant.get_mut(tenant) else { return };
        self.len -= usize::from(of_tenant.remove(&topic.cloned()).is_some());
        if of_tenant.is_empty() {
            self.by_tenant.remove(tenant);
        }
    }

    /// Neither the tenant nor any of its topics has any more.
    pub fn forget(&mut self, tenant: &TenantId) {
        self.len -= self.by_tenant.remove(tenant).map_or(0, |of_tenant| of_tenant.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tenant: &str, topic: Option<&str>) -> QuotaRecord {
        let topic = topic.map(|topic| TopicName::parse(topic).expect("a name"));
        QuotaRecord { tenant: TenantId::parse(tenant).expect("a tenant"), topic, quota: Quota::default(), revision: 1 }
    }

    #[test]
    fn limits_are_counted_and_no_tenant_is_left_that_has_none() {
        let mut quotas = Quotas::default();
        let all = [record("a", None), record("a", Some("t")), record("ab", Some("t")), record("b", None)];
        all.iter().for_each(|record| quotas.insert(record.clone()));
        quotas.insert(record("b", None));
        assert_eq!((quotas.len(), quotas.values().count()), (4, 4));
        let topic = all[1].topic.clone();
        assert!(quotas.get(&all[2].tenant, topic.as_ref()).is_some() && quotas.get(&all[2].tenant, None).is_none());
        let of: Vec<_> = quotas.of(&all[0].tenant).map(|record| record.topic.clone()).collect();
        assert_eq!(of, [None, topic.clone()]);
        quotas.remove(&all[2].tenant, None);
        quotas.remove(&all[2].tenant, topic.as_ref());
        assert!(!quotas.has(&all[2].tenant) && quotas.has(&all[0].tenant) && quotas.len() == 3);
        quotas.forget(&all[0].tenant);
        quotas.remove(&all[3].tenant, None);
        assert!(quotas.is_empty() && quotas == Quotas::default());
    }

    #[test]
    fn what_is_not_limited_is_absent() {
        let quota = Quota { topics: Some(3), ..Quota::default() };
        assert_eq!(serde_json::to_string(&quota).expect("plain data"), r#"{"topics":3}"#);
        assert!(Quota::default().is_empty() && !quota.is_empty());
        assert_eq!(Limit::ALL.iter().filter_map(|limit| quota.get(*limit)).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_topic_has_no_limit_that_only_a_tenant_can_have() {
        let quota = Quota { topics: Some(3), ..Quota::default() };
        assert_eq!(quota.check(QuotaScope::Tenant), Ok(()));
        assert_eq!(quota.check(QuotaScope::Topic), Err(InvalidQuota::NotOfTopics { limit: Limit::Topics }));
        let quota = Quota { bytes_in_per_s: Some(limits::QUOTA_MAX + 1), ..Quota::default() };
        assert_eq!(quota.check(QuotaScope::Topic), Err(InvalidQuota::TooLarge { limit: Limit::BytesInPerS }));
    }

    #[test]
    fn the_name_of_a_limit_is_that_of_its_field() {
        for limit in Limit::ALL {
            let quota: Quota = serde_json::from_str(&format!(r#"{{"{limit}":7}}"#)).expect("a quota");
            assert_eq!(quota.get(*limit), Some(7));
            assert_eq!(serde_json::to_value(limit).expect("plain data"), limit.as_str());
        }
    }
}
