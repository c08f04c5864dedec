//! The rates of every tenant that has limits on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use veena_contract::{CatalogView, Limit, QuotaRecord, QuotaScope, TenantId, TopicName, limits};

use super::bucket::{Bucket, MICRO};
use super::{Exceeded, RATES, SHARE_VALID_US, Use, shares};

/// What a node was asked for of each rate within a second, by tenant and topic; in millionths.
pub type Demand = [u64; RATES.len()];
/// Its share of each rate, in millionths a second. What is not limited has none.
pub type Share = [Option<u64>; RATES.len()];

/// One of the tenant's scopes: its limits as last seen, and a bucket for each rate.
struct Meter {
    record: Arc<QuotaRecord>,
    buckets: [Option<Bucket>; RATES.len()],
    asked: [u64; RATES.len()],
    /// What the leader gave, and until when that holds.
    given: Option<(Share, u64)>,
    /// Until when the connection that was refused last is left alone.
    paused_until_us: u64,
}

impl Meter {
    fn new(record: &Arc<QuotaRecord>) -> Self {
        Self { record: Arc::clone(record), buckets: [None; RATES.len()], asked: [0; RATES.len()], given: None, paused_until_us: 0 }
    }

    fn scope(&self) -> QuotaScope {
        if self.record.topic.is_some() { QuotaScope::Topic } else { QuotaScope::Tenant }
    }

    /// The rate of this node, in millionths a second.
    fn rate(&self, at: usize, nodes: u64, now_us: u64) -> Option<u64> {
        let limit = self.record.quota.get(RATES[at])?.saturating_mul(MICRO);
        let equal = shares::equal(limit, nodes);
        Some(match self.given.and_then(|(share, until_us)| Some((share[at]?, until_us))) {
            Some((given, until_us)) if now_us < until_us => given.min(limit),
            Some((given, until_us)) if now_us < until_us.saturating_add(SHARE_VALID_US) => given.min(equal),
            _ => equal,
        })
    }

    /// Adds what has come by now; says what does not let the use in.
    fn look(&mut self, wanted: &Use, nodes: u64, now_us: u64) -> Option<Exceeded> {
        let mut worst: Option<Exceeded> = None;
        for (at, tokens) in wanted.tokens().into_iter().enumerate() {
            if tokens == 0 {
                continue;
            }
            let Some(rate) = self.rate(at, nodes, now_us) else {
                self.buckets[at] = None;
                continue;
            };
            let bucket = self.buckets[at].get_or_insert_with(|| Bucket::full(rate, now_us));
            bucket.refill(rate, now_us);
            let wait_us = bucket.wait_us(rate, tokens);
            let wait = Duration::from_micros(wait_us).min(Exceeded::WAIT_MAX);
            if wait_us > 0 && worst.is_none_or(|worst| worst.wait < wait) {
                let quota = self.record.quota.get(RATES[at]).unwrap_or_default();
                let (current, allowed) = (bucket.used(rate), rate / MICRO);
                let pause = Bucket::takes(rate, tokens);
                worst = Some(Exceeded { limit: RATES[at], scope: self.scope(), current, allowed, quota, wait, pause });
            }
        }
        worst
    }

    /// For how long one more connection is left alone: as long as it must wait anyway, and behind all that were refused before it.
    fn queue_up(&mut self, exceeded: &Exceeded, now_us: u64) -> Duration {
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let latest_us = now_us.saturating_add(us(Exceeded::PAUSE_MAX));
        self.paused_until_us = self.paused_until_us.max(now_us).saturating_add(us(exceeded.pause)).min(latest_us);
        Duration::from_micros(self.paused_until_us - now_us).max(exceeded.wait).min(Exceeded::PAUSE_MAX)
    }

    /// Counts what was asked for, whatever became of it.
    fn ask(&mut self, wanted: &Use) {
        for (asked, tokens) in self.asked.iter_mut().zip(wanted.tokens()) {
            *asked = asked.saturating_add(tokens);
        }
    }

    fn take(&mut self, used: &Use, nodes: u64, now_us: u64) {
        for (at, tokens) in used.tokens().into_iter().enumerate().filter(|(_, tokens)| *tokens > 0) {
            let Some(rate) = self.rate(at, nodes, now_us) else { continue };
            self.buckets[at].get_or_insert_with(|| Bucket::full(rate, now_us)).take(tokens);
        }
    }

    fn give_back(&mut self, unused: &Use, nodes: u64, now_us: u64) {
        for (at, tokens) in unused.tokens().into_iter().enumerate().filter(|(_, tokens)| *tokens > 0) {
            let Some(rate) = self.rate(at, nodes, now_us) else { continue };
            if let Some(bucket) = &mut self.buckets[at] {
                bucket.give_back(rate, tokens);
            }
        }
    }

    fn is_idle(&mut self, nodes: u64, now_us: u64) -> bool {
        // A share that it was given holds, whether it is used or not.
        if self.given.is_some_and(|(_, until_us)| now_us < until_us.saturating_add(SHARE_VALID_US)) {
            return false;
        }
        (0..RATES.len()).all(|at| match (self.rate(at, nodes, now_us), &mut self.buckets[at]) {
            (Some(rate), Some(bucket)) => {
                bucket.refill(rate, now_us);
                bucket.is_full(rate)
            }
            _ => true,
        })
    }
}

#[derive(Default)]
struct Meters {
    tenant: Option<Meter>,
    topics: BTreeMap<TopicName, Meter>,
}

/// What a tenant that has limits uses of them on this node.
#[derive(Default)]
pub struct TenantLimits {
    meters: Mutex<Meters>,
    parked: AtomicU64,
}

/// The newest limits that a request is looked at under.
pub struct Records<'a> {
    /// The tenant's.
    pub tenant: Option<&'a Arc<QuotaRecord>>,
    /// The topic's.
    pub topic: Option<&'a Arc<QuotaRecord>>,
}

impl<'a> Records<'a> {
    /// Those of a view.
    #[must_use]
    pub fn of(view: &'a CatalogView, tenant: &TenantId, topic: Option<&TopicName>) -> Self {
        Self { tenant: view.quota(tenant, None), topic: topic.and_then(|topic| view.quota(tenant, Some(topic))) }
    }
}

impl Meters {
    /// The meters of a request, with the limits as they are now.
    fn of(&mut self, records: &Records<'_>) -> [Option<&mut Meter>; 2] {
        match records.tenant {
            Some(record) => self.tenant.get_or_insert_with(|| Meter::new(record)).record = Arc::clone(record),
            None => self.tenant = None,
        }
        let topic = records.topic.and_then(|record| {
            let meter = self.topics.entry(record.topic.clone()?).or_insert_with(|| Meter::new(record));
            meter.record = Arc::clone(record);
            Some(meter)
        });
        [self.tenant.as_mut(), topic]
    }
}

/// Something that is held until it is dropped: a consumer that waits.
pub struct Held {
    of: Arc<TenantLimits>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.parked.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TenantLimits {
    fn look(&self, records: &Records<'_>, wanted: &Use, must_take: bool, nodes: u64, now_us: u64) -> Result<(), Exceeded> {
        let mut meters = self.meters.lock();
        let mut meters = meters.of(records);
        let refusals = meters.iter_mut().flatten().filter_map(|meter| meter.look(wanted, nodes, now_us));
        // The one that takes longest is told.
        let refusal = refusals.max_by_key(|exceeded| exceeded.wait);
        if must_take || refusal.is_some() {
            meters.iter_mut().flatten().for_each(|meter| meter.ask(wanted));
        }
        match refusal {
            Some(exceeded) => {
                let of = meters.iter_mut().flatten().find(|meter| meter.scope() == exceeded.scope);
                let pause = of.map_or(exceeded.wait, |meter| meter.queue_up(&exceeded, now_us));
                Err(Exceeded { pause, ..exceeded })
            }
            None if must_take => {
                meters.iter_mut().flatten().for_each(|meter| meter.take(wanted, nodes, now_us));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// The rates of every tenant that has limits, on this node.
#[derive(Default)]
pub struct Quotas {
    tenants: RwLock<BTreeMap<TenantId, Arc<TenantLimits>>>,
    /// How many nodes there are; 0 is as good as 1.
    nodes: AtomicU64,
}

impl Quotas {
    /// How many nodes share the limits, as far as is known.
    pub fn set_nodes(&self, nodes: u64) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    fn nodes(&self) -> u64 {
        self.nodes.load(Ordering::Relaxed).max(1)
    }

    /// What a tenant uses, if it or this topic of it has limits. Allocates nothing for a tenant that has none, and takes no lock.
    fn of(&self, records: &Records<'_>, now_us: u64) -> Option<Arc<TenantLimits>> {
        let tenant = &records.tenant.or(records.topic)?.tenant;
        if let Some(limits) = self.tenants.read().get(tenant) {
            return Some(Arc::clone(limits));
        }
        let mut tenants = self.tenants.write();
        if tenants.len() >= limits::QUOTA_TENANTS_MAX {
            let nodes = self.nodes();
            tenants.retain(|_, limits| !is_idle(limits, nodes, now_us));
        }
        Some(Arc::clone(tenants.entry(tenant.clone()).or_default()))
    }

    /// Would this use be let in now? Takes nothing. For what is worth knowing before a body is read.
    ///
    /// # Errors
    /// [`Exceeded`] when not.
    pub fn look(&self, records: &Records<'_>, wanted: &Use, now_us: u64) -> Result<(), Exceeded> {
        self.of(records, now_us).map_or(Ok(()), |limits| limits.look(records, wanted, false, self.nodes(), now_us))
    }

    /// Takes what a request uses: all of it, or nothing.
    ///
    /// # Errors
    /// [`Exceeded`] with the limit that takes longest; nothing was taken.
    pub fn take(&self, records: &Records<'_>, wanted: &Use, now_us: u64) -> Result<(), Exceeded> {
        self.of(records, now_us).map_or(Ok(()), |limits| limits.look(records, wanted, true, self.nodes(), now_us))
    }

    /// Counts what was used without asking, since only its end told how much it is: whoever comes next waits for it.
    pub fn charge(&self, records: &Records<'_>, used: &Use, now_us: u64) {
        if let Some(limits) = self.of(records, now_us) {
            let nodes = self.nodes();
            for meter in limits.meters.lock().of(records).into_iter().flatten() {
                meter.ask(used);
                meter.take(used, nodes, now_us);
            }
        }
    }

    /// Gives back what was taken for a request that certainly had no effect.
    pub fn give_back(&self, records: &Records<'_>, unused: &Use, now_us: u64) {
        if let Some(limits) = self.of(records, now_us) {
            let nodes = self.nodes();
            limits.meters.lock().of(records).into_iter().flatten().for_each(|meter| meter.give_back(unused, nodes, now_us));
        }
    }

    /// A consumer wants to wait. `None` when nothing limits how many do.
    ///
    /// # Errors
    /// [`Exceeded`] when as many of the tenant wait here as may.
    pub fn hold_poll(&self, records: &Records<'_>, now_us: u64) -> Result<Option<Held>, Exceeded> {
        let quota = records.tenant.and_then(|record| record.quota.get(Limit::ParkedPolls));
        let (Some(quota), Some(limits)) = (quota, self.of(records, now_us)) else { return Ok(None) };
        // Of a limit that is smaller than the cluster each node has one: who waits at an empty queue cannot go elsewhere.
        let allowed = if quota == 0 { 0 } else { shares::equal(quota, self.nodes()).max(1) };
        let current = limits.parked.fetch_add(1, Ordering::Relaxed);
        let held = Held { of: limits };
        if current < allowed {
            return Ok(Some(held));
        }
        let wait = Duration::from_millis(limits::QUOTA_PAUSE_MS_MAX);
        Err(Exceeded { limit: Limit::ParkedPolls, scope: QuotaScope::Tenant, current, allowed, quota, wait, pause: wait })
    }

    /// What this node was asked for since the last call, by tenant and topic; in millionths. Nothing is told of what nobody asked for.
    #[must_use]
    pub fn take_demand(&self) -> Vec<(TenantId, Option<TopicName>, Demand)> {
        let mut told = Vec::new();
        for (tenant, limits) in &*self.tenants.read() {
            let mut meters = limits.meters.lock();
            let Meters { tenant: of_tenant, topics } = &mut *meters;
            for meter in of_tenant.iter_mut().chain(topics.values_mut()) {
                let asked = std::mem::take(&mut meter.asked);
                if asked.iter().any(|asked| *asked > 0) {
                    told.push((tenant.clone(), meter.record.topic.clone(), asked.map(|asked| asked.saturating_mul(MICRO))));
                }
            }
        }
        told
    }

    /// The leader, asked then, gives this node its shares.
    pub fn give(&self, view: &CatalogView, tenant: &TenantId, topic: Option<&TopicName>, share: Share, now_us: u64) {
        let records = Records::of(view, tenant, topic);
        let Some(limits) = self.of(&records, now_us) else { return };
        let mut meters = limits.meters.lock();
        let [of_tenant, of_topic] = meters.of(&records);
        if let Some(meter) = if topic.is_some() { of_topic } else { of_tenant } {
            meter.given = Some((share, now_us.saturating_add(SHARE_VALID_US)));
        }
    }

    /// Forgets who has not used anything for a while, and topics without limits.
    pub fn forget_idle(&self, view: &CatalogView, now_us: u64) {
        let nodes = self.nodes();
        self.tenants.write().retain(|tenant, limits| {
            limits.meters.lock().topics.retain(|topic, meter| view.quota(tenant, Some(topic)).is_some() && !meter.is_idle(nodes, now_us));
            !is_idle(limits, nodes, now_us)
        });
    }

    /// Of how many tenants something is counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tenants.read().len()
    }

    /// Is nothing counted?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Does nobody use it, and is it as good as new?
fn is_idle(limits: &Arc<TenantLimits>, nodes: u64, now_us: u64) -> bool {
    let mut meters = limits.meters.lock();
    let Meters { tenant, topics } = &mut *meters;
    let is_quiet = tenant.iter_mut().chain(topics.values_mut()).all(|meter| meter.is_idle(nodes, now_us));
    is_quiet && Arc::strong_count(limits) == 1
}

#[cfg(test)]
mod tests;
