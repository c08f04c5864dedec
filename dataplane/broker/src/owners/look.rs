//! Looking at partitions of other nodes: a message without a lease, their numbers, and how far children are behind them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;
use tracing::debug;
use veena_contract::{AttachEpoch, ChildLink, Offset, PartitionIndex, PeerAddr, PeerClass, PeerOp, PeerRefusal, PeerRequest, limits};

use crate::consume::reserve;
use crate::consume::waiters::Wanted;
use crate::core::Core;
use crate::errors::ReplayError;
use crate::message::{ChildLag, Delivery, PartitionStats};
use crate::owners::bodies::look::{self, Lag, LagAsked, take_described, take_lags, take_read};
use crate::owners::elsewhere::{Owner, owners_of};
use crate::owners::wire::{self, Malformed, Tenure};
use crate::owners::{call, owned};
use crate::partition::Partition;
use crate::topics::Topic;

const TIMEOUT: Duration = Duration::from_millis(limits::OWNER_LOOK_MS_MAX);

/// Reads one message of another node's partition; `None` at or above the high watermark.
///
/// # Errors
/// [`ReplayError`].
pub async fn read(core: &Core, addr: &PeerAddr, tenure: &Tenure, offset: Offset) -> Result<Option<Delivery>, ReplayError> {
    let body = look::ask_read(tenure, offset);
    let mut answer = call(core, addr, PeerOp::OWNER_READ, PeerClass::Data, TIMEOUT, body).await.map_err(|error| {
        debug!(%error, "an owner does not read a message");
        ReplayError::OwnerDown
    })?;
    let unreadable = |_: Malformed| {
        debug!(node = %addr.node, "an owner's answer to a read cannot be read");
        ReplayError::OwnerDown
    };
    match wire::take_answer(&mut answer).map_err(unreadable)? {
        Ok(()) => take_read(&mut answer, offset).map_err(unreadable)?,
        Err(_) => Err(ReplayError::OwnerDown),
    }
}

/// Serves a read.
///
/// # Errors
/// [`PeerRefusal`].
pub(super) async fn serve_read(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let (tenure, offset) = look::take_ask_read(request.body)?;
    match owned(core, &tenure, request.remaining / 2).await {
        Ok((_, partition)) => Ok(look::read(&reserve::replay_here(core, &partition, offset).await)),
        Err(_) => Ok(wire::not_owner()),
    }
}

/// The numbers of a partition of this node; `None` while its log cannot be opened, or it has stopped: another node may have gone on from there.
pub async fn describe_here(core: &Arc<Core>, partition: &Arc<Partition>) -> Option<PartitionStats> {
    let serving = partition.open(core).await.ok()?;
    let scrubbed = partition.scrubbed();
    let leases = serving.leases.lock();
    if leases.is_frozen() {
        return None;
    }
    let log = serving.reader.stats();
    Some(PartitionStats {
        partition: partition.id.index,
        segments: log.segments,
        oldest: log.oldest,
        log_end: log.log_end,
        high_watermark: log.high_watermark,
        frontier: leases.frontier(),
        leased: leases.leased(),
        acked_ahead: leases.acked_ahead(),
        bytes: log.bytes,
        oldest_segment_ms: log.oldest_segment_ms,
        verified_up_to: scrubbed.map(|scrubbed| scrubbed.up_to),
        verified_at_ms: scrubbed.map(|scrubbed| scrubbed.at_ms),
    })
}

/// The numbers of partitions of a topic, wherever they are, by index: of all, or of one; `None` for what cannot be had now.
pub async fn describe_all(core: &Arc<Core>, topic: &Topic, wanted: Wanted) -> Vec<Option<PartitionStats>> {
    let mut stats = BTreeMap::new();
    let is_wanted = |index| wanted == Wanted::Any || wanted == Wanted::Only(index);
    for partition in topic.owned().into_iter().filter(|partition| is_wanted(partition.id.index)) {
        stats.insert(partition.id.index, describe_here(core, &partition).await);
    }
    if core.ports.peers.is_some() {
        let owners = owners_of(core, topic, wanted);
        stats.extend(Box::pin(describe(core, &owners)).await);
    }
    let indices = match wanted {
        Wanted::Any => 0..topic.record.load().partitions,
        Wanted::Only(index) => index.get()..index.get() + 1,
    };
    indices.map(|index| stats.remove(&PartitionIndex(index)).flatten()).collect()
}

/// The numbers of partitions of other nodes; `None` for what cannot be had now.
async fn describe(core: &Core, owners: &[Owner]) -> Vec<(PartitionIndex, Option<PartitionStats>)> {
    let calls = owners.iter().map(|owner| async move {
        let asked = &owner.tenures.partitions;
        let answer = call(core, &owner.addr, PeerOp::OWNER_DESCRIBE, PeerClass::Data, TIMEOUT, look::ask(&owner.tenures)).await;
        let stats = match answer.map(take_described) {
            Ok(Ok(stats)) if stats.len() == asked.len() => stats,
            Ok(_) => {
                debug!(node = %owner.addr.node, "an owner's description cannot be read");
                vec![None; asked.len()]
            }
            Err(error) => {
                debug!(%error, "an owner does not describe its partitions");
                vec![None; asked.len()]
            }
        };
        let is_of = |index, stats: &PartitionStats| stats.partition == index;
        asked.iter().zip(stats).map(move |((index, _), stats)| (*index, stats.filter(|stats| is_of(*index, stats)))).collect::<Vec<_>>()
    });
    join_all(calls).await.into_iter().flatten().collect()
}

/// Serves a description.
///
/// # Errors
/// [`PeerRefusal`].
pub(super) async fn serve_describe(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let until = Instant::now() + request.remaining / 2;
    let tenures = look::take_ask(request.body)?;
    let mut stats = Vec::with_capacity(tenures.partitions.len());
    for tenure in tenures.each() {
        stats.push(match owned(core, &tenure, until.saturating_duration_since(Instant::now())).await {
            Ok((_, partition)) => describe_here(core, &partition).await,
            Err(_) => None,
        });
    }
    Ok(look::described(&stats))
}

/// How far children are behind partitions of other nodes, child by child, over all owners.
async fn lags(core: &Core, owners: &[Owner], links: &[AttachEpoch]) -> Vec<Lag> {
    let calls = owners.iter().map(|owner| async move {
        let asked = LagAsked { tenures: owner.tenures.clone(), links: links.to_vec() };
        match call(core, &owner.addr, PeerOp::CURSOR_LAG, PeerClass::Data, TIMEOUT, asked.encode()).await.map(take_lags) {
            Ok(Ok(lags)) if lags.len() == links.len() => Some(lags),
            Ok(_) => None,
            Err(error) => {
                debug!(%error, "an owner does not tell how far children are behind");
                None
            }
        }
    });
    let mut all = vec![Lag::default(); links.len()];
    for lags in join_all(calls).await {
        for (at, sum) in all.iter_mut().enumerate() {
            match &lags {
                Some(lags) => sum.add(&lags[at]),
                None => sum.is_partial = true,
            }
        }
    }
    all
}

/// How far each child is behind, over all partitions of its parent that can be asked.
pub async fn child_lags(core: &Arc<Core>, topic: &Topic, children: &[ChildLink]) -> Vec<ChildLag> {
    let owned = topic.owned();
    let mut sums = Vec::with_capacity(children.len());
    for link in children {
        sums.push(core.fanout.lag(core, &owned, link).await);
    }
    if core.ports.peers.is_some() {
        let owners = owners_of(core, topic, Wanted::Any);
        let links: Vec<AttachEpoch> = children.iter().map(|link| link.epoch).collect();
        let asked = owned.len() + owners.iter().map(|owner| owner.tenures.partitions.len()).sum::<usize>();
        let is_partial = asked < topic.partitions().len();
        for (sum, lag) in sums.iter_mut().zip(Box::pin(lags(core, &owners, &links)).await) {
            sum.add(&lag);
            sum.is_partial |= is_partial;
        }
    }
    let told = |(link, sum): (&ChildLink, Lag)| ChildLag {
        child: link.child.clone(),
        delay_ms: link.delay_ms,
        lag_messages: sum.messages,
        is_complete: !sum.is_partial,
        dropped_messages: sum.dropped,
    };
    children.iter().zip(sums).map(told).collect()
}

/// Serves a question for lags.
///
/// # Errors
/// [`PeerRefusal`].
pub(super) async fn serve_lags(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let until = Instant::now() + request.remaining / 2;
    let asked = LagAsked::decode(request.body)?;
    let mut partitions = Vec::with_capacity(asked.tenures.partitions.len());
    for tenure in asked.tenures.each() {
        if let Ok((_, partition)) = owned(core, &tenure, until.saturating_duration_since(Instant::now())).await {
            partitions.push(partition);
        }
    }
    let is_partial = partitions.len() < asked.tenures.partitions.len();
    let view = core.ports.catalog.view();
    let record = view.topic_by_id(asked.tenures.topic);
    let mut lags = Vec::with_capacity(asked.links.len());
    for epoch in asked.links {
        let link = record.and_then(|record| record.children.iter().find(|link| link.epoch == epoch));
        let mut lag = match link {
            Some(link) => core.fanout.lag(core, &partitions, link).await,
            None => Lag { is_partial: true, ..Lag::default() },
        };
        lag.is_partial |= is_partial;
        lags.push(lag);
    }
    Ok(look::lags(&lags))
}
