//! Acks, extensions and returns of leases that another node has granted.
//!
//! Whoever gets no answer may settle again: of a lease that was acked, it is told that there is none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;
use tracing::debug;
use veena_contract::{Effect, NodeId, OwnershipEpoch, PeerAddr, PeerClass, PeerOp, PeerRefusal, PeerRequest, TopicId, limits};

use crate::consume::ack;
use crate::core::Core;
use crate::errors::SettleError;
use crate::message::{ReceiptHandle, Settle};
use crate::owners::bodies::settle::{Settling, settled, take_settled};
use crate::owners::wire::Tenure;
use crate::owners::{NotOwner, call, owned};
use crate::partition::PartitionId;

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

/// Settles leases of other nodes, one call to each; answers in the order given.
pub async fn settle(core: &Core, leases: Vec<Away>, how: Settle) -> Vec<Result<(), SettleError>> {
    let mut results: Vec<_> = leases.iter().map(|_| Err(SettleError::NotReached)).collect();
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
        for (at, answer) in places.into_iter().zip(answers) {
            results[at] = answer;
        }
    }
    results
}

async fn settle_at(core: &Core, addr: &PeerAddr, settling: &Settling) -> Vec<Result<(), SettleError>> {
    let count = settling.handles.len();
    let timeout = Duration::from_millis(limits::OWNER_SETTLE_MS_MAX);
    let answer = call(core, addr, PeerOp::OWNER_SETTLE, PeerClass::Settle, timeout, settling.encode()).await;
    let error = match answer {
        Ok(answer) => match take_settled(answer) {
            Ok(results) if results.len() == count => return results,
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
    vec![Err(error); count]
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
        let half = request.remaining / 2;
        let patience = deadline.checked_sub(half).map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        leases.push((owned(core, &tenure, patience).await, handle));
    }
    if request.caller.is_gone() || Instant::now() >= deadline {
        return Err(PeerRefusal::TooLate);
    }
    let mut results = Vec::with_capacity(leases.len());
    for (place, handle) in leases {
        results.push(match place {
            Ok((topic, partition)) => ack::settle_here(core, &topic, &partition, handle, how),
            Err(NotOwner) => Err(SettleError::NotReached),
        });
    }
    Ok(settled(&results))
}
