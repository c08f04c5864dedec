//! What nodes tell each other about limits: what each stores, what each is asked for, and what each has used; and when keys
//! were last used.
//!
//! Every [`limits::QUOTA_TALLY_MS`], while there are limits and nowhere otherwise. The leader of the metadata gives each node its share of a
//! rate by what it was asked for; a node that does not hear of it within twice that time falls back to an equal share. A leader that is new does
//! not know what its predecessor gave: until that has ended, nodes may together be over a limit, by less than two seconds of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::debug;
use veena_contract::{
    CatalogView, KeyId, Limit, NodeId, PeerAddr, PeerClass, PeerOp, PeerRefusal, PeerRequest, QuotaRecord, TenantId, TopicName, limits,
};

use super::bucket::MICRO;
use super::shares::Ledger;
use super::stored::StoredKey;
use super::{Demand, RATES, SHARE_VALID_US, Share};
use crate::core::Core;
use crate::owners::call;
use crate::ports::Peers;
use crate::usage::UsageNumbers;

const EVERY: Duration = Duration::from_millis(limits::QUOTA_TALLY_MS);
const TOLD_WITHIN: Duration = Duration::from_millis(limits::OWNER_LOOK_MS_MAX);

/// What a node was asked for since it last told.
#[derive(Serialize, Deserialize)]
struct Demands {
    demands: Vec<(TenantId, Option<TopicName>, Demand)>,
}

/// What the leader gives it.
#[derive(Serialize, Deserialize)]
struct Shares {
    shares: Vec<(TenantId, Option<TopicName>, Share)>,
}

/// What a node is asked of usage. Fields are added with a default.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct UsageAsked {
    /// Of this tenant alone.
    tenant: Option<TenantId>,
    /// Not what was used, but what those store who have a limit on it.
    is_stored: bool,
    /// Not that either, but when these keys were last used.
    keys: Vec<KeyId>,
}

/// What it tells.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct UsageTold {
    used: Vec<(TenantId, UsageNumbers)>,
    stored: Vec<(TenantId, Option<TopicName>, u64)>,
    keys: Vec<(KeyId, u64)>,
}

/// When keys were last used on any node that answered.
#[derive(Clone, Debug, Default)]
pub struct KeysEverywhere {
    /// The last use of each that was used, in Unix milliseconds.
    pub last_ms: BTreeMap<KeyId, u64>,
    /// How many nodes did not answer.
    pub silent: usize,
}

/// What tenants have used on all nodes that answered.
#[derive(Clone, Debug, Default)]
pub struct UsageEverywhere {
    /// By name.
    pub tenants: BTreeMap<TenantId, UsageNumbers>,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many of them did not answer.
    pub silent: usize,
}

/// What the leader has given, by limit.
#[derive(Default)]
pub struct Ledgers {
    by_limit: Mutex<BTreeMap<StoredKey, [Ledger; RATES.len()]>>,
}

/// Those of the members that are not known to be dead, this node among them.
fn living(peers: &Peers) -> Vec<NodeId> {
    let mut nodes = peers.directory.nodes();
    nodes.retain(|node| *node != peers.me && !peers.directory.is_dead(node));
    nodes.push(peers.me.clone());
    nodes.sort_unstable();
    nodes
}

/// Tells and asks while there are limits.
pub(crate) async fn run(core: Arc<Core>) {
    let token = core.ports.tasks.token().clone();
    let Some(peers) = core.ports.peers.clone() else { return };
    let mut stored = BTreeMap::new();
    while !token.is_cancelled() {
        let view = core.ports.catalog.view();
        if view.quotas.is_empty() {
            tokio::select! {
                () = core.ports.catalog.changed(view.applied) => {}
                () = token.cancelled() => {}
            }
            continue;
        }
        let nodes = living(&peers);
        core.quota.set_nodes(nodes.len() as u64);
        let round = async {
            tokio::join!(share(&core, &peers, &view, &nodes), gather_stored(&core, &peers, &view, &nodes, &mut stored));
        };
        tokio::select! {
            () = round => {}
            () = token.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = token.cancelled() => {}
        }
    }
}

/// Tells the leader what this node was asked for, and takes its shares.
async fn share(core: &Arc<Core>, peers: &Peers, view: &CatalogView, nodes: &[NodeId]) {
    let demands = core.quota.take_demand();
    let has_rates = |record: &QuotaRecord| RATES.iter().any(|rate| record.quota.get(*rate).is_some());
    if !view.quotas.values().any(|record| has_rates(record)) {
        return;
    }
    // Also when nobody has asked this node for anything: then it hears of what others need, and what is left for it.
    let Some(leader) = peers.directory.leader() else { return };
    let now_us = core.now_us();
    let shares = if leader == peers.me {
        give(core, nodes, &peers.me, demands)
    } else {
        let Some(addr) = peers.directory.address_of(&leader) else { return };
        let body = serde_json::to_vec(&Demands { demands }).expect("invariant: demands are plain data");
        let answer = call(core, &addr, PeerOp::QUOTA_SHARES, PeerClass::Control, EVERY, body.into()).await;
        match answer.map(|answer| serde_json::from_slice::<Shares>(&answer)) {
            Ok(Ok(answer)) => answer.shares,
            Ok(Err(error)) => return debug!(%error, "the leader's shares cannot be read"),
            Err(error) => return debug!(%error, "the leader gives no shares now"),
        }
    };
    for (tenant, topic, share) in shares {
        core.quota.give(view, &tenant, topic.as_ref(), share, now_us);
    }
}

/// As the leader: what a node gets, of every limit of which any node needs something.
fn give(
    core: &Core,
    nodes: &[NodeId],
    to: &NodeId,
    demands: Vec<(TenantId, Option<TopicName>, Demand)>,
) -> Vec<(TenantId, Option<TopicName>, Share)> {
    let (view, now_us) = (core.ports.catalog.view(), core.now_us());
    let mut ledgers = core.ledgers.by_limit.lock();
    ledgers.retain(|_, ledgers| ledgers.iter().any(|ledger| ledger.is_active(now_us)));
    let mut wanted: BTreeMap<StoredKey, Demand> = ledgers.keys().map(|key| (key.clone(), Demand::default())).collect();
    wanted.extend(demands.into_iter().map(|(tenant, topic, demand)| ((tenant, topic), demand)));
    let given = wanted.into_iter().filter_map(|((tenant, topic), demand)| {
        let record = view.quota(&tenant, topic.as_ref())?;
        let of_rates = ledgers.entry((tenant.clone(), topic.clone())).or_default();
        let mut share: Share = [None; RATES.len()];
        for (at, ledger) in of_rates.iter_mut().enumerate() {
            let limit = record.quota.get(RATES[at]);
            share[at] = limit.map(|limit| ledger.report(limit.saturating_mul(MICRO), nodes, to, demand[at], now_us, SHARE_VALID_US));
        }
        Some((tenant, topic, share))
    });
    given.collect()
}

/// Serves a node that tells what it was asked for.
pub(crate) async fn serve_shares(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let asked: Demands = serde_json::from_slice(&request.body).map_err(|_| PeerRefusal::Malformed)?;
    let peers = core.ports.peers.as_ref().ok_or(PeerRefusal::NotServing)?;
    // Two nodes that both give would give twice.
    if peers.directory.leader().as_ref() != Some(&peers.me) {
        return Err(PeerRefusal::NotServing);
    }
    let shares = give(core, &living(peers), &request.from, asked.demands);
    Ok(serde_json::to_vec(&Shares { shares }).expect("invariant: shares are plain data").into())
}

/// Asks the others what they store of those who have a limit on it. What one does not tell is what it told last.
async fn gather_stored(
    core: &Arc<Core>,
    peers: &Peers,
    view: &CatalogView,
    nodes: &[NodeId],
    known: &mut BTreeMap<NodeId, BTreeMap<StoredKey, u64>>,
) {
    if !view.quotas.values().any(|record| record.quota.get(Limit::StoredBytes).is_some()) {
        known.clear();
        return;
    }
    known.retain(|node, _| nodes.contains(node));
    let asked = UsageAsked { is_stored: true, ..UsageAsked::default() };
    for (node, told) in ask_others(core, peers, nodes, &asked).await {
        if let Some(told) = told {
            known.insert(node, told.stored.into_iter().map(|(tenant, topic, bytes)| ((tenant, topic), bytes)).collect());
        }
    }
    core.stored.set_elsewhere(|key| known.values().filter_map(|stored| stored.get(key)).fold(0, |sum, bytes| sum.saturating_add(*bytes)));
}

async fn ask_others(core: &Arc<Core>, peers: &Peers, nodes: &[NodeId], asked: &UsageAsked) -> Vec<(NodeId, Option<UsageTold>)> {
    let body: Bytes = serde_json::to_vec(asked).expect("invariant: a question is plain data").into();
    let others = nodes.iter().filter(|node| **node != peers.me);
    let calls = others.map(|node| {
        let (addr, body) = (peers.directory.address_of(node), body.clone());
        async move { (node.clone(), ask(core, addr, body).await) }
    });
    join_all(calls).await
}

async fn ask(core: &Core, addr: Option<PeerAddr>, body: Bytes) -> Option<UsageTold> {
    let answer = call(core, &addr?, PeerOp::USAGE, PeerClass::Data, TOLD_WITHIN, body).await;
    let answer = answer.inspect_err(|error| debug!(%error, "a node does not tell what its tenants use")).ok()?;
    serde_json::from_slice(&answer).inspect_err(|error| debug!(%error, "what a node's tenants use cannot be read")).ok()
}

/// Serves a node that asks what tenants have used here.
pub(crate) async fn serve_usage(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let asked: UsageAsked = serde_json::from_slice(&request.body).map_err(|_| PeerRefusal::Malformed)?;
    let mut told = UsageTold::default();
    if asked.is_stored {
        let view = core.ports.catalog.view();
        let is_limited = |(tenant, topic): &StoredKey| {
            view.quota(tenant, topic.as_ref()).is_some_and(|record| record.quota.get(Limit::StoredBytes).is_some())
        };
        let here = core.stored_here.lock();
        let limited = here.iter().filter(|(key, _)| is_limited(key));
        told.stored = limited.map(|((tenant, topic), bytes)| (tenant.clone(), topic.clone(), *bytes)).collect();
    } else if !asked.keys.is_empty() {
        told.keys = keys_used_here(core, &asked.keys).collect();
    } else {
        told.used = used_here(core, asked.tenant.as_ref()).into_iter().collect();
    }
    Ok(serde_json::to_vec(&told).expect("invariant: numbers are plain data").into())
}

fn used_here(core: &Core, tenant: Option<&TenantId>) -> BTreeMap<TenantId, UsageNumbers> {
    match tenant {
        Some(tenant) => BTreeMap::from([(tenant.clone(), core.usage.numbers(tenant))]),
        None => core.usage.all(),
    }
}

fn keys_used_here(core: &Core, keys: &[KeyId]) -> impl Iterator<Item = (KeyId, u64)> {
    keys.iter().filter_map(|key| Some((*key, core.key_uses.last_ms(*key)?)))
}

/// When these keys were last used on any node.
pub(crate) async fn keys_used_everywhere(core: &Arc<Core>, keys: Vec<KeyId>) -> KeysEverywhere {
    let mut everywhere = KeysEverywhere { last_ms: keys_used_here(core, &keys).collect(), silent: 0 };
    let Some(peers) = core.ports.peers.as_ref().filter(|_| !keys.is_empty()) else { return everywhere };
    let asked = UsageAsked { keys, ..UsageAsked::default() };
    for (_, told) in ask_others(core, peers, &peers.directory.nodes(), &asked).await {
        let Some(told) = told else {
            everywhere.silent += 1;
            continue;
        };
        for (key, last_ms) in told.keys {
            let known_ms = everywhere.last_ms.entry(key).or_default();
            *known_ms = last_ms.max(*known_ms);
        }
    }
    everywhere
}

/// What a tenant, or every tenant, has used on all nodes.
pub(crate) async fn used_everywhere(core: &Arc<Core>, tenant: Option<&TenantId>) -> UsageEverywhere {
    let mut everywhere = UsageEverywhere { tenants: used_here(core, tenant), nodes: 1, silent: 0 };
    let Some(peers) = &core.ports.peers else { return everywhere };
    let asked = UsageAsked { tenant: tenant.cloned(), ..UsageAsked::default() };
    // A dead one is a member still, and has counted something.
    let nodes = peers.directory.nodes();
    everywhere.nodes = nodes.len().max(1);
    for (_, told) in ask_others(core, peers, &nodes, &asked).await {
        let Some(told) = told else {
            everywhere.silent += 1;
            continue;
        };
        for (tenant, numbers) in told.used {
            let sum = everywhere.tenants.entry(tenant).or_default();
            *sum = sum.and(numbers);
        }
    }
    everywhere
}
