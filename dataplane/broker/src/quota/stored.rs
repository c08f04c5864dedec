//! What tenants may store. Checked where messages are accepted; what was accepted is committed, whatever comes.
//!
//! Logs are added up once in [`limits::QUOTA_TALLY_MS`], and what is accepted in between is added here at once. So what is stored is over a
//! limit by at most what other nodes have accepted since they last told, what is copied into children, and what frames add to bodies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use veena_contract::{Limit, QuotaScope, TenantId, TopicName, limits};

use super::{Exceeded, Records};

/// Whose bytes: a tenant's, or those of one of its topics.
pub type StoredKey = (TenantId, Option<TopicName>);

#[derive(Default)]
struct Stored {
    /// On this node, as of the last tally.
    here: AtomicU64,
    /// On the others, as of the last word of each.
    elsewhere: AtomicU64,
    /// Accepted here since.
    since: AtomicU64,
}

impl Stored {
    fn total(&self) -> u64 {
        let [here, elsewhere, since] = [&self.here, &self.elsewhere, &self.since].map(|bytes| bytes.load(Ordering::Relaxed));
        here.saturating_add(elsewhere).saturating_add(since)
    }
}

/// What those store who have a limit on it.
#[derive(Default)]
pub struct StoredBytes {
    limited: RwLock<BTreeMap<StoredKey, Arc<Stored>>>,
}

/// What had been accepted when a tally began: it is in the logs or on its way there, where the tally finds it.
pub struct TallyBegun(Vec<(StoredKey, Arc<Stored>, u64)>);

impl StoredBytes {
    /// May so many more bytes be accepted? Then they are counted, until the next tally finds them.
    ///
    /// # Errors
    /// [`Exceeded`] when not.
    pub fn accept(&self, records: &Records<'_>, bytes: u64) -> Result<(), Exceeded> {
        let scopes = [(records.tenant, QuotaScope::Tenant), (records.topic, QuotaScope::Topic)];
        let limited = scopes.into_iter().filter_map(|(record, scope)| Some((record?, scope, record?.quota.get(Limit::StoredBytes)?)));
        let mut counted: [Option<Arc<Stored>>; 2] = [None, None];
        for (place, (record, scope, quota)) in limited.enumerate() {
            let stored = self.of(&(record.tenant.clone(), record.topic.clone()));
            let current = stored.total();
            if current.saturating_add(bytes) > quota {
                let wait = Duration::from_millis(limits::QUOTA_STORED_RETRY_MS);
                return Err(Exceeded {
                    limit: Limit::StoredBytes,
                    scope,
                    current,
                    allowed: quota,
                    quota,
                    wait,
                    pause: Exceeded::PAUSE_MAX,
                });
            }
            counted[place] = Some(stored);
        }
        for stored in counted.iter().flatten() {
            stored.since.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    fn of(&self, key: &StoredKey) -> Arc<Stored> {
        if let Some(stored) = self.limited.read().get(key) {
            return Arc::clone(stored);
        }
        Arc::clone(self.limited.write().entry(key.clone()).or_default())
    }

    /// Keeps those alone that still have a limit, and notes what was accepted so far.
    #[must_use]
    pub fn begin_tally(&self, limited: impl IntoIterator<Item = StoredKey>) -> TallyBegun {
        let wanted: BTreeMap<StoredKey, Arc<Stored>> = limited.into_iter().map(|key| (key.clone(), self.of(&key))).collect();
        let begun = wanted.iter().map(|(key, stored)| (key.clone(), Arc::clone(stored), stored.since.load(Ordering::Relaxed))).collect();
        *self.limited.write() = wanted;
        TallyBegun(begun)
    }

    /// The logs were added up.
    pub fn end_tally(&self, begun: TallyBegun, bytes_of: impl Fn(&StoredKey) -> u64) {
        for (key, stored, counted) in begun.0 {
            stored.here.store(bytes_of(&key), Ordering::Relaxed);
            stored.since.fetch_sub(counted, Ordering::Relaxed);
        }
    }

    /// The other nodes have told what they store.
    pub fn set_elsewhere(&self, bytes_of: impl Fn(&StoredKey) -> u64) {
        for (key, stored) in &*self.limited.read() {
            stored.elsewhere.store(bytes_of(key), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use veena_contract::{Quota, QuotaRecord};

    use super::*;

    fn record(topic: Option<&str>, stored_bytes: u64) -> Arc<QuotaRecord> {
        let quota = Quota { stored_bytes: Some(stored_bytes), ..Quota::default() };
        let topic = topic.map(|name| TopicName::parse(name).expect("a name"));
        Arc::new(QuotaRecord { tenant: TenantId::default_tenant(), topic, quota, revision: 1 })
    }

    #[test]
    fn what_is_accepted_counts_at_once_and_once() {
        let (tenant, topic) = (record(None, 1_000), record(Some("a"), 300));
        let stored = StoredBytes::default();
        let (both, tenant_alone) = (Records { tenant: Some(&tenant), topic: Some(&topic) }, Records { tenant: Some(&tenant), topic: None });
        stored.accept(&both, 300).expect("room");
        let refused = stored.accept(&both, 1).expect_err("the topic is full");
        assert_eq!((refused.scope, refused.current, refused.allowed), (QuotaScope::Topic, 300, 300));
        stored.accept(&tenant_alone, 700).expect("what was refused was not counted for the tenant either");
        assert_eq!(stored.accept(&tenant_alone, 1).expect_err("full").scope, QuotaScope::Tenant);

        let keys = || [(tenant.tenant.clone(), None), (tenant.tenant.clone(), topic.topic.clone())];
        let begun = stored.begin_tally(keys());
        stored.accept(&both, 0).expect("nothing more");
        stored.end_tally(begun, |key| if key.1.is_none() { 900 } else { 250 });
        stored.accept(&both, 50).expect("the logs are smaller than what came in");
        assert!(stored.accept(&both, 1).is_err());
        stored.set_elsewhere(|key| if key.1.is_none() { 40 } else { 0 });
        assert_eq!(stored.accept(&tenant_alone, 20).expect_err("others store something too").current, 990);
        stored.accept(&tenant_alone, 10).expect("room for this");
    }

    #[test]
    fn who_has_no_limit_any_more_is_forgotten() {
        let tenant = record(None, 10);
        let stored = StoredBytes::default();
        stored.accept(&Records { tenant: Some(&tenant), topic: None }, 10).expect("room");
        let begun = stored.begin_tally([]);
        stored.end_tally(begun, |_| 0);
        assert!(stored.limited.read().is_empty());
    }
}
