//! Limits of tenants and topics. Those on how many things there are are kept here, where the things are made; the others by each node.

use veena_contract::records::CommandError;
use veena_contract::{Limit, Quota, QuotaRecord, QuotaScope, TenantId, TopicName, Username, limits};

use super::State;
use super::tenants::next_revision;

impl State {
    pub(super) fn set_quota(
        &mut self,
        tenant: TenantId,
        topic: Option<TopicName>,
        quota: Quota,
        revision: Option<u64>,
    ) -> Result<(), CommandError> {
        self.check_tenant(&tenant)?;
        quota.check(if topic.is_some() { QuotaScope::Topic } else { QuotaScope::Tenant })?;
        if topic.as_ref().is_some_and(|name| self.view.topic(&tenant, name).is_none()) {
            return Err(CommandError::TopicNotFound);
        }
        let standing = self.view.quota(&tenant, topic.as_ref()).cloned();
        let applied = standing.as_ref().map_or(0, |record| record.revision);
        let is_same = standing.as_ref().is_some_and(|record| record.quota == quota);
        // Where there were no limits, any first revision is one.
        let revision = if standing.is_some() { next_revision(revision, applied, is_same)? } else { revision.unwrap_or(1) };
        if is_same && revision == applied {
            return Ok(());
        }
        if standing.is_none() && self.view.quotas.len() >= limits::QUOTAS_MAX {
            let detail = format!("at most {} tenants and topics have limits", limits::QUOTAS_MAX);
            return Err(CommandError::LimitReached { detail });
        }
        self.insert_quota(QuotaRecord { tenant, topic, quota, revision });
        Ok(())
    }

    pub(super) fn insert_quota(&mut self, record: QuotaRecord) {
        self.view.quotas.insert(record);
    }

    /// A topic's limits go with it: the next one of its name has none.
    pub(super) fn forget_topic_quota(&mut self, tenant: &TenantId, name: &TopicName) {
        self.view.quotas.remove(tenant, Some(name));
    }

    /// May the tenant have one more topic, with so many partitions?
    pub(super) fn check_new_topic(&self, tenant: &TenantId, partitions: u32) -> Result<(), CommandError> {
        self.check_quota(tenant, Limit::Topics, self.view.counts_of(tenant).topics as u64 + 1)?;
        self.check_more_partitions(tenant, partitions)
    }

    /// May the tenant have so many more partitions?
    pub(super) fn check_more_partitions(&self, tenant: &TenantId, more: u32) -> Result<(), CommandError> {
        self.check_quota(tenant, Limit::Partitions, self.partition_count(tenant) + u64::from(more))
    }

    /// May the tenant have one more key? Those that have expired when it is made do not count.
    pub(super) fn check_new_key(&self, tenant: &TenantId, now_ms: u64) -> Result<(), CommandError> {
        let all = self.view.counts_of(tenant).keys as u64;
        let Some(allowed) = self.view.quota(tenant, None).and_then(|record| record.quota.get(Limit::Keys)) else {
            let max = limits::KEYS_PER_TENANT_MAX;
            let detail = || format!("a tenant has at most {max} keys; an operator can set another limit");
            return if all < max as u64 { Ok(()) } else { Err(CommandError::LimitReached { detail: detail() }) };
        };
        if all < allowed {
            return Ok(());
        }
        // Only where they could matter it is looked which have expired, and at none of another tenant.
        let of_accounts = self.view.account_keys.range((tenant.clone(), Username::least())..).take_while(|((of, _), _)| of == tenant);
        let keys = of_accounts.flat_map(|(_, ids)| ids.iter()).filter_map(|id| self.view.key(id));
        let live = keys.filter(|key| !key.is_expired(now_ms)).count();
        self.check_quota(tenant, Limit::Keys, live as u64 + 1)
    }

    /// May the tenant have so many of them?
    pub(super) fn check_quota(&self, tenant: &TenantId, limit: Limit, current: u64) -> Result<(), CommandError> {
        match self.view.quota(tenant, None).and_then(|record| record.quota.get(limit)) {
            Some(allowed) if current > allowed => Err(CommandError::QuotaExceeded { limit, scope: QuotaScope::Tenant, current, allowed }),
            _ => Ok(()),
        }
    }

    /// How many partitions all topics of a tenant have.
    pub(super) fn partition_count(&self, tenant: &TenantId) -> u64 {
        self.view.counts_of(tenant).partitions
    }

    /// A topic had so many partitions, and has so many now.
    pub(super) fn count_partitions(&mut self, tenant: &TenantId, before: u32, after: u32) {
        self.count(tenant, |counts| counts.partitions = (counts.partitions + u64::from(after)).saturating_sub(before.into()));
    }

    /// Nothing of a tenant that is gone stays.
    pub(super) fn forget_quotas(&mut self, tenant: &TenantId) {
        self.view.quotas.forget(tenant);
    }
}
