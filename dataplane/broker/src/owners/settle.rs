//! Acks, extensions and returns of leases, wherever they were granted.
//!
//! Whoever gets no answer may settle again: of a lease that was acked, it is told that there is none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;
use tracing::debug;
use veena_contract::{
    Effect, NodeId, OwnershipEpoch, PeerAddr, PeerClass, PeerOp, PeerRefusal, PeerRequest, TenantId, TopicId, TopicName, limits,
};

use crate::consume::ack::{self, NotSettled, Settled};
use crate::core::Core;
use crate::errors::SettleError;
use crate::message::{ReceiptHandle, Settle};
use crate::owners::bodies::settle::{Settling, settled, take_settled};
use crate::owners::moves::Watch;
use crate::owners::wire::Tenure;
use crate::owners::{NotOwner, call, moves, owned};
use crate::partition::{Partition, PartitionId};
use crate::topics::Topic;

/// A lease that another node has granted.
#[derive(Clone, Debug)]
pub struct Away {
    /// That node.
    pub addr: PeerAddr,
    /// Since which change of ownership it owns the partition.
    pub epoch: OwnershipEpoch,
    /// The topic.
    pub topic: TopicId,
    /// The lease.
    pub handle: ReceiptHandle,
}

/// Settles leases wherever they are; one result for each, in their order. Other nodes are asked side by side. While a partition is on its way
/// to another node, its leases wait a little.
pub async fn settle_each(
    core: &Arc<Core>,
    tenant: &TenantId,
    name: &TopicName,
    handles: &[ReceiptHandle],
    how: Settle,
) -> Vec<Result<(), SettleError>> {
    let mut results: Vec<Option<Result<(), SettleError>>> = handles.iter().map(|_| None).collect();
    let until = Instant::now() + Duration::from_millis(limits::OWNER_SETTLE_MS_MAX);
    // Most are settled at once, and wait for nothing.
    let mut watch = None;
    loop {
        let (mut places, mut away) = (Vec::new(), Vec::new());
        for (place, handle) in handles.iter().enumerate().filter(|(place, _)| results[*place].is_none()).collect::<Vec<_>>() {
            match ack::settle(core, tenant, name, *handle, how) {
                Settled::Here(result) => results[place] = Some(result),
                Settled::Away(lease) => {
                    places.push(place);
                    away.push(lease);
                }
                Settled::Moving => {}
            }
        }
        if !away.is_empty() {
            let answers = Box::pin(settle(core, &away, how)).await;
            for ((place, lease), (answer, is_said)) in places.into_iter().zip(&away).zip(answers) {
                // Nothing was done, and it may be another node's by now: the one asked says so, or this one sees it.
                let is_open = matches!(answer, Err(SettleError::NotReached)) && (is_said || is_moving(core, lease));
                results[place] = (!is_open).then_some(answer);
            }
        }
        let is_over = match watch.take() {
            _ if results.iter().all(Option::is_some) => true,
            None => false,
            Some(watch) => !Watch::changed(watch, until).await,
        };
        if is_over {
            return results.into_iter().map(|result| result.unwrap_or(Err(SettleError::NotReached))).collect();
        }
        watch = Some(core.moves.watch(core));
    }
}

/// Has the partition of this lease moved since it was looked at, or is it about to?
fn is_moving(core: &Core, lease: &Away) -> bool {
    let view = core.ports.catalog.view();
    let id = PartitionId { topic: lease.topic, index: lease.handle.partition };
    moves::ownership(&view, id).is_some_and(|(_, owner)| owner.epoch != lease.epoch || owner.moving.is_some())
}

/// Settles leases of other nodes, one call to each; answers in the order given, and whether each was said by the node asked.
async fn settle(core: &Core, leases: &[Away], how: Settle) -> Vec<(Result<(), SettleError>, bool)> {
    let mut results: Vec<_> = leases.iter().map(|_| (Err(SettleError::NotReached), false)).collect();
    let mut by_owner: BTreeMap<(NodeId, TopicId), Vec<usize>> = BTreeMap::new();
    for (at, lease) in leases.iter().enumerate() {
        by_owner.entry((lease.addr.node.clone(), lease.topic)).or_default().push(at);
    }
    let calls = by_owner.into_iter().map(|((_, topic), places)| {
        let addr = &leases[places[0]].addr;
        let handles = places.iter().map(|at| (leases[*at].handle, leases[*at].epoch)).collect();
        async move { (settle_at(core, addr, &Settling { topic, how, handles }).await, places) }
    });
    for (answers, places) in join_all(calls).await {
        let (answers, is_said) = match answers {
            Ok(answers) => (answers, true),
            Err(error) => (vec![Err(error); places.len()], false),
        };
        for (at, answer) in places.into_iter().zip(answers) {
            results[at] = (answer, is_said);
        }
    }
    results
}

/// What the owner says of each; an error if it says nothing.
async fn settle_at(core: &Core, addr: &PeerAddr, settling: &Settling) -> Result<Vec<Result<(), SettleError>>, SettleError> {
    let count = settling.handles.len();
    let timeout = Duration::from_millis(limits::OWNER_SETTLE_MS_MAX);
    let answer = call(core, addr, PeerOp::OWNER_SETTLE, PeerClass::Settle, timeout, settling.encode()).await;
    let error = match answer {
        Ok(answer) => match take_settled(answer) {
            Ok(results) if results.len() == count => return Ok(results),
            Ok(_) | Err(_) => {
                debug!(node = %addr.node, "an owner's answer to an ack cannot be read");
                SettleError::OutcomeUnknown
            }
        },
        Err(error) => {
            debug!(%error, "an ack has no answer of its owner");
            match error.effect() {
                Effect::None => SettleError::NotReached,
                Effect::Possible => SettleError::OutcomeUnknown,
            }
        }
    };
    Err(error)
}

/// Settles leases of this node for a client of another.
///
/// # Errors
/// [`PeerRefusal`].
pub(super) async fn serve(core: &Arc<Core>, request: PeerRequest) -> Result<Bytes, PeerRefusal> {
    let deadline = Instant::now() + request.remaining;
    let Settling { topic, how, handles } = Settling::decode(request.body)?;
    // The partitions first, since that may take a moment: no lease is settled for a caller who has given up.
    let mut leases = Vec::with_capacity(handles.len());
    for (handle, epoch) in handles {
        let tenure = Tenure { partition: PartitionId { topic, index: handle.partition }, epoch };
        let patience = before(deadline, request.remaining / 2).saturating_duration_since(Instant::now());
        leases.push((owned(core, &tenure, patience).await, tenure, handle));
    }
    if request.caller.is_gone() || Instant::now() >= deadline {
        return Err(PeerRefusal::TooLate);
    }
    // Until then a partition that is on its way is waited for: the caller has to hear of it in time.
    let until = before(deadline, request.remaining / 4);
    let mut results = Vec::with_capacity(leases.len());
    for (place, tenure, handle) in leases {
        results.push(match place {
            Ok((topic, partition)) => settle_owned(core, &topic, &partition, &tenure, handle, how, until).await,
            Err(NotOwner) => Err(SettleError::NotReached),
        });
    }
    Ok(settled(&results))
}

fn before(deadline: Instant, by: Duration) -> Instant {
    deadline.checked_sub(by).unwrap_or(deadline)
}

/// Settles one lease as the owner at this epoch, if this node still is once it is known.
async fn settle_owned(
    core: &Arc<Core>,
    topic: &Topic,
    partition: &Arc<Partition>,
    tenure: &Tenure,
    handle: ReceiptHandle,
    how: Settle,
    until: Instant,
) -> Result<(), SettleError> {
    loop {
        let watch = core.moves.watch(core);
        match ack::settle_here(core, topic, partition, handle, how) {
            Ok(()) => return Ok(()),
            Err(NotSettled::LeaseLost) => return Err(SettleError::LeaseLost),
            Err(NotSettled::Moving) => {}
        }
        if !watch.changed(until).await || owned(core, tenure, Duration::ZERO).await.is_err() {
            return Err(SettleError::NotReached);
        }
    }
}
